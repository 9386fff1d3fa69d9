"""What makes up a model: its sizes, its two networks, its mixture and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, Checked, choice, flag, integer, number, optional, several
from neural_em.model.distributions import DISTRIBUTIONS
from neural_em.model.m_step import M_STEPS
from neural_em.model.mixture import CHANNEL_RULES
from neural_em.model.noise import NoiseConfig

LOSS_STEPS = ("every", "last", "mean")
MAX_SIZE = 1 << 16
PRIORS = ("median", "background")  # of the image itself; else a number
MAX_FRAME = 1 << 28  # so that no layer's size overflows 64 bits, whatever a file says


def _convolutions(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > 12:
        refuse(name, "at most 12 layers' channels", repr(value))
    return several(integer(1, MAX_SIZE), "")(name, value) if value else ()


def _loss_steps(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value if value in LOSS_STEPS else unknown(name, value, LOSS_STEPS)
    return several(number("a finite number"), "every, last, mean or one weight for each step")(name, value)


def _prior(name: str, value: Any) -> Any:
    return value if value in PRIORS else number(f"a finite number, {' or '.join(PRIORS)}")(name, value)


def _noise(name: str, value: Any) -> NoiseConfig:
    return value if isinstance(value, NoiseConfig) else refuse(name, "a NoiseConfig", repr(value))


@dataclass(frozen=True)
class ModelConfig(Checked):
    """A Neural EM model; the defaults are the paper's flying-shapes network.

    Attributes:
        channels: channels of a frame.
        height: rows of a frame.
        width: columns of a frame.
        m_step: ``recurrent`` (RNN-EM), ``gradient`` (N-EM), ``relational`` (R-NEM), or another name in `M_STEPS`.
        step_size: what N-EM's learned step size starts with; ``None``: drawn from +-sqrt(3), as the authors' is.
        attention: of R-NEM: let each component weigh what the others send it.
        theta_size: size M of each component's vector.
        convolutions: channels of the encoder's 4x4 stride-2 convolutions; the decoder mirrors them.
        hidden: units of the fully connected layer on either side of theta; 0 for none.
        layer_norm: normalise every layer but the last.
        distribution: ``bernoulli`` for binary pixels, ``gaussian`` for grey or coloured ones, or another name in
            `DISTRIBUTIONS`.
        prior: mean of the pixel prior that components predict where they own nothing: a number; of Gaussian pixels also
            ``median``, each channel's median over the first frame, or ``background``, a learned image, for a camera
            that stands still. The networks then put out what is added to it.
        e_step_deviation: standard deviation of the Gaussian in the E-step.
        channel_rule: likelihood of a pixel: the ``product`` over its channels, or the authors' ``sum``.
        noise: noise on the input.
        normalize_input: normalise each component's input over its pixels to zero mean and unit deviation (the gradient
            step then no longer follows the gradient of Q).
        gamma_gradient: let gradients flow through the assignments.
        inter_weight: weight of the inter-cluster loss.
        loss_steps: the loss of ``every`` step, summed; their ``mean``; that of the ``last``; or one weight for each.
        steps: EM steps on a single image, where nobody says otherwise.
    """

    channels: int = 1
    height: int = 28
    width: int = 28
    m_step: str = "recurrent"
    step_size: float | None = None
    attention: bool = True
    theta_size: int = 100
    convolutions: tuple[int, ...] = (32, 64)
    hidden: int = 512
    layer_norm: bool = True
    distribution: str = "bernoulli"
    prior: float | Literal["median", "background"] = 0.0
    e_step_deviation: float = 0.25
    channel_rule: str = "product"
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig("bit-flips", 0.2))
    normalize_input: bool = False
    gamma_gradient: bool = False
    inter_weight: float = 1.0
    loss_steps: Literal["every", "last", "mean"] | tuple[float, ...] = "every"
    steps: int = 20

    GROUP: ClassVar[str] = "model."
    CHECKS: ClassVar[Mapping[str, Check]] = {
        **dict.fromkeys(("channels", "height", "width", "theta_size", "steps"), integer(1, MAX_SIZE)),
        **dict.fromkeys(("attention", "layer_norm", "normalize_input", "gamma_gradient"), flag),
        "hidden": integer(0, MAX_SIZE),
        "convolutions": _convolutions,
        "m_step": choice(M_STEPS),
        "distribution": choice(DISTRIBUTIONS),
        "channel_rule": choice(CHANNEL_RULES),
        "noise": _noise,
        "prior": _prior,
        "e_step_deviation": number("a number from 0.001 to 1000", 0.001, 1000),
        "inter_weight": number("a number of at least 0", 0),
        "step_size": optional(number("a finite number, or null")),
        "loss_steps": _loss_steps,
    }

    def check_together(self) -> None:
        """Refuses what cannot be built."""
        values = self.channels * self.height * self.width
        if values > MAX_FRAME:
            refuse("model.channels x height x width", f"at most {MAX_FRAME} values a frame", values)
        if self.prior in PRIORS and self.distribution != "gaussian":
            raise NeuralEMError(f"model.prior={self.prior} is for model.distribution=gaussian, not {self.distribution}")
        DISTRIBUTIONS[self.distribution](self)
        for name, is_set, m_step in (
            ("step_size", self.step_size is not None, "gradient"), ("attention", not self.attention, "relational")
        ):  # fmt: skip
            if is_set and self.m_step != m_step:
                raise NeuralEMError(f"model.{name} is for model.m_step={m_step}, not for {self.m_step}")


_COLOUR = ModelConfig(
    channels=3, theta_size=250, distribution="gaussian", prior="median", e_step_deviation=0.1,
    noise=NoiseConfig("masked-uniform", 0.2, shared=True), inter_weight=0.2,
)  # fmt: skip

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
    "bouncing-balls": ModelConfig(
        height=64, width=64, m_step="relational", theta_size=250, convolutions=(16, 32, 64), loss_steps="mean", steps=30
    ),
    "coloured-shapes": _COLOUR,
    "coloured-digits": replace(_COLOUR, height=24, width=24, convolutions=(32, 64, 128)),
    "tetrominoes": replace(_COLOUR, height=35, width=35),
    "sprites": replace(_COLOUR, height=64, width=64, convolutions=(32, 64, 128)),
}  # fmt: skip
"""The four networks of the paper's appendix, that of the relational model (R-NEM), and ours for colour."""


def preset(name: str) -> ModelConfig:
    """The network of that name."""
    if not isinstance(name, str) or name not in PRESETS:
        unknown("preset", name, PRESETS)
    return PRESETS[name]
