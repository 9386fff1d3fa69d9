"""What makes up a model: its sizes, its two networks, its mixture and its loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from neural_em.errors import check_flag, check_integer, check_number, refuse, unknown
from neural_em.model.distributions import DISTRIBUTIONS
from neural_em.model.m_step import M_STEPS
from neural_em.model.mixture import CHANNEL_RULES
from neural_em.model.noise import NoiseConfig

LOSS_STEPS = ("every", "last")
SMALLEST = {"channels": 1, "height": 1, "width": 1, "theta_size": 1, "hidden": 0, "steps": 1}
MAX_SIZE = 1 << 16
MAX_FRAME = 1 << 28


@dataclass(frozen=True)
class ModelConfig:
    """A Neural EM model; the defaults are the paper's flying-shapes network.

    Attributes:
        channels: channels of a frame.
        height: rows of a frame.
        width: columns of a frame.
        m_step: ``recurrent`` (RNN-EM), ``gradient`` (N-EM), or another name in `M_STEPS`.
        step_size: what N-EM's learned step size starts with; ``None``: drawn from +-sqrt(3), as the authors' is.
        theta_size: size M of each component's vector.
        convolutions: channels of the encoder's 4x4 stride-2 convolutions; the decoder mirrors them.
        hidden: units of the fully connected layer on either side of theta; 0 for none.
        layer_norm: normalise every layer but the last.
        distribution: ``bernoulli`` for binary pixels, ``gaussian`` for grey or coloured ones, or another name in
            `DISTRIBUTIONS`.
        prior: mean of the pixel prior that components predict where they own nothing.
        e_step_deviation: standard deviation of the Gaussian in the E-step.
        channel_rule: likelihood of a pixel: the ``product`` over its channels, or the authors' ``sum``.
        noise: noise on the input.
        normalize_input: normalise each component's input over its pixels to zero mean and unit deviation (the gradient
            step then no longer follows the gradient of Q).
        gamma_gradient: let gradients flow through the assignments.
        inter_weight: weight of the inter-cluster loss.
        loss_steps: loss at ``every`` step, at the ``last``, or one weight for each step.
        steps: EM steps on a single image, where nobody says otherwise.
    """

    channels: int = 1
    height: int = 28
    width: int = 28
    m_step: str = "recurrent"
    step_size: float | None = None
    theta_size: int = 100
    convolutions: tuple[int, ...] = (32, 64)
    hidden: int = 512
    layer_norm: bool = True
    distribution: str = "bernoulli"
    prior: float = 0.0
    e_step_deviation: float = 0.25
    channel_rule: str = "product"
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig("bit-flips", 0.2))
    normalize_input: bool = False
    gamma_gradient: bool = False
    inter_weight: float = 1.0
    loss_steps: Literal["every", "last"] | tuple[float, ...] = "every"
    steps: int = 20

    def __post_init__(self) -> None:
        """Refuses what cannot be built."""
        self._check_sizes()
        for name in ("layer_norm", "normalize_input", "gamma_gradient"):
            check_flag(f"model.{name}", getattr(self, name))
        choices = {"m_step": [*M_STEPS], "distribution": [*DISTRIBUTIONS], "channel_rule": [*CHANNEL_RULES]}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                unknown(f"model.{name}", getattr(self, name), allowed)
        if not isinstance(self.noise, NoiseConfig):
            refuse("model.noise", "a NoiseConfig", repr(self.noise))
        self._keep_number("prior", "a finite number")
        self._keep_number("e_step_deviation", "a number from 0.001 to 1000", 0.001, 1000)
        DISTRIBUTIONS[self.distribution](self)
        self._keep_number("inter_weight", "a number of at least 0", 0)
        if self.step_size is not None:
            self._keep_number("step_size", "a finite number, or null")
            if self.m_step != "gradient":
                refuse("model.step_size", "the m_step it belongs to, gradient", repr(self.m_step))
        self._check_loss_steps()

    def _keep_number(self, name: str, *expected: Any) -> None:
        object.__setattr__(self, name, check_number(f"model.{name}", getattr(self, name), *expected))

    def _check_sizes(self) -> None:
        if not isinstance(self.convolutions, tuple | list) or len(self.convolutions) > 12:
            refuse("model.convolutions", "at most 12 layers' channels", repr(self.convolutions))
        sizes: dict[str, object] = {
            name: check_integer(f"model.{name}", getattr(self, name), least, MAX_SIZE)
            for name, least in SMALLEST.items()
        }
        sizes["convolutions"] = tuple(
            check_integer(f"model.convolutions[{i}]", size, 1, MAX_SIZE) for i, size in enumerate(self.convolutions)
        )
        for name, value in sizes.items():  # Python's own integers and tuples, so that equal configs are equal
            object.__setattr__(self, name, value)
        values = self.channels * self.height * self.width
        if values > MAX_FRAME:  # so that no layer's size overflows 64 bits, whatever a file says
            refuse("model.channels x height x width", f"at most {MAX_FRAME} values a frame", values)

    def _check_loss_steps(self) -> None:
        if isinstance(self.loss_steps, str):
            if self.loss_steps not in LOSS_STEPS:
                unknown("model.loss_steps", self.loss_steps, LOSS_STEPS)
            return
        if not isinstance(self.loss_steps, tuple | list) or not self.loss_steps:
            refuse("model.loss_steps", "every, last or one weight for each step", repr(self.loss_steps))
        weights = [
            check_number(f"model.loss_steps[{i}]", weight, "a finite number")
            for i, weight in enumerate(self.loss_steps)
        ]
        object.__setattr__(self, "loss_steps", tuple(weights))


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
    if not isinstance(name, str) or name not in PRESETS:
        unknown("preset", name, PRESETS)
    return PRESETS[name]
