"""What models have in common whose components explain an image, or a sequence, step by step: all but the step itself.

Shapes: x (T+1,B,C,H,W) in [0, 1]; theta (B,K,M); psi (B,K,C,H,W); gamma (B,K,1,H,W).
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from neural_em import randomness
from neural_em.errors import check_integer, refuse
from neural_em.model import inference
from neural_em.model.config import BaseConfig
from neural_em.model.distributions import DISTRIBUTIONS, PixelDistribution
from neural_em.model.noise import NOISES, noisy

MOST = 1 << 20  # components or steps: more is a slip of the finger, refused before it takes memory


class State(NamedTuple):
    """What one step hands to the next."""

    theta: Tensor
    psi: Tensor
    gamma: Tensor
    prior: Tensor | None = None  # (B,C,1,1) or (B,C,H,W), where it is the image's own and not the config's number


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


class UnrolledModel(nn.Module):
    """Frames, noise, starts, the loop and the weights of its losses; a model adds ``first_state`` and ``advance``."""

    config: BaseConfig
    noise_each_step: ClassVar[bool] = True  # whether every step draws its own noise; else a sample keeps its first one
    deviation: Tensor | None = None  # () of the E-step, in place of the config's while training anneals it

    def first_assignment(self, normal: Tensor) -> Tensor:
        """The first gamma: |normal| (B,K,1,H,W) normalised over K, exactly 1 where there is one component."""
        gamma = normal.abs() + 1e-20  # K zeros at once cannot be divided
        return gamma / gamma.sum(dim=1, keepdim=True)

    def first_state(self, x: Tensor, gamma: Tensor) -> State:
        """The state before the first step on frames such as x (B,C,H,W)."""
        raise NotImplementedError

    def advance(self, state: State, x_noisy: Tensor, x_next: Tensor, losses: bool) -> tuple[State, Info]:
        """One step, unchecked; see ``step``."""
        raise NotImplementedError

    @property
    def distribution(self) -> PixelDistribution:
        """The pixels' distribution; of what is added to the prior, where that is the image's own."""
        made: Any = DISTRIBUTIONS[self.config.distribution](self.config)
        return made if self.deviation is None else replace(made, deviation=self.deviation)

    def start(self, x: Tensor, components: int, gamma: Tensor | None = None,
              generator: torch.Generator | None = None) -> State:  # fmt: skip
        """The state before the first step; the randomness of gamma alone tells the components apart.

        Args:
            x: the first frame (B,C,H,W); only its shape, type and device matter, and its prior if it has its own.
            components: K.
            gamma: the first assignment (B,K,1,H,W); drawn where it is not given.
            generator: what to draw it from.
        """
        K = check_integer("components", components, 1, MOST)
        self._check_frames(x, "B")
        warn_if_emulated(x)
        B, _, H, W = x.shape
        if gamma is not None:
            check_array("gamma", gamma, (B, K, 1, H, W), x)
        else:
            draw = torch.randn(B, K, 1, H, W, generator=generator, device=x.device, dtype=x.dtype)
            gamma = self.first_assignment(draw)
        return self.first_state(x, gamma)

    def step(
        self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True
    ) -> tuple[State, Info]:
        """One step: the components read the noisy frame (B,C,H,W); the losses are of the clean next one.

        For a stream, call it with the previous frame (after ``add_noise``) and the present one, and carry the state.

        Args:
            state: what ``start`` or the last step gave.
            x_noisy: the frame that the components read.
            x_next: the frame that they are to explain; the same one, without noise, for a single image.
            check: look at the frames' shapes and values; on a GPU it costs a wait.
            losses: where they are not wanted, they need not be computed and may be given as 0.
        """
        if check:
            B, _, *frame = state.psi.shape
            for name, array in (("x_noisy", x_noisy), ("x_next", x_next)):
                check_array(name, array, (B, *frame), next(self.parameters()))
                check_values(name, array)
        return self.advance(state, x_noisy, x_next, losses)

    def unroll(self, x: Tensor, components: int, steps: int | None = None, x_noisy: Tensor | None = None,
               gamma: Tensor | None = None, generator: torch.Generator | None = None, check: bool = True,
               watch: bool = True) -> Unrolled:  # fmt: skip
        """Runs over a sequence once, or over a single image for a number of steps.

        Args:
            x: frames (T+1,B,C,H,W) in [0, 1]; T+1 = 1 is a single image, which is repeated.
            components: K; need not be what the model was trained with.
            steps: T, where fewer steps than frames are wanted, or for a single image.
            x_noisy: the noisy frames, (T,B,C,H,W) or longer, to replay a run; drawn where they are not given.
            gamma: the first assignment (B,K,1,H,W), likewise.
            generator: what to draw them from.
            check: look at the values of x, x_noisy and gamma; costs a pass over them and, on a GPU, a wait.
            watch: give the states and losses of all steps; else the last state alone, and 0 may stand for the losses
                of steps without weight.
        """
        x = self.frames(x, steps, check)
        T, (B, C, H, W) = x.shape[0] - 1, x.shape[1:]
        weights = self.step_weights(T, x)
        if x_noisy is None:
            x_noisy = self.add_noise(x[:T], generator)
        elif isinstance(x_noisy, Tensor):
            x_noisy = x_noisy[:T]
        check_array("x_noisy", x_noisy, (T, B, C, H, W), x)
        state = self.start(x[0], components, gamma, generator)
        if check:
            check_values("x_noisy", x_noisy)
            check_values("gamma", state.gamma, slack=1e-5)  # a share may have been rounded up
        return self.run(state, x, x_noisy, weights, None if watch else self.loss_weights(T))

    def run(
        self, state: State, x: Tensor, x_noisy: Tensor, weights: Tensor, watched: Sequence[float] | None = None
    ) -> Unrolled:
        """The loop itself, from any state, unchecked: T steps and their losses, whose weights are (T,).

        It takes T noisy frames, and T+1 clean ones, of which the first is not looked at. ``watched`` is not 0 for the
        steps whose losses are wanted, and then of the states the last one alone; all where it is not given.
        """
        states: list[State] = []
        infos: list[Info] = []
        for after, info in inference.unrolled(self, state, x, x_noisy, watched):
            if watched is not None:
                states.clear()
            states.append(after)
            infos.append(info)
        theta, psi, gammas = inference.stacked((state.theta, state.psi, state.gamma) for state in states)
        total, intra, inter, bound = (losses.mean(dim=1) for losses in inference.stacked(infos))
        return Unrolled(theta, psi, gammas, total, intra, inter, bound, (total * weights).sum())

    def forward(self, x: Tensor, components: int, steps: int | None = None) -> Unrolled:
        """The unroll, with noise and start drawn from torch's own generator."""
        return self.unroll(x, components, steps)

    rollout = inference.roll_out

    def predict(self, state: State, rounded: bool = True) -> Tensor:
        """The mixture of the components' predictions, sum_k gamma_k psi_k (B,C,H,W), rounded to what a frame can be."""
        psi = (state.gamma * state.psi).sum(dim=1)
        return self.distribution.rounded(psi) if rounded else psi

    def reassign(self, state: State) -> State:
        """The state after a step without a frame; as it is, where no step looks at a frame to assign its pixels."""
        return state

    def draw(self, x: Tensor, components: int, keys: Tensor, steps: int | None = None) -> tuple[Tensor, Tensor]:
        """Noisy frames (T,B,C,H,W) and the first assignment (B,K,1,H,W) that belong to the samples' keys (B,).

        The same keys give the same draws on any device, in any batch, and for the first frames of any length.
        """
        x = self.frames(x, steps, check=False)[:-1]
        _, B, _, H, W = x.shape
        K = check_integer("components", components, 1, MOST)
        x_noisy = self.draw_noise(x, keys)
        normal = randomness.normal(keys.to(x.device), K * H * W, uniform=self.uniform).reshape(B, K, 1, H, W)
        return x_noisy, self.first_assignment(normal.to(x.dtype))

    def draw_noise(self, x: Tensor, keys: Tensor, first: int = 0) -> Tensor:
        """Frames x (T,B,C,H,W) with the noise that belongs to the samples' keys (B,) from frame ``first`` on."""
        T, B, C, H, W = x.shape
        if not isinstance(keys, Tensor) or tuple(keys.shape) != (B,) or keys.dtype != torch.int64:
            refuse(
                "keys", f"a tensor of {B} torch.int64 keys", f"{describe(keys)} {getattr(keys, 'dtype', '')}".rstrip()
            )
        needed = NOISES[self.config.noise.kind][1]
        times = torch.arange(first, first + T, device=x.device).unsqueeze(1)
        if not self.noise_each_step:
            times = torch.zeros_like(times[:1])
        frame_keys = randomness.fold(keys.to(x.device).unsqueeze(0), times)  # (T,B), or (1,B)
        streams = torch.arange(needed, device=x.device).view(-1, 1, 1)  # those under a key are the keys that follow it
        u = self.uniform(frame_keys + streams, C * H * W) if needed else x
        return noisy(x, u.reshape(max(needed, 1), -1, B, C, H, W), self.config.noise)

    def uniform(self, keys: Tensor, count: int, stream: int = 0) -> Tensor:
        """Uniform numbers (*keys.shape, count) under keys."""
        return randomness.uniform(keys, count, stream)

    def add_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames with fresh noise."""
        needed = NOISES[self.config.noise.kind][1]
        shape = x.shape if self.noise_each_step else x.shape[-4:]
        u = torch.rand(needed, *shape, generator=generator, device=x.device) if needed else x
        return noisy(x, u, self.config.noise)

    def frames(self, x: Tensor, steps: int | None, check: bool = True) -> Tensor:
        """The frames that an unroll of so many steps sees: T+1 of them, a single image repeated."""
        self._check_frames(x, "T+1, B")
        if check:
            check_values("x", x)
        if x.shape[0] == 1:
            T = check_integer("steps", self.config.steps if steps is None else steps, 1, MOST)
            return x.expand(T + 1, -1, -1, -1, -1)
        return x if steps is None else x[: check_integer("steps", steps, 1, x.shape[0] - 1) + 1]

    def _check_frames(self, x: Tensor, leading: str) -> None:
        """Refuses frames that the model is not made for; ``leading`` names the dimensions before C, H and W."""
        size, count = (self.config.channels, self.config.height, self.config.width), leading.count(",") + 1
        if not isinstance(x, Tensor) or x.dim() != count + 3 or tuple(x.shape[count:]) != size or 0 in x.shape:
            refuse("x", f"a tensor of shape ({leading}, {', '.join(map(str, size))})", describe(x))
        check_array("x", x, tuple(x.shape), like=next(self.parameters()))

    def loss_weights(self, steps: int) -> list[float]:
        """The weight of each step's loss."""
        chosen = self.config.loss_steps
        if isinstance(chosen, str):
            return {"every": [1.0] * steps, "mean": [1 / steps] * steps, "last": [0.0] * (steps - 1) + [1.0]}[chosen]
        if len(chosen) != steps:
            refuse("model.loss_steps", f"{steps} weights for {steps} steps", f"{len(chosen)} weights")
        return list(chosen)

    def step_weights(self, steps: int, like: Tensor) -> Tensor:
        """The same as a tensor (T,), of the type and on the device of ``like``."""
        chosen = self.loss_weights(steps)
        weights = like.new_full((steps,), chosen[0])
        for t, weight in enumerate(chosen):  # filled in place: a copy from the host could not be captured in a graph
            if weight != chosen[0]:
                weights[t : t + 1] = weight
        return weights


def describe(array: Any) -> str:
    """What came instead of an array that was expected."""
    return f"shape {tuple(array.shape)}" if isinstance(array, Tensor) else type(array).__name__


def check_array(name: str, array: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuses an array of another shape, or of another type or device than the model's weights."""
    if not isinstance(array, Tensor) or tuple(array.shape) != shape:
        refuse(name, f"a tensor of shape {shape}", describe(array))
    if array.dtype != like.dtype or array.device != like.device:
        refuse(name, f"{like.dtype} on {like.device}, as the weights", f"{array.dtype} on {array.device}")


def check_values(name: str, array: Tensor, slack: float = 0.0) -> None:
    """Refuses numbers further than the slack outside [0, 1], and what is not one; waits for the array's device."""
    if not bool(((array >= -slack) & (array <= 1 + slack)).all()):
        got = f"values from {float(array.min()):g} to {float(array.max()):g}"
        refuse(name, "numbers between 0 and 1", "not-a-number" if bool(array.isnan().any()) else got)


def warn_if_emulated(array: Tensor) -> None:
    """Warns of half precision on a CPU: most have none, and PyTorch cannot tell which do it well."""
    if array.device.type == "cpu" and array.dtype in (torch.float16, torch.bfloat16):
        text = f"{array.dtype} on a CPU is mostly emulated, hundreds of times slower than float32; use float32"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
