"""Input noise: what stops the components from copying their input. Pure functions of uniform numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neural_em.fields import Check, Checked, choice, flag, number


def bit_flips(x: Tensor, u: Tensor, probability: float) -> Tensor:
    """Turns x into 1 - x where u < probability; u is (1, *x.shape)."""
    return torch.where(u[0] < probability, 1 - x, x)


def masked_uniform(x: Tensor, u: Tensor, probability: float) -> Tensor:
    """Replaces x by a uniform number where the first u < probability; u is (2, *x.shape)."""
    return torch.where(u[0] < probability, u[1].to(x.dtype), x)


def no_noise(x: Tensor, u: Tensor, probability: float) -> Tensor:
    return x


# kind -> (function, uniform numbers it needs for each pixel)
NOISES: dict[str, tuple[Callable[[Tensor, Tensor, float], Tensor], int]] = {
    "none": (no_noise, 0),
    "bit-flips": (bit_flips, 1),
    "masked-uniform": (masked_uniform, 2),
}


@dataclass(frozen=True)
class NoiseConfig(Checked):
    """Noise on the input of the network, never on the target.

    Attributes:
        kind: ``bit-flips`` for binary pixels, ``masked-uniform`` for grey ones, or ``none``: a name in `NOISES`.
        probability: share of the pixels that are hit.
        shared: hit all channels of a pixel together, not each by itself.
    """

    kind: str = "none"
    probability: float = 0.0
    shared: bool = False

    GROUP: ClassVar[str] = "noise."
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "kind": choice(NOISES), "probability": number("a number between 0 and 1", 0, 1), "shared": flag
    }  # fmt: skip


def noisy(x: Tensor, u: Tensor, config: NoiseConfig) -> Tensor:
    """Frames x (...,C,H,W) with the config's noise, from uniform numbers u (n,...,C,H,W)."""
    function, needed = NOISES[config.kind]
    if config.shared and needed:
        u = torch.cat([u[:1, ..., :1, :, :].expand_as(u[:1]), u[1:]])
    return function(x, u, config.probability)
