"""What makes up a model: its sizes, its two networks, its mixture and its loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from neural_em.errors import refuse, unknown
from neural_em.model.noise import NoiseConfig

DISTRIBUTIONS = ("bernoulli", "gaussian")
M_STEPS = ("recurrent", "gradient")


@dataclass(frozen=True)
class ModelConfig:
    """A Neural EM model; the defaults are the paper's flying-shapes network.

    Attributes:
        channels: channels of a frame.
        height: rows of a frame.
        width: columns of a frame.
        m_step: ``recurrent`` (RNN-EM) or ``gradient`` (N-EM).
        theta_size: size M of each component's vector.
        convolutions: channels of the encoder's 4x4 stride-2 convolutions; the decoder mirrors them.
        hidden: units of the fully connected layer on either side of theta; 0 for none.
        layer_norm: normalise every layer but the last.
        distribution: ``bernoulli`` for binary pixels, ``gaussian`` for grey or coloured ones.
        prior: mean of the pixel prior that components predict where they own nothing.
        e_step_deviation: standard deviation of the Gaussian in the E-step.
        channel_rule: likelihood of a pixel: the ``product`` over its channels, or the authors' ``sum``.
        noise: noise on the input.
        normalize_input: normalise each component's input over its pixels to zero mean and unit deviation.
        gamma_gradient: let gradients flow through the assignments.
        inter_weight: weight of the inter-cluster loss.
        loss_steps: loss at ``every`` step, at the ``last``, or one weight for each step.
        steps: EM steps on a single image, where nobody says otherwise.
    """

    channels: int = 1
    height: int = 28
    width: int = 28
    m_step: Literal["recurrent", "gradient"] = "recurrent"
    theta_size: int = 100
    convolutions: tuple[int, ...] = (32, 64)
    hidden: int = 512
    layer_norm: bool = True
    distribution: Literal["bernoulli", "gaussian"] = "bernoulli"
    prior: float = 0.0
    e_step_deviation: float = 0.25
    channel_rule: Literal["product", "sum"] = "product"
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig("bit-flips", 0.2))
    normalize_input: bool = False
    gamma_gradient: bool = False
    inter_weight: float = 1.0
    loss_steps: Literal["every", "last"] | tuple[float, ...] = "every"
    steps: int = 20

    def __post_init__(self) -> None:
        """Refuses what cannot be built."""
        sizes = {name: getattr(self, name) for name in ("channels", "height", "width", "theta_size", "steps")}
        sizes |= {f"convolutions[{i}]": size for i, size in enumerate(self.convolutions)}
        for name, size in sizes.items():
            if not isinstance(size, int) or not 1 <= size <= 65536:
                refuse(f"model.{name}", "an integer from 1 to 65536", repr(size))
        if not isinstance(self.hidden, int) or not 0 <= self.hidden <= 65536:
            refuse("model.hidden", "an integer from 0 to 65536", repr(self.hidden))
        if len(self.convolutions) > 12:
            refuse("model.convolutions", "at most 12 layers", len(self.convolutions))
        choices = {"m_step": M_STEPS, "distribution": DISTRIBUTIONS, "channel_rule": ("product", "sum")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                unknown(f"model.{name}", getattr(self, name), allowed)
        if isinstance(self.loss_steps, str) and self.loss_steps not in ("every", "last"):
            unknown("model.loss_steps", self.loss_steps, ("every", "last"))
        if not (self.e_step_deviation > 0 and math.isfinite(self.e_step_deviation)):
            refuse("model.e_step_deviation", "a number above 0", self.e_step_deviation)
        if not (self.inter_weight >= 0 and math.isfinite(self.inter_weight)):
            refuse("model.inter_weight", "a number of at least 0", self.inter_weight)
        if self.distribution == "bernoulli" and not 0 <= self.prior <= 1:
            refuse("model.prior", "a probability between 0 and 1", self.prior)


PRESETS: dict[str, ModelConfig] = {
    "static-shapes": ModelConfig(
        theta_size=250, convolutions=(), hidden=0, layer_norm=False, noise=NoiseConfig("bit-flips", 0.1),
        gamma_gradient=True, loss_steps="last", steps=15,
    ),
    "static-shapes-nem": ModelConfig(
        m_step="gradient", theta_size=250, convolutions=(), hidden=0, layer_norm=False,
        noise=NoiseConfig("bit-flips", 0.1), gamma_gradient=True, loss_steps="last", steps=15,
    ),
    "flying-shapes": ModelConfig(),
    "flying-mnist": ModelConfig(
        height=24, width=24, theta_size=250, convolutions=(32, 64, 128), distribution="gaussian",
        noise=NoiseConfig("masked-uniform", 0.2), normalize_input=True, inter_weight=0.2,
    ),
}  # fmt: skip
"""The four networks of the paper's appendix."""


def preset(name: str) -> ModelConfig:
    """The paper's network of that name."""
    if name not in PRESETS:
        unknown("preset", name, PRESETS)
    return PRESETS[name]
