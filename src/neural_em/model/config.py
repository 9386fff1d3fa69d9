"""What makes up a model: its sizes, its networks, its mixture and its loss. Each kind of model has a config class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, Checked, choice, flag, integer, number, optional, several
from neural_em.model.distributions import DISTRIBUTIONS
from neural_em.model.m_step import M_STEPS
from neural_em.model.mixture import CHANNEL_RULES
from neural_em.model.noise import NoiseConfig

MODELS: dict[type[BaseConfig], Callable[[Any, int], Any]] = {}  # the model of a config and a seed; `model` fills it
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
class BaseConfig(Checked):
    """What every kind of model has, and what the rest of the package asks of its config.

    Attributes:
        kind: of the model: that of the class, which nothing else has. It tells a file's reader the class.
        channels: channels of a frame.
        height: rows of a frame.
        width: columns of a frame.
        noise: noise on the input.
        loss_steps: the loss of ``every`` step, summed; their ``mean``; that of the ``last``; or one weight for each.
        steps: steps on a single image, where nobody says otherwise.
    """

    kind: str = field(default="neural-em", kw_only=True)
    channels: int = 1
    height: int = 28
    width: int = 28
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig("bit-flips", 0.2), kw_only=True)
    loss_steps: Literal["every", "last", "mean"] | tuple[float, ...] = field(default="every", kw_only=True)
    steps: int = field(default=20, kw_only=True)

    # what a kind of model may let its config choose
    distribution: ClassVar[str] = "bernoulli"
    prior: ClassVar[float | str] = 0.0
    channel_rule: ClassVar[str] = "product"
    batch_matters: ClassVar[bool] = False  # whether what is found in an image depends on the others in its batch

    GROUP: ClassVar[str] = "model."
    CHECKS: ClassVar[Mapping[str, Check]] = {
        **dict.fromkeys(("channels", "height", "width", "steps"), integer(1, MAX_SIZE)),
        "noise": _noise,
        "loss_steps": _loss_steps,
    }

    @classmethod
    def class_for(cls, values: Mapping[str, Any]) -> type[BaseConfig]:
        """The class of the kind that the values name; files from before there were kinds name none."""
        kinds = {each.kind: each for each in reversed(MODELS)}
        kind = values.get("kind", cls.kind)
        if kind == cls.kind and cls is not BaseConfig:
            return cls
        return kinds[choice(kinds)("model.kind", kind)]

    def check_together(self) -> None:
        if self.kind != type(self).kind:
            refuse("model.kind", f"{type(self).kind!r}, the kind of {type(self).__name__}", repr(self.kind))
        values = self.channels * self.height * self.width
        if values > MAX_FRAME:
            refuse("model.channels x height x width", f"at most {MAX_FRAME} values a frame", values)

    @property
    def theta_size(self) -> int:
        """Size M of each component's vector."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelConfig(BaseConfig):
    """A Neural EM model; the defaults are the paper's flying-shapes network. See also the fields of `BaseConfig`.

    Attributes:
        m_step: ``recurrent`` (RNN-EM), ``gradient`` (N-EM), ``relational`` (R-NEM), or another name in `M_STEPS`.
        step_size: what N-EM's learned step size starts with; ``None``: drawn from +-sqrt(3), as the authors' is.
        attention: of R-NEM: let each component weigh what the others send it.
        theta_size: size M of each component's vector.
        convolutions: channels of the encoder's 4x4 stride-2 convolutions; the decoder mirrors them.
        hidden: units of the fully connected layer on either side of theta; 0 for none.
        layer_norm: normalise every layer but the last.
        distribution: ``bernoulli`` for binary pixels, ``gaussian`` for grey or coloured ones, ``masked`` for objects of
            any colour, each with a mask that the network puts out too, or another name in `DISTRIBUTIONS`.
        prior: mean of the pixel prior that components predict where they own nothing: a number; unless they are binary,
            also ``median``, each channel's median over the first frame, or ``background``, a learned image, for a
            camera that stands still. The networks then put out what is added to it.
        e_step_deviation: standard deviation of the Gaussian in the E-step, and of masked pixels in the loss too.
        channel_rule: likelihood of a pixel: the ``product`` over its channels, or the authors' ``sum``.
        normalize_input: normalise each component's input over its pixels to zero mean and unit deviation (the gradient
            step then no longer follows the gradient of Q).
        gamma_gradient: let gradients flow through the assignments.
        inter_weight: weight of the inter-cluster loss.
        window: radius of the window outside which a component predicts nothing, as a share of the frame's shorter side;
            ``None``: there is none. It lies where the component's own prediction does, and keeps it from holding two
            objects that are apart.
        one_colour: of masked pixels: a component has a single colour, the mean of what the network puts out.
    """

    m_step: str = "recurrent"
    step_size: float | None = None
    attention: bool = True
    theta_size: int = 100
    convolutions: tuple[int, ...] = (32, 64)
    hidden: int = 512
    layer_norm: bool = True
    distribution: str = "bernoulli"  # type: ignore[misc]
    prior: float | Literal["median", "background"] = 0.0  # type: ignore[misc]
    e_step_deviation: float = 0.25
    channel_rule: str = "product"  # type: ignore[misc]
    normalize_input: bool = False
    gamma_gradient: bool = False
    inter_weight: float = 1.0
    window: float | None = None
    one_colour: bool = False

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "theta_size": integer(1, MAX_SIZE),
        **dict.fromkeys(("attention", "layer_norm", "normalize_input", "gamma_gradient", "one_colour"), flag),
        "hidden": integer(0, MAX_SIZE),
        "convolutions": _convolutions,
        "m_step": choice(M_STEPS),
        "distribution": choice(DISTRIBUTIONS),
        "channel_rule": choice(CHANNEL_RULES),
        "prior": _prior,
        "e_step_deviation": number("a number from 0.001 to 1000", 0.001, 1000),
        "inter_weight": number("a number of at least 0", 0),
        "window": optional(number("a number from 0.01 to 100, or null", 0.01, 100)),
        "step_size": optional(number("a finite number, or null")),
    }

    @property
    def outputs(self) -> int:
        """Channels that the network puts out."""
        return self.channels + (self.distribution == "masked")

    def check_together(self) -> None:
        super().check_together()
        masked, gradient = self.distribution == "masked", self.m_step == "gradient"
        simple = self.distribution == "bernoulli" and self.channels == 1 and self.prior == 0
        problems = {
            f"prior={self.prior} is for model.distribution=gaussian or masked, not {self.distribution}":
                self.prior in PRIORS and not masked and self.distribution != "gaussian",
            "m_step=gradient is not for model.distribution=masked": masked and gradient,
            "channel_rule=sum is not for model.distribution=masked": masked and self.channel_rule == "sum",
            "window is for model.distribution=masked, or for bernoulli with one channel and model.prior=0":
                self.window is not None and not masked and not simple,
            "one_colour=true is for model.distribution=masked": self.one_colour and not masked,
            "window is not for model.m_step=gradient, whose step would not know of it":
                self.window is not None and gradient,
        }  # fmt: skip
        for problem, there in problems.items():
            if there:
                raise NeuralEMError(f"model.{problem}")
        DISTRIBUTIONS[self.distribution](self)
        own = {m_step: getattr(cls, "own_fields", ()) for m_step, cls in M_STEPS.items()}
        for m_step, names in own.items():
            for name in names:
                if name not in own[self.m_step] and getattr(self, name) != getattr(type(self), name):
                    raise NeuralEMError(f"model.{name} is for model.m_step={m_step}, not for {self.m_step}")


_STATIC = ModelConfig(
    theta_size=250, convolutions=(), hidden=0, layer_norm=False, noise=NoiseConfig("bit-flips", 0.1),
    gamma_gradient=True, loss_steps="last", steps=15,
)  # fmt: skip
_COLOUR = ModelConfig(
    channels=3, theta_size=250, distribution="masked", prior="median", e_step_deviation=0.1, window=0.28,
    noise=NoiseConfig("masked-uniform", 0.2, shared=True),
)  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    "static-shapes": _STATIC,
    "static-shapes-nem": replace(_STATIC, m_step="gradient"),
    "flying-shapes": ModelConfig(),
    "flying-mnist": ModelConfig(
        height=24, width=24, theta_size=250, convolutions=(32, 64, 128), distribution="gaussian",
        noise=NoiseConfig("masked-uniform", 0.2), normalize_input=True, inter_weight=0.2,
    ),
    "bouncing-balls": ModelConfig(
        height=64, width=64, m_step="relational", theta_size=250, convolutions=(16, 32, 64), loss_steps="mean", steps=30
    ),
    "coloured-shapes": _COLOUR,
    "coloured-digits": replace(_COLOUR, height=24, width=24, convolutions=(32, 64, 128), window=0.4),
    "tetrominoes": replace(
        _COLOUR, height=35, width=35, theta_size=64, window=None, one_colour=True, e_step_deviation=0.2
    ),
    "sprites": replace(_COLOUR, height=64, width=64, convolutions=(32, 64, 128), window=0.25),
    "objects": replace(_COLOUR, height=64, width=64, convolutions=(16, 32, 64), window=0.25),
}  # fmt: skip
"""The four networks of the paper's appendix, that of the relational model (R-NEM), and ours for colour."""


def preset(name: str) -> ModelConfig:
    """The network of that name."""
    return PRESETS[choice(PRESETS)("preset", name)]
