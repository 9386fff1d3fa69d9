"""From a config to the sequences of a split, whatever their kind."""

from __future__ import annotations

import torch

from neural_em.data.config import DataConfig, Part
from neural_em.data.dataset import Dataset, memory_budget
from neural_em.errors import refuse


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
    most = config.size(split)  # refuses a part that it does not have
    count = most if size is None else size
    if count < 1:
        refuse("size", "an integer >= 1", count)
    return config.load(split, seed, device, count, memory_budget(device) if max_bytes is None else max_bytes)
