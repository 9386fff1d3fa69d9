"""Which samples a step sees and what their randomness is drawn from: pure functions of seed and epoch.

There is no random state to carry or to save: an epoch's order is a permutation under its own key, and noise and start
of a sample are drawn from a key that belongs to the sample in that epoch, whichever process holds it.
"""

import torch
from torch import Tensor

from neural_em import randomness

# keep these numbers apart from every other use of a seed
_ORDER, _SAMPLE, _VALIDATION, _COMPONENTS = 0x0D3E5, 0x5A3B1, 0x7A11D, 0xC0397


def steps_of(size: int, batch_size: int) -> tuple[int, int]:
    """Steps of an epoch and samples of a step: what does not fill a batch is left out, but for a lone small batch."""
    batch = min(size, batch_size)
    return size // batch, batch


def plan(
    seed: int, epoch: int, size: int, batch_size: int, device: torch.device | str = "cpu", fresh: bool = False,
    fixed: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The samples of an epoch, counted from 0, in their order: for each of S steps indices (S,B) and keys (S,B).

    ``fresh``: never the same sample twice: epoch e draws on samples e * size and up. ``fixed``: the same neighbours
    are a batch in every epoch; only the batches change their order.
    """
    steps, batch = steps_of(size, batch_size)
    key = randomness.keys(seed, _ORDER, epoch, device=device)
    if fixed:
        indices = randomness.permutation(key, steps)[:, None] * batch + torch.arange(batch, device=device)
    else:
        indices = randomness.permutation(key, size)[: steps * batch].view(steps, batch)
    if fresh:
        indices = indices + epoch * size
    return indices, randomness.keys(seed, _SAMPLE, epoch, indices, device=device)


def components(seed: int, epoch: int, steps: int, low: int, high: int) -> list[int]:
    """The number of components of each of the epoch's steps, all from ``low`` to ``high`` equally likely."""
    drawn = randomness.integers(randomness.keys(seed, _COMPONENTS, epoch), steps, high - low + 1)
    return [low + number for number in drawn.tolist()]


def validation_keys(indices: Tensor, fresh: tuple[int, int] | None = None) -> Tensor:
    """Keys of validation samples: the same in every epoch and for every seed; others for each (seed, epoch) given."""
    if fresh is None:
        return randomness.keys(0, _VALIDATION, indices, device=indices.device)
    return randomness.keys(fresh[0], _VALIDATION, fresh[1], indices, device=indices.device)
