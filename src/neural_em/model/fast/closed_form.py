"""E-step and losses with their gradient written out: a third of the passes over memory that autograd makes of them.

On any device; the fused GPU kernels in `kernels/assignment.py` compute the same.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from neural_em.errors import NeuralEMError
from neural_em.model.distributions import CLIP, Bernoulli, Gaussian, Masked, PixelDistribution
from neural_em.model.mixture import EPSILON, e_step, pixel_likelihood, upper_bound


def numbers_of(distribution: PixelDistribution, weight: float) -> dict[str, Any] | None:
    """What the gradients depend on, with the weight of the inter-cluster loss; nothing for another distribution."""
    if type(distribution) is Bernoulli:
        p = distribution.prior
        constant = sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
        return {"PRIOR": p, "WEIGHT": weight, "WIDTH": 1.0, "CONSTANT": constant, "GAUSSIAN": False}
    if type(distribution) is Gaussian or type(distribution) is Masked:  # the latter in the kernels alone
        numbers = {"PRIOR": distribution.prior, "WEIGHT": weight, "WIDTH": distribution.deviation}
        return numbers if type(distribution) is Masked else {**numbers, "CONSTANT": 0.0, "GAUSSIAN": True}
    return None


def covers(x: Tensor, numbers: dict[str, Any], through: bool, channels: str) -> bool:
    """Whether the gradient is written out for frames x (B,C,H,W) and this rule for channels.

    Through the assignments of several channels' pixels it is so for a product of Gaussians alone.
    """
    return x.shape[1] == 1 or not through or (numbers["GAUSSIAN"] and channels == "product")


def refuse_watched(gradient: Tensor | None) -> None:
    """Refuses a backward pass from the losses that are only watched: it would give no gradient."""
    if gradient is not None:
        raise NeuralEMError("only the total loss has a gradient on the fast path; use the plain model for another loss")


class Assignment(torch.autograd.Function):
    """One step's psi, gamma (B,K,1,H,W), total loss (B,) and, only to watch, intra, inter and bound (3,B)."""

    @staticmethod
    def forward(ctx: Any, eta: Tensor, x: Tensor, distribution: PixelDistribution, numbers: dict[str, Any],
                through: bool, losses: bool, channels: str) -> tuple[Tensor, ...]:  # fmt: skip
        """From eta (B,K,C,H,W), the frame x (B,C,H,W) and the rule for channels; see `kernels.Assignment`."""
        frame = x.unsqueeze(1)
        psi = distribution.mean(eta)
        if psi is eta:
            psi = eta.clone()
        likelihood = pixel_likelihood(distribution, x, psi, channels)
        gamma = e_step(likelihood)
        held, every = [likelihood] if through else [], (1, 2, 3, 4)
        total, watched = x.new_zeros(len(x)), x.new_zeros(3, len(x))
        if losses:
            log, kl = distribution.log_probability(frame, psi), distribution.kl_from_prior(psi)
            intra, inter = -(gamma * log).sum(dim=every), ((1 - gamma) * kl).sum(dim=every)
            watched = torch.stack([intra, inter, upper_bound(distribution, x, psi)])
            total = intra + numbers["WEIGHT"] * inter
            held += [part.sum(dim=2, keepdim=True) for part in (log, kl)] if through else []
        ctx.save_for_backward(psi, gamma, x, *held)
        ctx.set_materialize_grads(False)
        ctx.numbers, ctx.losses = numbers, losses
        if not through:
            ctx.mark_non_differentiable(gamma)
        return psi, gamma, total, watched

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_psi: Tensor | None, g_gamma: Tensor | None, g_total: Tensor | None, other: Any) -> Any:
        refuse_watched(other)
        psi, gamma, x, *held = ctx.saved_tensors
        g_total = g_total if ctx.losses else None  # steps without losses have none to go back from
        numbers, frame = ctx.numbers, x.unsqueeze(1)
        slope = psi.new_zeros(()) if g_psi is None else g_psi  # by psi, what does not come from the losses
        if held:
            slope = slope + _through_gamma(g_gamma, g_total, gamma, frame, psi, held, numbers)
        gradient = slope if numbers["GAUSSIAN"] else slope * psi * (1 - psi)
        if g_total is not None:
            losses = _of_losses(frame, psi, gamma, numbers)
            gradient = torch.addcmul(gradient, losses, g_total.reshape(-1, 1, 1, 1, 1))
        return gradient.expand_as(psi), None, None, None, None, None, None


def _of_losses(x: Tensor, psi: Tensor, gamma: Tensor, numbers: dict[str, Any]) -> Tensor:
    """The gradient by eta of intra + WEIGHT * inter at fixed gamma."""
    prior, weight = numbers["PRIOR"], numbers["WEIGHT"]
    if numbers["GAUSSIAN"]:
        return weight * (1 - gamma) * (psi - prior) - gamma * (x - psi)
    # d log psi / d eta = 1 - psi and d log(1 - psi) / d eta = -psi, but 0 where the logarithm is clipped
    off = psi * (1 - psi >= CLIP)
    other = weight * (1 - gamma)
    gradient = gamma.mul(1 - x).add_(other, alpha=1 - prior).mul_(off)
    on = (1 - psi) * (psi >= CLIP)
    return gradient.sub_(gamma.mul(x).add_(other, alpha=prior).mul_(on))


def _through_gamma(
    g_gamma: Tensor | None, g_total: Tensor | None, gamma: Tensor, x: Tensor, psi: Tensor, held: list[Tensor],
    numbers: dict[str, Any],
) -> Tensor:  # fmt: skip
    """The gradient by psi of what reaches the assignments: gamma_k = P_k / sum P."""
    likelihood = held[0]
    wanted = torch.zeros_like(gamma) if g_gamma is None else g_gamma
    if g_total is not None:
        wanted = torch.addcmul(wanted, torch.add(*held[1:], alpha=numbers["WEIGHT"]), -g_total.reshape(-1, 1, 1, 1, 1))
    wanted = wanted - (gamma * wanted).sum(dim=1, keepdim=True)
    wanted = wanted * (gamma / (likelihood + EPSILON))  # gamma / P = 1 / sum P
    if numbers["GAUSSIAN"]:
        return wanted * likelihood * (x - psi) / numbers["WIDTH"] ** 2
    return wanted * (2 * x - 1)
