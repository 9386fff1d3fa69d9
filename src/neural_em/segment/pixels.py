"""What becomes of single pixels: background, foreground, explained or not. Shapes: x (C,H,W), psi (K,C,H,W)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from neural_em.model import Model
from neural_em.model.distributions import of_frames
from neural_em.model.inference import prior_of


class Step(NamedTuple):
    """What EM makes of one frame, without a batch axis."""

    theta: Tensor  # (K,M)
    psi: Tensor  # (K,C,H,W)
    gamma: Tensor  # (K,H,W)
    loss: float
    prior: Tensor | None = None  # (C,1,1) or (C,H,W), where it is the image's own


def background(model: Model, x: Tensor, step: Step) -> Tensor:
    """Where (H,W) the prior explains the frame at least as well as each component does."""
    with torch.inference_mode():
        every = torch.cat([torch.zeros_like(step.psi[:1]) + prior_of(model, step), step.psi])
        log = of_frames(model.distribution).log_probability(x, every).sum(dim=1)  # products of densities would vanish
        return log[0] >= log[1:].amax(dim=0)


def explained(x: Tensor, psi: Tensor, prior: Any) -> Tensor:
    """Where (H,W) some component's prediction is at least twice as near to the frame as the prior is."""
    return (x - psi).abs().sum(dim=1).amin(dim=0) <= 0.5 * (x - prior).abs().sum(dim=0)
