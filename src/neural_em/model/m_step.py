"""The M-step, three ways behind one contract, `MStep`: theta and delta to new theta and eta.

delta = gamma * (x - psi) is the gradient of the expected log-likelihood Q with respect to eta, the natural parameters
that the decoder puts out. Another M-step is a class and a line in `M_STEPS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor, nn

from neural_em.model.networks import Activation, Decoder, Dense, Encoder, recurrent
from neural_em.model.relational import RelationalMStep

if TYPE_CHECKING:
    from neural_em.model.config import ModelConfig


class MStep(Protocol):
    """What the model asks of its M-step, an `nn.Module` that treats the components alike.

    Weights of two or more dimensions are drawn by Glorot's initialiser after it was made; it may have a method
    ``initialise()``, called after that, for what has to start otherwise.

    Attributes:
        differentiated_twice: False says that it only calls its modules, each as a whole, and takes no gradient through
            them itself: the fast path may then call a copy of it with fast layers in place of those it knows. It counts
            only where the class itself says it; one that says nothing, or inherits it, keeps its layers.

    It may also say ``own_fields``, the fields of the config that no other M-step reads.
    """

    differentiated_twice: ClassVar[bool]

    def __init__(self, config: ModelConfig) -> None: ...

    def __call__(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The new theta (B,K,M), and eta (B,K,`config.outputs`,H,W), from theta (B,K,M) and delta (B,K,C,H,W)."""


def differentiated_twice(m_step: object) -> bool:
    """What the M-step's own class says, or the safe answer."""
    return vars(type(m_step)).get("differentiated_twice") is not False


class RecurrentMStep(nn.Module):
    """RNN-EM: an encoder, a recurrent layer whose state is theta, a decoder; K copies share their weights."""

    differentiated_twice: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        networks = (config.convolutions, config.hidden, config.layer_norm)
        self.encoder = Encoder(config.channels, config.height, config.width, *networks)
        self.recurrence = Dense(self.encoder.outputs + config.theta_size, config.theta_size)
        self.output = Activation(config.theta_size, "sigmoid", config.layer_norm)
        self.decoder = Decoder(config.theta_size, config.outputs, config.height, config.width, *networks)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        B, K, M = theta.shape
        features = self.encoder(delta.flatten(0, 1))  # (B*K, features)
        a = self.recurrence(torch.cat([features, theta.reshape(B * K, M)], dim=1))
        out, state = recurrent(self.output, a)
        eta = self.decoder(out)  # the decoder reads the normalised output, not the state
        return state.reshape(B, K, M), eta.unflatten(0, (B, K))


class GradientMStep(nn.Module):
    """N-EM: theta climbs Q by a learned step through the decoder; theta is squashed before it is decoded."""

    differentiated_twice: ClassVar[bool] = True
    own_fields: ClassVar[tuple[str, ...]] = ("step_size",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = (config.channels, config.height, config.width)
        self.decoder = Decoder(
            config.theta_size, *size, config.convolutions, config.hidden, config.layer_norm, bias=False
        )
        self.learning_rate, self.step_size = nn.Parameter(torch.empty(1, 1)), config.step_size

    def initialise(self) -> None:
        """The step size, if one is given; the authors leave it to Glorot: uniform in +-sqrt(3), sign included."""
        if self.step_size is not None:
            nn.init.constant_(self.learning_rate, self.step_size)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """One step of gradient ascent on Q for each copy."""
        B, K, M = theta.shape
        theta = theta.reshape(B * K, M)
        theta = theta + self.learning_rate * self.pullback(theta, delta.flatten(0, 1))
        return theta.reshape(B, K, M), self.decode(theta).unflatten(0, (B, K))

    def decode(self, theta: Tensor) -> Tensor:
        """Natural parameters eta (N,C,H,W) of theta (N,M)."""
        return self.decoder(torch.sigmoid(theta))

    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        """The gradient dQ / d theta = delta^T (d eta / d theta), through whatever the decoder is (N,M)."""
        vector_jacobian_product = torch.func.vjp(self.decode, theta)[1]
        return vector_jacobian_product(delta)[0]


# the choices of `ModelConfig.m_step`
M_STEPS: dict[str, type[MStep]] = {
    "recurrent": RecurrentMStep, "gradient": GradientMStep, "relational": RelationalMStep
}  # fmt: skip
