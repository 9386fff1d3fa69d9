"""Synthetic sequences: filled squares that move one pixel a step, with a known hard or soft assignment."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from neural_em.report.panels import SequenceReport


def moving_squares(steps=4, components=3, channels=1, height=12, width=15, label="best", soft=0.0) -> SequenceReport:
    """Component k owns a 3x3 square in its own band of rows; component 0 owns the background."""
    groups = np.zeros((steps, height, width), np.int64)
    for t in range(steps):
        for k in range(1, components):
            top, left = (4 * (k - 1)) % (height - 3), (t + 3 * k) % (width - 3)
            groups[t, top : top + 3, left : left + 3] = k
    gamma = (groups[:, None] == np.arange(components)[None, :, None, None]).astype(np.float32)
    gamma = gamma * (1 - soft) + soft / components
    frames = np.repeat((groups > 0)[:, None], channels, axis=1).astype(np.float32)
    psi = gamma[:, :, None] * frames[:, None]
    return SequenceReport(label, frames, gamma, psi, groups, 0.5)


@pytest.fixture
def rolled_out() -> SequenceReport:
    """Five steps of which the last two have no input; what was read is the frame upside down, predictions are half."""
    made = moving_squares(steps=5)
    return dataclasses.replace(made, psi=made.psi / 2, rollout=2, inputs=made.frames[:, :, ::-1])


@pytest.fixture
def squares() -> Callable[..., SequenceReport]:
    return moving_squares
