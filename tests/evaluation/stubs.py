"""Models whose groupings are known beforehand, and sequences for them."""

from __future__ import annotations

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.dataset import MemoryDataset
from neural_em.evaluation import Result
from neural_em.model import ModelConfig, NeuralEM
from neural_em.model.em import Info, State

SIDE, SCALE = 12, 0.1
CONFIG = ModelConfig(height=SIDE, width=SIDE, theta_size=8, convolutions=(4,), hidden=0, steps=5)
SCORES = ("ami_max", "ami_arithmetic", "ari", "iou")
LOSSES = ("total", "intra", "inter", "upper_bound")


class Stub(NeuralEM):
    """A model whose assignment is read off the frame it sees: a pixel's value is its label times SCALE."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.taken = 0

    def start(self, x, components, gamma=None, generator=None) -> State:
        self.taken = 0
        return super().start(x, components, gamma, generator)

    def step(
        self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True
    ) -> tuple[State, Info]:
        label = (x_next[:, 0] / SCALE).round().long()
        K = state.gamma.shape[1]
        gamma = torch.nn.functional.one_hot(self.component(label, x_noisy, K), K).movedim(-1, 1)[:, :, None].float()
        self.taken += 1
        loss = x_next.new_full((len(label),), float(self.taken))
        return State(state.theta, state.psi, gamma), Info(4 * loss, 3 * loss, 2 * loss, loss)

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        raise NotImplementedError


class Perfect(Stub):
    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        return (label + 1) % components


class Swapping(Stub):
    """Perfect in each frame, but from the third step on two components have changed places."""

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        return (label if self.taken < 2 else (2 * label) % 3) % components


class Random(Stub):
    """Draws a component for every pixel from its own noise."""

    def component(self, label: Tensor, x_noisy: Tensor, components: int) -> Tensor:
        keys = randomness.keys(self.taken, (x_noisy.double() * 2**24).long().flatten(1).sum(dim=1))
        return randomness.integers(keys, SIDE * SIDE, components).view(-1, SIDE, SIDE)


def sequences(count: int, frames: int = 6, objects: int = 2, empty: int = 0, grouped: bool = True) -> MemoryDataset:
    """Squares that jump about; the value of a pixel tells its group. In ``empty`` sequences nothing is scored."""
    generator = torch.Generator().manual_seed(count)
    groups = torch.zeros(count, frames, SIDE, SIDE, dtype=torch.uint8)
    for n in range(count):
        for t in range(frames):
            for label in range(1, objects + 1):
                y, x = torch.randint(0, SIDE - 4, (2,), generator=generator).tolist()
                groups[n, t, y : y + 5, x : x + 5] = label
    pictures = (groups.float() * SCALE)[:, :, None]
    if empty:
        groups[:empty] = 0
    return MemoryDataset(pictures, groups if grouped else None)


def means(result: Result, section: str) -> dict[str, float | None]:
    return {name: summary.mean for name, summary in getattr(result, section).items()}
