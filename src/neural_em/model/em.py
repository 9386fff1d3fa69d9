"""Neural EM: the mixture, an M-step and the loop that alternates it with the E-step.

Shapes: x (T+1,B,C,H,W) in [0, 1]; theta (B,K,M); psi (B,K,C,H,W); gamma (B,K,1,H,W).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from neural_em import randomness
from neural_em.errors import refuse
from neural_em.model import mixture
from neural_em.model.config import ModelConfig
from neural_em.model.distributions import Bernoulli, Gaussian, PixelDistribution
from neural_em.model.m_step import M_STEPS
from neural_em.model.networks import initialise, normalise
from neural_em.model.noise import NOISES


class State(NamedTuple):
    """What one step hands to the next."""

    theta: Tensor
    psi: Tensor
    gamma: Tensor


class Info(NamedTuple):
    """What is only watched: the losses of one step, for each sample (B,)."""

    total: Tensor
    intra: Tensor
    inter: Tensor
    upper_bound: Tensor


class Unrolled(NamedTuple):
    """A whole unroll: every step's state, every step's losses (means over the batch), and the training loss."""

    theta: Tensor  # (T,B,K,M)
    psi: Tensor  # (T,B,K,C,H,W)
    gamma: Tensor  # (T,B,K,1,H,W)
    total: Tensor  # (T,)
    intra: Tensor
    inter: Tensor
    upper_bound: Tensor
    loss: Tensor  # ()


class NeuralEM(nn.Module):
    """Finds the objects in images and sequences: K components compete for the pixels by unrolled EM.

    Args:
        config: sizes, networks, mixture and loss.
        seed: of the initial weights.
    """

    def __init__(self, config: ModelConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config or ModelConfig()
        self.m_step = M_STEPS[self.config.m_step](self.config)
        initialise(self, torch.Generator().manual_seed(seed))

    @property
    def distribution(self) -> PixelDistribution:
        """The pixels' distribution."""
        if self.config.distribution == "gaussian":
            return Gaussian(self.config.prior, self.config.e_step_deviation)
        return Bernoulli(self.config.prior)

    def start(self, x: Tensor, components: int, gamma: Tensor | None = None,
              generator: torch.Generator | None = None) -> State:  # fmt: skip
        """The state before the first step: all zero but gamma, whose randomness alone tells the components apart.

        Args:
            x: a frame (B,C,H,W); only its shape, type and device matter.
            components: K.
            gamma: the first assignment (B,K,1,H,W); drawn where it is not given.
            generator: what to draw it from.
        """
        B, C, H, W = x.shape
        K = check_components(components)
        if gamma is None:
            draw = torch.randn(B, K, 1, H, W, generator=generator, device=x.device, dtype=x.dtype)
            gamma = random_assignment(draw)
        theta = x.new_zeros(B, K, self.config.theta_size)
        return State(theta, x.new_zeros(B, K, C, H, W), gamma)

    def step(self, state: State, x_noisy: Tensor, x_next: Tensor) -> tuple[State, Info]:
        """One EM step: an M-step on the noisy frame (B,C,H,W), an E-step and the losses on the clean next one.

        For a stream, call it with the previous and the present frame and carry the state along.
        """
        theta, psi, gamma = state
        delta = gamma * (x_noisy.unsqueeze(1) - psi)
        if self.config.normalize_input:
            delta = normalise(delta.flatten(0, 1)).view_as(delta)
        theta, eta = self.m_step(theta, delta)
        psi, gamma, info = self.assign(eta, x_next)
        return State(theta, psi, gamma), info

    def assign(self, eta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Info]:
        """The E-step and the losses on the frame x (B,C,H,W) for natural parameters eta: psi, gamma, losses (B,)."""
        config, distribution = self.config, self.distribution
        psi = distribution.mean(eta)
        gamma = mixture.e_step(mixture.pixel_likelihood(distribution, x, psi, config.channel_rule))
        if not config.gamma_gradient:
            gamma = gamma.detach()
        intra = mixture.intra_loss(distribution, x, psi, gamma)
        inter = mixture.inter_loss(distribution, psi, gamma)
        bound = mixture.upper_bound(distribution, x, psi.detach())
        return psi, gamma, Info(intra + config.inter_weight * inter, intra, inter, bound)

    def unroll(self, x: Tensor, components: int, steps: int | None = None, x_noisy: Tensor | None = None,
               gamma: Tensor | None = None, generator: torch.Generator | None = None,
               check: bool = True) -> Unrolled:  # fmt: skip
        """Runs EM over a sequence once, or over a single image for a number of steps.

        Args:
            x: frames (T+1,B,C,H,W) in [0, 1]; T+1 = 1 is a single image, which is repeated.
            components: K; need not be what the model was trained with.
            steps: T, where fewer steps than frames are wanted, or for a single image.
            x_noisy: the noisy frames, (T,B,C,H,W) or longer, to replay a run; drawn where they are not given.
            gamma: the first assignment (B,K,1,H,W), likewise.
            generator: what to draw them from.
            check: look at the values of x; costs a pass over the data and, on a GPU, a wait.
        """
        x = self.frames(x, steps, check)
        T, (B, C, H, W), K = x.shape[0] - 1, x.shape[1:], check_components(components)
        if x_noisy is None:
            x_noisy = self.add_noise(x[:T], generator)
        check_shape("x_noisy", x_noisy[:T], (T, B, C, H, W))
        if gamma is not None:
            check_shape("gamma", gamma, (B, K, 1, H, W))
        state = self.start(x[0], K, gamma, generator)
        states, infos = [], []
        for t in range(T):
            state, info = self.step(state, x_noisy[t], x[t + 1])
            states.append(state)
            infos.append(info)
        theta, psi, gammas = (torch.stack(parts) for parts in zip(*states, strict=True))
        total, intra, inter, bound = (torch.stack(parts).mean(dim=1) for parts in zip(*infos, strict=True))
        loss = (total * self.step_weights(T).to(total)).sum()
        return Unrolled(theta, psi, gammas, total, intra, inter, bound, loss)

    def forward(self, x: Tensor, components: int, steps: int | None = None) -> Unrolled:
        """The unroll, with noise and start drawn from torch's own generator."""
        return self.unroll(x, components, steps)

    def draw(self, x: Tensor, components: int, keys: Tensor, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """Noisy frames (T,B,C,H,W) and the first assignment (B,K,1,H,W) that belong to the samples' keys (B,).

        The same keys give the same draws on any device, in any batch, and for the first frames of any length.
        """
        x = self.frames(x, steps, check=False)[:-1]
        T, B, C, H, W = x.shape
        K = check_components(components)
        function, needed = NOISES[self.config.noise.kind]
        times = torch.arange(T, device=x.device).unsqueeze(1)
        frame_keys = randomness.fold(keys.to(x.device).unsqueeze(0), times)  # (T,B)
        u = torch.stack([randomness.uniform(frame_keys, C * H * W, stream=i) for i in range(needed)]) if needed else x
        x_noisy = function(x, u.reshape(max(needed, 1), T, B, C, H, W), self.config.noise.probability)
        normal = randomness.normal(keys.to(x.device), K * H * W).reshape(B, K, 1, H, W)
        return x_noisy, random_assignment(normal.to(x.dtype))

    def add_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames with fresh noise."""
        function, needed = NOISES[self.config.noise.kind]
        u = torch.rand(max(needed, 1), *x.shape, generator=generator, device=x.device) if needed else x
        return function(x, u, self.config.noise.probability)

    def frames(self, x: Tensor, steps: int | None, check: bool = True) -> Tensor:
        """The frames that an unroll of so many steps sees: T+1 of them, a single image repeated."""
        C, H, W = self.config.channels, self.config.height, self.config.width
        if x.dim() != 5 or tuple(x.shape[2:]) != (C, H, W):
            refuse("x", f"shape (T+1, B, {C}, {H}, {W})", tuple(x.shape))
        if x.shape[0] < 1 or x.shape[1] < 1 or not x.is_floating_point():
            refuse("x", "at least one frame and one sample of floating point numbers", f"{tuple(x.shape)} {x.dtype}")
        if check and not bool(((x >= 0) & (x <= 1)).all()):
            refuse("x", "numbers between 0 and 1", "not-a-number" if bool(x.isnan().any()) else
                   f"values from {float(x.min()):g} to {float(x.max()):g}")  # fmt: skip
        if x.shape[0] == 1:
            steps = self.config.steps if steps is None else steps
            if steps < 1:
                refuse("steps", "an integer of at least 1", steps)
            return x.expand(steps + 1, -1, -1, -1, -1)
        if steps is not None and not 1 <= steps < x.shape[0]:
            refuse("steps", f"from 1 to {x.shape[0] - 1} for {x.shape[0]} frames", steps)
        return x if steps is None else x[: steps + 1]

    def step_weights(self, steps: int) -> Tensor:
        """The weight of each step's loss (T,)."""
        chosen = self.config.loss_steps
        if chosen == "every":
            return torch.ones(steps)
        if chosen == "last":
            return torch.ones(steps).cumsum(0).eq(steps).float()
        if len(chosen) != steps:
            refuse("model.loss_steps", f"{steps} weights for {steps} steps", f"{len(chosen)} weights")
        return torch.tensor(chosen)


def random_assignment(normal: Tensor) -> Tensor:
    """|normal| (B,K,1,H,W) normalised over K; exactly 1 where there is one component."""
    if normal.shape[1] == 1:
        return torch.ones_like(normal)
    gamma = normal.abs() + 1e-20  # K zeros at once cannot be divided
    return gamma / gamma.sum(dim=1, keepdim=True)


def check_components(components: int) -> int:
    """K, if it is one."""
    if isinstance(components, bool) or not isinstance(components, int) or components < 1:
        refuse("components", "an integer >= 1", repr(components))
    return components


def check_shape(name: str, array: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses an array of another shape."""
    if tuple(array.shape) != shape:
        refuse(name, f"shape {shape}", tuple(array.shape))
