"""Neural EM: where it starts, and one step of it, an M-step and an E-step with the losses.

The loop over steps is in `unrolled.py`. Shapes: x (B,C,H,W) in [0, 1]; theta (B,K,M); psi (B,K,C,H,W); gamma
(B,K,1,H,W).
"""

import torch
from torch import Tensor, nn

from neural_em.errors import NeuralEMError
from neural_em.model import mixture
from neural_em.model.config import ModelConfig
from neural_em.model.distributions import Masked, of_frames
from neural_em.model.m_step import M_STEPS
from neural_em.model.networks import initialise, normalise
from neural_em.model.unrolled import Info, State, Unrolled, UnrolledModel
from neural_em.model.window import one_coloured, windowed

__all__ = ["Info", "NeuralEM", "State", "Unrolled"]


class NeuralEM(UnrolledModel):
    """Finds the objects in images and sequences: K components compete for the pixels by unrolled EM.

    Args:
        config: sizes, networks, mixture and loss.
        seed: of the initial weights.
    """

    def __init__(self, config: ModelConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config: ModelConfig = config or ModelConfig()
        self.m_step = M_STEPS[self.config.m_step](self.config)
        initialise(self, torch.Generator().manual_seed(seed))
        if hasattr(self.m_step, "initialise"):
            self.m_step.initialise()
        self.background: nn.Parameter | None = None
        if self.config.prior == "background":
            size = (self.config.channels, self.config.height, self.config.width)
            self.background = nn.Parameter(torch.full(size, 0.5))

    def prior(self, x: Tensor) -> Tensor | None:
        """The prior's mean for what begins with the frame x (B,C,H,W), as `State` holds it; None: the config's number.

        Of a sequence it is that of its first frame: what a step predicts must not know the frame that it predicts.
        """
        if self.config.prior == "median":
            pixels = x.flatten(2).sort(dim=2).values  # not torch.median, which on a GPU is not called deterministic
            return pixels[:, :, (pixels.shape[2] - 1) // 2, None, None]
        return None if self.background is None else self.background.expand_as(x)

    def first_state(self, x: Tensor, gamma: Tensor) -> State:
        """Theta 0, psi 0 or the image's own prior, and gamma."""
        B, K = gamma.shape[:2]
        psi, prior = x.new_zeros(B, K, *x.shape[1:]), self.prior(x)
        theta = x.new_zeros(B, K, self.config.theta_size)
        return State(theta, psi if prior is None else psi + prior.unsqueeze(1), gamma, prior)

    def advance(self, state: State, x_noisy: Tensor, x_next: Tensor, losses: bool) -> tuple[State, Info]:
        """One EM step: an M-step on the noisy frame (B,C,H,W), an E-step and the losses on the clean next one."""
        theta, psi, gamma, prior = state
        if prior is None and isinstance(self.config.prior, str):
            raise NeuralEMError("state.prior is missing; begin with the state that `start` gives")
        delta = self.difference(x_noisy, psi, gamma)
        theta, eta = self.maximise(theta, delta)
        if self.config.one_colour:
            eta = one_coloured(eta)
        if self.config.window is not None:
            eta = self.windowed(eta, self.config.window)
        if prior is None:
            psi, gamma, info = self.assign(eta, x_next, losses)
            return State(theta, psi, gamma), info
        # all that counts for Gaussian pixels is differences: what is added to the prior explains x - prior
        added, gamma, info = self.assign(eta, x_next - prior, losses)
        return State(theta, prior.unsqueeze(1) + added, gamma, prior), info

    def difference(self, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        """What the M-step reads: delta (B,K,C,H,W), each component's error on the pixels assigned to it."""
        delta = gamma * (x.unsqueeze(1) - psi)
        return normalise(delta.flatten(0, 1)).view_as(delta) if self.config.normalize_input else delta

    def maximise(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The M-step: new theta, and natural parameters eta (B,K,C,H,W), or what else the pixels are made of."""
        return self.m_step(theta, delta)

    def windowed(self, eta: Tensor, share: float) -> Tensor:
        """Eta in windows whose radius is a share of the frame's shorter side."""
        return windowed(eta, share)

    def assign(self, eta: Tensor, x: Tensor, losses: bool = True) -> tuple[Tensor, Tensor, Info]:
        """The E-step and the losses on the frame x (B,C,H,W) for natural parameters eta: psi, gamma, losses (B,).

        Of masked pixels psi has the mask as one more channel; what is given back is the frame that it expects.
        """
        config, distribution = self.config, self.distribution
        masked = distribution if isinstance(distribution, Masked) else None
        psi = distribution.mean(eta)
        log = masked.log_probability(x.unsqueeze(1), psi) if masked else None  # for E-step and loss
        gamma = mixture.e_step(mixture.pixel_likelihood(distribution, x, psi, config.channel_rule, log))
        if not config.gamma_gradient:
            gamma = gamma.detach()
        frame = masked.frame(psi) if masked else psi
        if not losses:
            return frame, gamma, Info(*[x.new_zeros(len(x))] * 4)
        intra = mixture.intra_loss(distribution, x, psi, gamma, log)
        inter = mixture.inter_loss(distribution, psi, gamma)
        bound = mixture.upper_bound(of_frames(distribution), x, frame.detach(), masked.prior if masked else None)
        return frame, gamma, Info(intra + config.inter_weight * inter, intra, inter, bound)

    def reassign(self, state: State) -> State:
        """The state after an E-step on the frame that its own psi make together, for want of a real one."""
        psi = state.psi if state.prior is None else state.psi - state.prior.unsqueeze(1)
        distribution = self.distribution
        x = distribution.together(psi)
        if isinstance(distribution, Masked):
            likelihood = distribution.frame_likelihood(x, psi)
        else:
            likelihood = mixture.pixel_likelihood(distribution, x, psi, self.config.channel_rule)
        return state._replace(gamma=mixture.e_step(likelihood))
