"""Writes a whole generated data set to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from neural_em import config as configs
from neural_em.data.config import SPLITS, Split
from neural_em.data.generated import SceneConfig
from neural_em.data.hdf5 import write_hdf5


def export_hdf5(
    path: str | os.PathLike[str], config: SceneConfig, seed: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Writes all three splits of a generated kind in the authors' layout; the file appears when it is complete.

    Gives how many sequences each split has, and tells ``progress`` how many are written so far and in all.
    """
    splits = {split: cast(Split, split) for split in SPLITS}
    sizes = {name: config.size(split) for name, split in splits.items()}
    parts = {name: (config.scenes(split, seed), sizes[name]) for name, split in splits.items()}
    written, total = 0, sum(sizes.values())

    def advance(count: int) -> None:
        nonlocal written
        written += count
        if progress is not None:
            progress(written, total)

    about = configs.dump(config.without_paths())
    write_hdf5(path, parts, {"config": about, "seed": str(seed), "note": config.note()}, advance)
    return sizes
