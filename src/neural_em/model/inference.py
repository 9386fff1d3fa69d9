"""Inference: a random start, a step for each frame, and further steps on the model's own predictions.

Of a model only its outer protocol is used: ``frames``, ``draw``, ``start`` and ``step``; to go on from a state also
``draw_noise``, and for steps without input ``predict``, ``add_noise`` and ``reassign``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from neural_em.errors import check_integer

if TYPE_CHECKING:
    from neural_em.model import Info, Model, State

_NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 28}  # of all steps' psi of a batch: bounds its memory


class Step(NamedTuple):
    """One step of inference: what it carries, what is watched, and what it is about."""

    state: State
    info: Info  # the losses (B,) on the frame that it explains; not-a-number where that is not known
    x_noisy: Tensor  # (B,C,H,W): what the components read
    x_next: Tensor | None  # (B,C,H,W): the frame that the step explains, where it is known
    rollout: bool  # whether the components read the model's own prediction instead of a frame


@torch.no_grad()
def infer(model: Model, frames: Tensor, components: int, keys: Tensor, steps: int | None = None, rollout: int = 0,
          state: State | None = None, noise: bool = True, check: bool = True) -> Iterator[Step]:  # fmt: skip
    """Runs a model over sequences or images, step by step; without gradients.

    Args:
        model: on its device.
        frames: (T+1,B,C,H,W) in [0, 1], of the model's type; a single image is repeated.
        components: K.
        keys: (B,) of the samples; noise and start belong to them, whatever the batch.
        steps: T, where fewer steps than frames are wanted, or for a single image.
        rollout: so many further steps without input; see `roll_out`. Frames after the first T+1 are what really came;
            a single image stays as it is.
        state: where to go on; a start is drawn where it is not given.
        noise: whether the components read frames and predictions with the model's noise.
        check: look at the frames' values; on a GPU it costs a wait.
    """
    x = model.frames(frames, steps, check)
    if state is None:
        x_noisy, gamma = model.draw(x, components, keys)
        state = model.start(x[0], components, gamma)
    elif noise:
        x_noisy = model.draw_noise(x[:-1], keys)
    if not noise:
        x_noisy = x[:-1]
    for (last, info), noisy, x_next in zip(unrolled(model, state, x, x_noisy), x_noisy, x[1:], strict=True):
        yield Step(last, info, noisy, x_next, rollout=False)
    came = x[:1].expand(rollout, -1, -1, -1, -1) if len(frames) == 1 else frames[len(x) :]
    yield from roll_out(model, last, rollout, keys, len(x) - 1, came, noise)


def unrolled(
    model: Model, state: State, x: Tensor, x_noisy: Tensor, watched: Sequence[float] | None = None
) -> Iterator[tuple[State, Info]]:
    """The loop of training, inference and export, unchecked: each step's state, and its losses where they are watched.

    It takes T noisy frames, and T+1 clean ones, of which the first is not looked at.
    """
    for t in range(len(x_noisy)):
        losses = watched is None or watched[t] != 0
        state, info = model.step(state, x_noisy[t], x[t + 1], check=False, losses=losses)
        yield state, info


@torch.no_grad()
def roll_out(model: Model, state: State, steps: int, keys: Tensor | None = None, first: int = 0,
             x: Tensor | None = None, noise: bool = True, rounded: bool = True,
             generator: torch.Generator | None = None) -> Iterator[Step]:  # fmt: skip
    """Prediction without input: in each step the components read the model's own prediction instead of a frame.

    There is no frame to assign the pixels of either: the E-step takes the one that the new predictions make together.

    Args:
        model: trained to predict the next frame.
        state: where to start: what the last step on a real frame gave.
        steps: how many.
        keys: (B,) whose noise, the frames of a sample being counted on from ``first``; drawn from the generator where
            they are not given.
        first: how many frames were read before.
        x: (N,B,C,H,W) what really came, as far as it is known. Losses are measured on it; the model does not see it.
        noise: add the model's noise to its prediction, as to every frame. Models that were trained with noise need it.
        rounded: let the prediction be a frame as the model knows them: binary pixels 0 or 1, grey ones from 0 to 1.
            The authors' code reads the mixture as it is.
        generator: see ``keys``.
    """
    for r in range(check_integer("rollout", steps, 0)):
        x_noisy = prediction = model.predict(state, rounded)
        if noise and keys is not None:
            x_noisy = model.draw_noise(prediction.unsqueeze(0), keys, first + r)[0]
        elif noise:
            x_noisy = model.add_noise(prediction, generator)
        x_next = x[r] if x is not None and r < len(x) else None
        state, info = model.step(state, x_noisy, prediction if x_next is None else x_next, check=False)
        if x_next is None:
            info = type(info)(*(torch.full_like(loss, torch.nan) for loss in info))
        state = model.reassign(state)
        yield Step(state, info, x_noisy, x_next, rollout=True)


def stacked(parts: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    """The parts of all steps' states, or of their losses, with T in front."""
    return [torch.stack(tensors) for tensors in zip(*parts, strict=True)]


def prior_of(model: Model, state: Any) -> Any:
    """The prior's mean: the image's own, as the state has it, or the number of the model's config."""
    return model.config.prior if state.prior is None else state.prior


def next_groups(groups: Tensor, steps: int) -> Tensor:
    """The groups (T,B,H,W) that each step's assignment is scored against: those of the next frame, or of the image."""
    return groups.expand(steps, -1, -1, -1) if len(groups) == 1 else groups[1 : steps + 1]


def best_start(losses: Tensor) -> Tensor:
    """Which of S starts has the lowest loss (S,B), for each sample (B,); one that is not a number loses."""
    return losses.where(~losses.isnan(), torch.inf).argmin(dim=0)


def batch_that_fits(numbers: int, device: torch.device, largest: int) -> int:
    """Samples at a time, each with so many numbers in its psi of all steps: ``largest``, fewer where they are large."""
    return max(1, min(largest, _NUMBERS.get(device.type, _NUMBERS["cpu"]) // numbers))
