"""Damaged at random, every kind of file either still loads or is refused in one line: nothing else ever comes out."""

import gzip
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data import DataConfig, load_split
from neural_em.data.mnist import read_idx_images
from tests import hostile

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


CONTENTS: dict[str, Callable[[Path], object]] = {
    "grey": lambda path: Image.fromarray(FRAMES[0, :, :, 0]).save(path, "png"),
    "colour": lambda path: Image.fromarray(FRAMES[1]).save(path, "png"),
    "other size": lambda path: Image.fromarray(FRAMES[2, :9, :5]).save(path, "png"),
    "clip": lambda path: np.save(path.open("wb"), FRAMES),
    "text": lambda path: path.write_text("no picture"),
    "nothing": lambda path: path.touch(),
    "folder": lambda path: path.mkdir(),
    "link to itself": lambda path: path.symlink_to(path),
    "link above": lambda path: path.symlink_to(path.parent),
    "pipe": lambda path: os.mkfifo(path),
}
FITS: list[dict[str, Any]] = [{}, {"fit": "resize", "height": 8, "width": 8}, {"fit": "crop", "height": 4, "width": 4}]
NAMES = ("1.png", "2.png", "10.png", "a.jpg", "b.npy", "c.gif", "d.txt", "e", ".hidden.png", "\n.png", "\x1b[2J.png")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_folders_of_anything(data: st.DataObject, tmp_path: Path) -> None:
    """Files, folders and links of any names and contents, some damaged, as frames and as masks."""
    folder = tmp_path / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    places = [folder, folder / "clip1", folder / "clip2", folder / "masks"]
    for place in places[: data.draw(st.integers(1, 4))]:
        place.mkdir(parents=True)
        for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True)):
            kind = data.draw(st.sampled_from(["grey", "grey", "colour", *CONTENTS]))
            CONTENTS[kind](place / name)
            if kind in ("grey", "colour") and data.draw(st.integers(0, 4)) == 0:
                (place / name).write_bytes(data.draw(hostile.damaged((place / name).read_bytes(), 60)))
    masks = str(folder / "masks") if data.draw(st.booleans()) else None
    config = DataConfig("file", path=str(folder), masks=masks, **data.draw(st.sampled_from(FITS)))
    try:
        found = load_split(config, "training", 0)
        frames = found.batch(torch.arange(min(len(found), 4))).frames
        assert 0 <= float(frames.min()) <= float(frames.max()) <= 1
    except NeuralEMError as error:
        if not str(error).isprintable():
            pytest.fail(f"not one line: {error!r}")
