"""From a config to the sequences of a split, whatever their kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch

from neural_em.data.config import SPLITS, DataConfig, Part, Split
from neural_em.data.dataset import Dataset, MemoryDataset, SceneReader, StreamingDataset, empty_for, fill, memory_budget
from neural_em.data.digits import digit_scenes
from neural_em.data.hdf5 import is_hdf5, load_hdf5
from neural_em.data.own import has_splits, load_own
from neural_em.data.scenes import Scenes
from neural_em.data.shapes import shape_scenes
from neural_em.errors import refuse, unknown
from neural_em.files import existing, from_home

# what makes the sequences of each generated kind
GENERATORS: Mapping[str, Callable[[DataConfig, Split, int, torch.device | str], Scenes]] = {
    "static-shapes": shape_scenes,
    "flying-shapes": shape_scenes,
    "flying-mnist": digit_scenes,
}


def load_split(
    config: DataConfig,
    split: Part,
    seed: int,
    device: torch.device | str = "cpu",
    size: int | None = None,
    max_bytes: int | None = None,
) -> Dataset:
    """The sequences of one split, ready to be asked for batches.

    Args:
        config: What data.
        split: "training", "validation" or "test"; "all" for the user's own data, where it is not divided into these.
        seed: Names the generated data; files do not depend on it.
        device: Where the batches are wanted.
        size: How many sequences; ``None``: as the config says. Files give what they have, at most.
        max_bytes: Hold the data on the device if it needs no more than this, else make or read each batch when it is
            asked for; the batches are the same. ``None``: a half of the device's free memory.
    """
    count = config.size(split) if size is None else size
    if count < 1:
        refuse("size", "an integer >= 1", count)
    budget = memory_budget(device) if max_bytes is None else max_bytes
    if config.kind != "file":
        assert split != "all"  # `size` has refused it
        return _generated(config, split, seed, device, count, budget)
    path = existing(config.path or "")
    if split == "all" and divided(path):
        unknown("split", split, SPLITS)
    if is_hdf5(path):
        assert split != "all"
        _check_plain(config)
        data = load_hdf5(path, split, device, count, config.frames, budget)
        for name, wanted, size in zip(("height", "width"), (config.height, config.width), data.shape[2:], strict=True):
            if wanted not in (None, size):
                refuse(name, f"{size}, as the HDF5 file has it", wanted)
        return data
    return load_own(config, split, device, count, budget)


def divided(path: str | os.PathLike[str]) -> bool:
    """Whether a file or folder of the user's is itself divided into training, validation and test."""
    place = from_home(path)
    return has_splits(place) or (place.is_file() and is_hdf5(place))


def generator(config: DataConfig, split: Split, seed: int, device: torch.device | str = "cpu") -> Scenes:
    """All sequences of a split of a generated kind."""
    if config.kind not in GENERATORS:
        unknown("kind", config.kind, GENERATORS)
    return GENERATORS[config.kind](config, split, seed, device)


def note_on(config: DataConfig) -> str:
    """What a reader of scores on this data has to know; usually nothing."""
    notes = []
    if config.kind == "flying-mnist" and config.digits is not None:
        notes.append(f"validation and test draw on the same {config.digits} digits as training")
    if config.objects == 1:
        notes.append("scenes of one object are too few to differ between training, validation and test")
    return "; ".join(notes)


def _generated(
    config: DataConfig, split: Split, seed: int, device: torch.device | str, count: int, budget: int
) -> Dataset:
    scenes = generator(config, split, seed, device)
    note = note_on(config)
    shape = (scenes.frames, 1, scenes.height, scenes.width)
    endless = config.fresh and split == "training"
    pixels = count * scenes.frames * scenes.height * scenes.width
    if endless or pixels * (scenes.dtype.itemsize + 1) > budget:
        return StreamingDataset(SceneReader(scenes), count, shape, True, device, endless, note)
    frames, groups = empty_for(scenes, count)
    fill(scenes, torch.arange(count), frames, groups)
    return MemoryDataset(frames, groups, scenes.levels, note)


def _check_plain(config: DataConfig) -> None:
    """An HDF5 file is used as it is."""
    usual = DataConfig("file", path=config.path)
    for name in ("masks", "channels", "fit", "stride", "threshold"):
        plain = getattr(usual, name)
        if getattr(config, name) != plain:
            refuse(name, f"{plain!r} for an HDF5 file, which is used as it is", repr(getattr(config, name)))
