"""Damaged at random, every kind of file either still loads or is refused in one line: nothing else ever comes out."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data import DataConfig, load_split
from neural_em.data.mnist import read_idx_images

FRAMES = np.random.default_rng(0).integers(0, 256, (6, 16, 20, 3), dtype=np.uint8)
SAMPLE = Path(__file__).parent / "mnist" / "train-images-idx3-ubyte.gz"


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name in ("training/features", "training/groups", "test/features", "test/groups"):
            file.create_dataset(name, data=np.zeros((2, 3, 8, 8, 1), "f4"), compression="gzip")


def _gif(path: Path) -> None:
    pictures = [Image.fromarray(frame) for frame in FRAMES]
    pictures[0].save(path, save_all=True, append_images=pictures[1:])


WRITERS: dict[str, Callable[[Path], object]] = {
    "a.h5": _hdf5,
    "a.gif": _gif,
    "a.png": lambda path: Image.fromarray(FRAMES[0]).save(path),
    "a.jpg": lambda path: Image.fromarray(FRAMES[0]).save(path),
    "a.bmp": lambda path: Image.fromarray(FRAMES[0]).save(path),
    "a.webp": lambda path: Image.fromarray(FRAMES[0]).save(path),
    "a.npy": lambda path: np.save(path, FRAMES),
    "a.npz": lambda path: np.savez_compressed(path, frames=FRAMES, groups=FRAMES[..., 0]),
    "a.idx": lambda path: path.write_bytes(gzip.decompress(SAMPLE.read_bytes())),
    "a.gz": lambda path: path.write_bytes(SAMPLE.read_bytes()),
}


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Cut off somewhere, or with a few bytes changed, mostly in the header."""
    if chance.random() < 0.2:
        return content[: chance.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        place = chance.randrange(min(len(changed), 600) if chance.random() < 0.7 else len(changed))
        changed[place] = chance.choice([0, 127, 128, 255, chance.randrange(256)])
    return bytes(changed)


def use(path: Path) -> None:
    if path.suffix in (".idx", ".gz"):
        read_idx_images(path)
        return
    for limit in (None, 10):
        data = load_split(DataConfig("file", path=str(path)), "training", 0, max_bytes=limit)
        frames = data.batch(torch.arange(min(len(data), 8))).frames
        assert 0 <= float(frames.min()) <= float(frames.max()) <= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRITERS)
def test_damage_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    use(path)
    content, chance, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        path.write_bytes(damaged(content, chance))
        try:
            use(path)
        except NeuralEMError as error:
            refused += 1
            if "\n" in str(error) or str(path) not in str(error):
                pytest.fail(f"not one line with the file's name: {error}")
    assert refused > 30
