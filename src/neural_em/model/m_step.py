"""The M-step, two ways behind one contract: theta (B,K,M) and delta (B,K,C,H,W) to new theta and eta (B,K,C,H,W).

delta = gamma * (x - psi) is the gradient of the expected log-likelihood Q with respect to eta, the natural parameters
that the decoder puts out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neural_em.model.config import ModelConfig
from neural_em.model.networks import Activation, Decoder, Dense, Encoder


class RecurrentMStep(nn.Module):
    """RNN-EM: an encoder, a recurrent layer whose state is theta, a decoder; K copies share their weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = (config.channels, config.height, config.width)
        networks = (config.convolutions, config.hidden, config.layer_norm)
        self.encoder = Encoder(*size, *networks)
        self.recurrence = Dense(self.encoder.outputs + config.theta_size, config.theta_size)
        self.output = Activation(config.theta_size, "sigmoid", config.layer_norm)
        self.decoder = Decoder(config.theta_size, *size, *networks)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """One step of each copy."""
        B, K, M = theta.shape
        features = self.encoder(delta.flatten(0, 1))  # (B*K, features)
        a = self.recurrence(torch.cat([features, theta.reshape(B * K, M)], dim=1))
        eta = self.decoder(self.output(a))  # the decoder reads the normalised output, not the state
        return torch.sigmoid(a).reshape(B, K, M), eta.unflatten(0, (B, K))


class GradientMStep(nn.Module):
    """N-EM: theta climbs Q by a learned step through the decoder; theta is squashed before it is decoded."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = (config.channels, config.height, config.width)
        self.decoder = Decoder(
            config.theta_size, *size, config.convolutions, config.hidden, config.layer_norm, bias=False
        )
        # the authors leave this scalar to Glorot's initialiser: uniform in +-sqrt(3), sign included; see step_size
        self.learning_rate = nn.Parameter(torch.empty(1, 1))

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


M_STEPS: dict[str, type[RecurrentMStep] | type[GradientMStep]] = {
    "recurrent": RecurrentMStep,
    "gradient": GradientMStep,
}
