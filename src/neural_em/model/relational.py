"""R-NEM's M-step: RNN-EM whose components look at each other before they change (van Steenkiste et al., 2018).

Each component k adds up what the others send it: E_k = sum over j != k of a_kj e_kj, where effect e_kj and attention
a_kj are functions of the pair (k, j). The state is updated from its encoding, from E_k and from what delta_k shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_em.model.networks import Activation, Decoder, Dense, Encoder, recurrent

if TYPE_CHECKING:
    from neural_em.model.config import ModelConfig

ATTENTION_UNITS = 100


class RelationalMStep(nn.Module):
    """Encoder, interaction of all pairs, recurrent layer, decoder; all components share the weights."""

    differentiated_twice: ClassVar[bool] = False
    own_fields: ClassVar[tuple[str, ...]] = ("attention",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        M, networks = config.theta_size, (config.convolutions, config.hidden, config.layer_norm)
        self.encoder = Encoder(config.channels, config.height, config.width, *networks)
        self.interaction = Interaction(M, config.layer_norm, config.attention)
        self.recurrence = Dense(2 * M + self.encoder.outputs, M)
        self.output = Activation(M, "sigmoid", config.layer_norm)
        self.decoder = Decoder(M, config.outputs, config.height, config.width, *networks)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        B, K, M = theta.shape
        features = self.encoder(delta.flatten(0, 1))  # (B*K, features)
        encoded, effect, _ = self.interaction(theta)
        a = self.recurrence(torch.cat([encoded.flatten(0, 1), effect.flatten(0, 1), features], dim=1))
        out, state = recurrent(self.output, a)
        eta = self.decoder(out)  # the decoder reads the normalised output, not the state
        return state.reshape(B, K, M), eta.unflatten(0, (B, K))

    def attention(self, theta: Tensor) -> Tensor:
        """How much each component k heeds each other one j (B,K,K), in a state; 0 for itself."""
        B, K, _ = theta.shape
        weights = theta.new_zeros(B, K, K)
        if K > 1:
            weights[:, ~torch.eye(K, dtype=torch.bool, device=theta.device)] = self.interaction(theta)[2].reshape(B, -1)
        return weights


class Interaction(nn.Module):
    """What components do to each other, pair by pair."""

    def __init__(self, size: int, layer_norm: bool, attention: bool) -> None:
        super().__init__()
        self.encode = nn.Sequential(Dense(size, size), Activation(size, "relu", layer_norm))
        self.pair = Pairs(size)
        self.core = Activation(size, "relu", layer_norm)
        self.effect = nn.Sequential(Dense(size, size), Activation(size, "relu", layer_norm))
        self.attend: nn.Sequential | None = None
        if attention:
            hidden = Dense(size, ATTENTION_UNITS), Activation(ATTENTION_UNITS, "tanh", layer_norm)
            self.attend = nn.Sequential(*hidden, Dense(ATTENTION_UNITS, 1))

    def forward(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encodings and effects (B,K,M) of theta (B,K,M), and the attention (B,K,K-1) to the others in their order.

        In an exported program the attention is (B,K,K), 0 to itself.
        """
        B, K, M = theta.shape
        encoded = self.encode(theta.reshape(B * K, M)).view(B, K, M)
        if torch.compiler.is_exporting():  # one graph for any K: a component is also its own neighbour, with weight 0
            own, other = self.pair.weight.chunk(2, dim=1)
            pairs = F.linear(encoded, own, self.pair.bias).unsqueeze(2) + F.linear(encoded, other).unsqueeze(1)
            attention = (1 - torch.eye(K, dtype=encoded.dtype, device=encoded.device)).expand(B, K, K)
        elif K == 1:
            return encoded, torch.zeros_like(encoded), theta.new_zeros(B, 1, 0)
        else:
            pairs, attention = self.pair(encoded), theta.new_ones(B, K, K - 1)
        core = self.core(pairs.flatten(0, 2))  # one row a pair
        if self.attend is not None:
            attention = attention * torch.sigmoid(self.attend(core)).view_as(attention)
        return encoded, (attention.unsqueeze(-1) * self.effect(core).view_as(pairs)).sum(dim=2), attention


class Pairs(nn.Module):
    """Fully connected from each component and each other one, W [h_k; h_j] + b: (B,K,M) to (B,K,K-1,M).

    W [h_k; h_j] = W_1 h_k + W_2 h_j: every component is multiplied once, and no pair is written out twice as wide.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, 2 * size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        own, other = weight.chunk(2, dim=1)
        return F.linear(x, own, bias).unsqueeze(2) + F.linear(x, other)[:, others(x.shape[1], x.device)]


def others(K: int, device: torch.device) -> Tensor:
    """For each component k all j != k, in their order: (K,K-1)."""
    j = torch.arange(K - 1, device=device)
    return j + (j >= torch.arange(K, device=device).unsqueeze(1))
