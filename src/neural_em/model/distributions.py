"""Pixel distributions P(x | psi): log-probability, likelihood for the E-step, KL divergence from the pixel prior.

The paper's two are exponential families: the network gives the natural parameter eta, psi is the mean, and
d log P(x | psi) / d eta = x - psi, which is what the M-step climbs. Another one is a class and a line in
`DISTRIBUTIONS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from neural_em.errors import check_number

CLIP = 1e-6  # probabilities are kept this far from 0 inside logarithms
ON = 0.1  # in a rollout a binary pixel is 1 where some component gives it more than this, as in the authors' code


class PixelDistribution(Protocol):
    """What the mixture needs to know about its pixels; all functions but `together` are elementwise (see `Masked`)."""

    def mean(self, eta: Tensor) -> Tensor:
        """Psi, from what the network puts out."""

    def likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        """P(x | psi), as the E-step weighs it."""

    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        """Log P(x | psi) up to a constant, as the loss counts it."""

    def kl_from_prior(self, psi: Tensor) -> Tensor:
        """KL divergence from the pixel prior P(x) to P(x | psi)."""

    def rounded(self, psi: Tensor) -> Tensor:
        """Psi as pixels that a frame can have."""

    def together(self, psi: Tensor) -> Tensor:
        """The frame (B,C,H,W) that all components' predictions psi (B,K,C,H,W) make together."""


@dataclass(frozen=True)
class Bernoulli:
    """Binary pixels: psi is the probability of 1; the prior is Bernoulli too."""

    prior: float = 0.0

    def __post_init__(self) -> None:
        check_number("model.prior", self.prior, "a probability between 0 and 1", 0, 1)

    def mean(self, eta: Tensor) -> Tensor:
        return torch.sigmoid(eta)

    def likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        """Probability of x; linear in x, so grey values count as a share of ones."""
        return x * psi + (1 - x) * (1 - psi)

    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        """Log-probability (the negative binary cross-entropy), clipped inside the logarithms."""
        return x * torch.log(psi.clamp(min=CLIP)) + (1 - x) * torch.log((1 - psi).clamp(min=CLIP))

    def kl_from_prior(self, psi: Tensor) -> Tensor:
        """KL(Bernoulli(prior) || Bernoulli(psi)); for a prior of 0 it is -log(1 - psi)."""
        p = self.prior
        kl = torch.zeros_like(psi)
        if p < 1:
            kl = (1 - p) * (math.log(1 - p) - torch.log((1 - psi).clamp(min=CLIP)))
        if p > 0:
            kl = kl + p * (math.log(p) - torch.log(psi.clamp(min=CLIP)))
        return kl

    def rounded(self, psi: Tensor) -> Tensor:
        return psi.round()

    def together(self, psi: Tensor) -> Tensor:
        """1 where some component predicts something."""
        return (psi.amax(dim=1) > ON).to(psi.dtype)


@dataclass(frozen=True)
class Gaussian:
    """Grey pixels: psi is the mean. The loss has unit deviation; the E-step a deviation of its own."""

    prior: float = 0.0
    deviation: float | Tensor = 0.25  # a number, or one () that changes in training

    def mean(self, eta: Tensor) -> Tensor:
        return eta

    def likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        """Density of N(psi, deviation^2); its constant matters beside the E-step's epsilon."""
        constant = 1 / (self.deviation * math.sqrt(2 * math.pi))
        return constant * torch.exp((x - psi).square() * (-0.5 / self.deviation**2))

    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        """Log-density of N(psi, 1) without its constant."""
        return -0.5 * (x - psi).square()

    def kl_from_prior(self, psi: Tensor) -> Tensor:
        """KL(N(prior, 1) || N(psi, 1))."""
        return 0.5 * (psi - self.prior).square()

    def rounded(self, psi: Tensor) -> Tensor:
        return psi.clamp(0, 1)

    def together(self, psi: Tensor) -> Tensor:
        """The prior and what all components add to it."""
        return self.prior + (psi - self.prior).sum(dim=1)


@dataclass(frozen=True)
class Masked(Gaussian):
    """Coloured objects: a component says where its object is, and which colour it has there.

    Here psi has one channel more than a frame, the log-odds that the object covers the pixel. Where it does, the pixel
    is Gaussian around its colour, and elsewhere around the prior. Likelihood, log-probability and KL are one number a
    pixel; `frame_likelihood`, `rounded` and `together` are of frames, without a mask, as the Gaussian's.
    """

    def frame(self, psi: Tensor) -> Tensor:
        """The frame (B,K,C,H,W) that is expected of psi (B,K,C+1,H,W)."""
        return self.prior + torch.sigmoid(psi[:, :, -1:]) * (psi[:, :, :-1] - self.prior)

    def likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        """Likelihood as a share of the best component's, so that one is the best however unlikely the pixel is."""
        return shares(self.log_probability(x, psi))

    def frame_likelihood(self, x: Tensor, psi: Tensor) -> Tensor:
        """The same (B,K,1,H,W) of frames x (B,C,H,W) that psi (B,K,C,H,W) predict."""
        return shares((x.unsqueeze(1) - psi).square().sum(dim=2, keepdim=True) * (-0.5 / self.deviation**2))

    def log_probability(self, x: Tensor, psi: Tensor) -> Tensor:
        """Log of the mixture of object and ground, without the Gaussians' constant."""
        covered, colour = psi[..., -1:, :, :], psi[..., :-1, :, :]
        scale = 0.5 / self.deviation**2
        object_, ground = ((x - mean).square().sum(dim=-3, keepdim=True) * scale for mean in (colour, self.prior))
        return _log_sum(covered - object_, -ground) - _log_sum(covered, covered.new_zeros(()))

    def kl_from_prior(self, psi: Tensor) -> Tensor:
        """KL from a pixel that is the prior itself: -log P(prior | psi)."""
        return -self.log_probability(psi.new_full((psi.shape[-3] - 1, 1, 1), self.prior), psi)


def shares(log: Tensor) -> Tensor:
    """Likelihoods (B,K,...) from their logarithms, as shares of the best component's."""
    return torch.exp(log - log.detach().amax(dim=1, keepdim=True))


def _log_sum(a: Tensor, b: Tensor) -> Tensor:
    """Log of exp(a) + exp(b), b finite; on a CPU without gradients faster than torch where they are far apart."""
    if a.is_cuda or torch.is_grad_enabled():
        return torch.logaddexp(a, b)
    apart = (a - b).abs_().clamp_(max=80)  # beyond 87 the exponential is a denormal number in float32, and slow
    return torch.maximum(a, b).add_(apart.neg_().exp_().log1p_())


def of_frames(pixels: PixelDistribution) -> PixelDistribution:
    """The distribution of frames, given that of the components' pixels."""
    return Gaussian(pixels.prior, pixels.deviation) if isinstance(pixels, Masked) else pixels


def _prior(config: Any) -> float:
    """The prior's number; one of the image's own is taken away from frames and predictions before."""
    return 0.0 if isinstance(config.prior, str) else config.prior


# the choices of `ModelConfig.distribution`, each made from a model's config, or refusing it
DISTRIBUTIONS: dict[str, Callable[[Any], PixelDistribution]] = {
    "bernoulli": lambda config: Bernoulli(config.prior),  # the config refuses names
    "gaussian": lambda config: Gaussian(_prior(config), config.e_step_deviation),
    "masked": lambda config: Masked(_prior(config), config.e_step_deviation),
}
