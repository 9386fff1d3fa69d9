"""Writes a whole generated data set to a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import cast

from neural_em import config as configs
from neural_em.data.config import SPLITS, DataConfig, Split
from neural_em.data.hdf5 import write_hdf5
from neural_em.data.load import generator, note_on


def export_hdf5(
    path: str | os.PathLike[str],
    config: DataConfig,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Writes all three splits of a generated kind in the authors' layout.

    Args:
        path: The HDF5 file; it appears when it is complete.
        config: What to make, and how many sequences of each split.
        seed: Names the data.
        progress: Called with the number of sequences written so far and in all.

    Returns:
        How many sequences each split has.
    """
    splits = {split: cast(Split, split) for split in SPLITS}
    sizes = {name: config.size(split) for name, split in splits.items()}
    parts = {name: (generator(config, split, seed), sizes[name]) for name, split in splits.items()}
    written, total = 0, sum(sizes.values())

    def advance(count: int) -> None:
        nonlocal written
        written += count
        if progress is not None:
            progress(written, total)

    about = configs.dump(dataclasses.replace(config, mnist=None))  # where the digits lay is nobody else's business
    write_hdf5(path, parts, {"config": about, "seed": str(seed), "note": note_on(config)}, advance)
    return sizes
