"""How much memory a training step takes, without taking it."""

from typing import Any

import torch
from torch import Tensor

from neural_em.model import BaseConfig, build
from neural_em.training.config import TrainingConfig

_COPIES = 4  # of the weights: they themselves, their gradients, Adam's two moments
_KEPT = 0.5  # of what the plain step keeps for the backward pass; the fast one keeps about so much


def memory_needed(config: BaseConfig, training: TrainingConfig, frames: int) -> int:
    """About how many bytes a training step takes: for the weights, and for what a batch keeps for the backward pass."""
    with torch.device("meta"):  # shapes, without numbers
        model = build(config)
        weights = {id(weight): weight.numel() for weight in model.parameters()}
        kept = _kept_by_one_step(model, set(weights), training.components)
    steps = training.segment or training.steps or (frames - 1 if frames > 1 else config.steps)
    return int(4 * _COPIES * sum(weights.values()) + _KEPT * kept * training.batch_size * steps)


def _kept_by_one_step(model: Any, weights: set[int], K: int) -> int:
    """Bytes that one step on one sample keeps for the backward pass, found on PyTorch's meta device."""
    config, kept = model.config, 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        if id(tensor) not in weights and id(tensor._base) not in weights:
            kept += tensor.numel() * tensor.element_size()
        return tensor

    x = torch.zeros(1, config.channels, config.height, config.width)
    gamma = torch.ones(1, K, 1, config.height, config.width)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        try:
            model.advance(model.first_state(x, gamma), x, x, True)
        except RuntimeError:  # N-EM's step takes gradients itself, and nobody may look on; it keeps little
            return 0
    return kept
