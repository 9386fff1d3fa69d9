"""A model whose answer is known: from any start, the upper and the lower bar of its frames each get a component."""

from __future__ import annotations

import numpy as np
import torch

from neural_em import ModelConfig, NeuralEM
from neural_em.model import NoiseConfig

SIDE, BAND = 6, 2
UPPER, LOWER = np.zeros((2, SIDE, SIDE), np.float32)
UPPER[:BAND], LOWER[-BAND:] = 1, 1
BARS = UPPER + LOWER  # (6,6): the frame
GROUPS = (UPPER + 2 * LOWER).astype(np.uint8)  # its true groups


def known_model(channels: int = 1, **changes: object) -> NeuralEM:
    """With two components, after one step: the one that was given more of the upper bar predicts it, and so on.

    The one unit of theta is 1 where a component was given more of the upper bar than of the lower one, else 0, and
    stays what it is; theta 1 is decoded as the upper bar, theta 0 as the lower.
    """
    config = ModelConfig(
        channels=channels, height=SIDE, width=SIDE, theta_size=1, convolutions=(), hidden=0, layer_norm=False,
        noise=NoiseConfig("none", 0.0), steps=3, **changes,
    )  # fmt: skip
    model = NeuralEM(config)
    difference = torch.from_numpy(UPPER - LOWER).flatten().repeat_interleave(channels)
    nothing = 1 - difference.abs()
    with torch.no_grad():
        model.m_step.recurrence.weight.copy_(torch.cat([1000 * difference, torch.tensor([20.0])])[None])
        model.m_step.recurrence.bias.fill_(-10)
        dense = model.m_step.decoder.dense[0]
        dense.weight.copy_(20 * difference[:, None])
        dense.bias.copy_(-10 * difference - 30 * nothing)
    return model
