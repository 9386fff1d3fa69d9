"""Frames of the user's own on the disk, and what a data set makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data import DataConfig, load_split


def save(folder: Path, frames: np.ndarray, names: list[str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"{names[number] if names else f'frame{number}'}.png")
    return folder


def load(path: Path, split: Any = "training", max_bytes: int | None = None, **fields: Any) -> Any:
    return load_split(DataConfig("file", path=str(path), **fields), split, 0, max_bytes=max_bytes)


def refused_by_name(path: Path, names: str, **fields: Any) -> None:
    """Loading these is refused in one line that names what does not fit."""
    with pytest.raises(NeuralEMError) as error:
        load(path, **fields)
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def everything(data: Any) -> tuple[np.ndarray, np.ndarray | None]:
    batch = data.batch(torch.arange(len(data)))
    return batch.frames.numpy(), None if batch.groups is None else batch.groups.numpy()


def counted(count: int, height: int = 4, width: int = 5) -> np.ndarray:
    """Frames that say which they are: all pixels have their number."""
    return np.stack([np.full((height, width), number, np.uint8) for number in range(count)])


def numbers(frames: np.ndarray) -> list[list[int]]:
    """The numbers of the frames (N,T) that a data set holds."""
    return np.round(frames[:, :, 0, 0, 0] * 255).astype(int).T.tolist()
