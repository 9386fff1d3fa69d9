"""Tagger, the paper's comparator (Greff, Rasmus, Berglund, Hao, Schmidhuber, Valpola: Tagger, NIPS 2016).

There is no E-step: one network reads, of each component, its picture z and its mask m, how well z explains the noisy
image and how z would have to change, and puts out a new z and a new m. Here z is psi and m is gamma; theta is z before
its sigmoid. P is the number of values in an image.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_em.errors import refuse
from neural_em.fields import Check, choice, integer, number, several
from neural_em.model import mixture
from neural_em.model.config import MAX_SIZE, BaseConfig
from neural_em.model.networks import Dense
from neural_em.model.unrolled import Info, State, UnrolledModel

EPSILON = 1e-10  # of the norms, as in the authors' code
SOFT = 1e-4  # probabilities inside logarithms stay so far from 0 and 1, likewise


def layer_norm(x: Tensor) -> Tensor:
    """Each row of (N,units) to zero mean and unit variance."""
    return F.layer_norm(x, x.shape[1:], eps=EPSILON)


def batch_norm(x: Tensor) -> Tensor:
    """Each column of (N,units), N = B*K: the statistics are always those of the batch itself."""
    return torch.batch_norm(x, None, None, None, None, True, 0.0, EPSILON, True)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {"layer": layer_norm, "batch": batch_norm}


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(BaseConfig):
    """Tagger for binary images; the defaults are its paper's for the shapes. See also the fields of `BaseConfig`.

    Attributes:
        layers: units of the first layer and of the ladder above it.
        norm: of every layer: ``layer``, or ``batch``, over all components and all images of a batch, also when it is
            scored: a score then depends on which images share a batch.
        start: what psi starts with: the mean of its paper's images.
    """

    kind: str = "tagger"
    height: int = 20
    width: int = 20
    loss_steps: Literal["every", "last", "mean"] | tuple[float, ...] = "mean"
    steps: int = 3
    layers: tuple[int, ...] = (2000, 1000, 500)
    norm: Literal["layer", "batch"] = "layer"
    start: float = 0.26

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "layers": several(integer(1, MAX_SIZE), "the units of at least two layers"),
        "norm": choice(NORMS),
        "start": number("a number between 0 and 1", 0, 1),
    }

    def check_together(self) -> None:
        super().check_together()
        if not 2 <= len(self.layers) <= 12:
            refuse("model.layers", "the units of 2 to 12 layers", len(self.layers))
        if self.noise.kind not in ("none", "bit-flips") or self.noise.probability >= 0.5:
            got = f"{self.noise.kind} with probability {self.noise.probability:g}"
            refuse("model.noise", "none, or bit-flips with a probability below 0.5", got)

    @property
    def theta_size(self) -> int:
        """As many as an image has values."""
        return self.channels * self.height * self.width

    @property
    def batch_matters(self) -> bool:  # type: ignore[override]
        """Batch norm takes its statistics from them."""
        return self.norm == "batch"


class Tagger(UnrolledModel):
    """Finds the objects in binary images: K components improve their pictures and masks together."""

    noise_each_step: ClassVar[bool] = False  # all steps read the same noisy image
    exports: ClassVar[bool] = False

    def __init__(self, config: TaggerConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config: TaggerConfig = config or TaggerConfig()
        P, layers = self.config.theta_size, self.config.layers
        self.norm = NORMS[self.config.norm]
        self.project = Dense(4 * P, layers[0], bias=False)
        self.offset = nn.Parameter(torch.zeros(layers[0]))
        self.ladder = Ladder(layers, self.norm)
        self.picture = Dense(layers[0], P, bias=False)
        self.picture_scale = nn.Parameter(torch.ones(P))
        self.picture_offset = nn.Parameter(torch.zeros(P))
        self.mask = Dense(layers[0], P // self.config.channels, bias=False)
        self.mask_scale = nn.Parameter(torch.ones(()))
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, Dense):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5, generator=generator)

    def first_assignment(self, normal: Tensor) -> Tensor:
        return normal.softmax(dim=1)

    def first_state(self, x: Tensor, gamma: Tensor) -> State:
        """Psi is the same everywhere; the authors let the first step read it as if it were before its sigmoid."""
        psi = x.new_full((*gamma.shape[:2], *x.shape[1:]), self.config.start)
        return State(psi.flatten(2), psi, gamma)

    def advance(self, state: State, x_noisy: Tensor, x_next: Tensor, losses: bool) -> tuple[State, Info]:
        """One iteration on the noisy image (B,C,H,W); the loss is of the clean one."""
        B, K, C, H, W = state.psi.shape
        u = self.ladder(torch.relu(self.norm(self.project(self.inputs(state, x_noisy))) + self.offset))
        theta = self.picture_scale * self.norm(self.picture(u)) + self.picture_offset  # (B*K,P)
        gamma = (self.mask_scale * self.norm(self.mask(u))).view(B, K, 1, H, W).softmax(dim=1)
        psi = torch.sigmoid(theta).view(B, K, C, H, W)
        state = State(theta.view(B, K, -1), psi, gamma)
        if not losses:
            return state, Info(*[x_next.new_zeros(B)] * 4)
        error = cross_entropy((gamma * psi).sum(dim=1), x_next).flatten(1).mean(dim=1)
        bound = mixture.upper_bound(self.distribution, x_next, psi.detach())
        return state, Info(error, error.detach(), torch.zeros_like(bound), bound)

    def inputs(self, state: State, x: Tensor) -> Tensor:
        """What the network reads of each component (B*K,4P): theta, the gradient towards psi, gamma, the likelihood."""
        theta, psi, gamma, _ = state
        noise = self.config.noise
        x, n = x.unsqueeze(1), 0.0 if noise.kind == "none" else noise.probability  # of a flip
        gradient = z_gradient(psi, gamma, x, n)
        likelihood = torch.softmax(-cross_entropy(flipped(psi, n), x), dim=1)
        parts = (theta, gradient.flatten(2), gamma.expand_as(psi).flatten(2), likelihood.flatten(2))
        return torch.cat(parts, dim=2).flatten(0, 1)


class Ladder(nn.Module):
    """An encoder, and a decoder that joins what comes from above with what the encoder had in the same place."""

    def __init__(self, layers: tuple[int, ...], norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        pairs = list(pairwise(layers))
        self.norm = norm
        self.up = nn.ModuleList([Dense(below, above, bias=False) for below, above in pairs])
        self.offsets = nn.ParameterList([torch.zeros(above) for _, above in pairs])
        self.scale = nn.Parameter(torch.ones(layers[-1]))  # of the top
        self.down = nn.ModuleList([Dense(above, below, bias=False) for below, above in pairs])
        self.combine = nn.ModuleList([Combination(units) for units in layers])

    def forward(self, h: Tensor) -> Tensor:
        lateral = [h]
        for layer, offset in zip(self.up, self.offsets, strict=True):
            lateral.append(self.norm(layer(h)))
            top = lateral[-1] + offset
            h = torch.relu(top)
        u = self.combine[-1](lateral[-1], self.norm((top * self.scale).softmax(dim=1)))
        for i in reversed(range(len(self.down))):
            u = self.combine[i](lateral[i], self.norm(self.down[i](u)))
        return u


class Combination(nn.Module):
    """(lateral - mu) v + mu, where mu and v are a1 sigmoid(a2 u + a3) + a4 u + a5, each with numbers of its own."""

    def __init__(self, units: int) -> None:
        super().__init__()
        first = torch.zeros(5, 2, units)  # a1 to a5, of mu and of v
        first[1] = 1
        self.a = nn.Parameter(first)

    def forward(self, lateral: Tensor, u: Tensor) -> Tensor:
        a1, a2, a3, a4, a5 = self.a
        u = u.unsqueeze(1)  # (N,1,units), for mu and v at once
        both = torch.addcmul(torch.addcmul(a5, a4, u), a1, torch.sigmoid(torch.addcmul(a3, a2, u)))
        mu, v = both.unbind(dim=1)
        return torch.lerp(mu, lateral, v)


def flipped(psi: Tensor, n: float) -> Tensor:
    """The probability that a pixel is 1 after it was flipped with probability n."""
    return psi * (1 - 2 * n) + n


def z_gradient(psi: Tensor, gamma: Tensor, x: Tensor, n: float) -> Tensor:
    """The gradient, with respect to psi, of the log-probability of the noisy image x (B,1,C,H,W) under the mixture."""
    xi = (gamma * flipped(psi, n)).sum(dim=1, keepdim=True).clamp(SOFT, 1 - SOFT)  # without noise it could be 0 or 1
    return gamma * (1 - 2 * n) * (x - xi) / (xi * (1 - xi))  # = ... / (xi - 1 + x) for binary x


def cross_entropy(p: Tensor, x: Tensor) -> Tensor:
    """Of each value x under the probability p, which is kept away from 0 and 1."""
    p = p * (1 - 2 * SOFT) + SOFT
    return -(x * torch.log(p) + (1 - x) * torch.log(1 - p))
