"""The spatial mixture as pure functions: E-step, intra- and inter-cluster loss, upper bound.

Shapes: x (B,C,H,W), psi (B,K,C,H,W), gamma (B,K,1,H,W). Losses are one number a sample, (B,), in nats.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from neural_em.model.distributions import PixelDistribution, shares

EPSILON = 1e-6
VISIBLE = 0.1  # a pixel is foreground where some channel is so far from the prior
CHANNEL_RULES: dict[str, Callable[..., Tensor]] = {"product": torch.prod, "sum": torch.sum}


def foreground(x: Tensor, prior: Tensor | float) -> Tensor:
    """Where (...,H,W) there is something: frames (...,C,H,W) are not what the prior says."""
    return (x - prior).abs().amax(dim=-3) > VISIBLE


def e_step(likelihood: Tensor) -> Tensor:
    """Assignment gamma (B,K,1,H,W) under uniform mixing weights; sums to 1 over K."""
    likelihood = likelihood + EPSILON  # no component is ever ruled out for good
    return likelihood / likelihood.sum(dim=1, keepdim=True)


def pixel_likelihood(
    distribution: PixelDistribution, x: Tensor, psi: Tensor, channels: str = "product", log: Tensor | None = None
) -> Tensor:
    """P(x_i | psi_ik) of whole pixels (B,K,1,H,W): the product over channels, or the authors' sum.

    With their log-probability, if it was made before: as shares of the best component's.
    """
    likelihood = distribution.likelihood(x.unsqueeze(1), psi) if log is None else shares(log)
    return likelihood if likelihood.shape[2] == 1 else CHANNEL_RULES[channels](likelihood, dim=2, keepdim=True)


def intra_loss(
    distribution: PixelDistribution, x: Tensor, psi: Tensor, gamma: Tensor, log: Tensor | None = None
) -> Tensor:
    """How badly each component predicts the pixels assigned to it (B,); ``log`` as for `pixel_likelihood`."""
    log = distribution.log_probability(x.unsqueeze(1), psi) if log is None else log
    return -(gamma * log).sum(dim=(1, 2, 3, 4))


def inter_loss(distribution: PixelDistribution, psi: Tensor, gamma: Tensor) -> Tensor:
    """How much each component says about the pixels not assigned to it (B,)."""
    return ((1 - gamma) * distribution.kl_from_prior(psi)).sum(dim=(1, 2, 3, 4))


def upper_bound(distribution: PixelDistribution, x: Tensor, psi: Tensor, prior: float | None = None) -> Tensor:
    """Next-step prediction error (B,), summed over the pixels."""
    return prediction_error(distribution, x, psi, prior).sum(dim=(1, 2, 3))


def prediction_error(distribution: PixelDistribution, x: Tensor, psi: Tensor, prior: float | None = None) -> Tensor:
    """Error (B,C,H,W) of the next frame with psi = max over k, which no E-step has touched.

    With a prior psi is the farthest from it instead: objects in colour may be darker than their ground.
    """
    if prior is None:
        most = psi.amax(dim=1)
    else:
        distance = (psi - prior).square().sum(dim=2, keepdim=True)
        far = distance.max(dim=1, keepdim=True).indices  # faster than argmax
        most = psi.gather(1, far.expand(-1, 1, *psi.shape[2:])).squeeze(1)
    return -distribution.log_probability(x, most)
