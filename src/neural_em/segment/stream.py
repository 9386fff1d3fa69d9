"""EM over a stream of frames: several starts race through the first of them, and again wherever the scene is lost."""

import copy
import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from neural_em import randomness
from neural_em.evaluation.metrics import adjusted_rand_index
from neural_em.model import Model, State
from neural_em.model.fast import FastNeuralEM, accelerate
from neural_em.model.inference import best_start, infer, prior_of
from neural_em.model.mixture import foreground
from neural_em.segment.config import STARTS, SegmentConfig
from neural_em.segment.pixels import Step, background

_STARTS, _NOISE = 0x5354, 0x4E4F  # tell the draws under one seed apart
RACE = 20  # frames that starts are compared over
_KNOWN, _REMEMBERED = 10, 30  # frames whose losses say what is usual: at least, at most
_JUMP = 0.9  # a loss that is larger than usual by so many times the usual one means that the scene is lost

Item = TypeVar("Item")


class _Known(NamedTuple):
    """A step that is known before its frame comes."""

    frame: NDArray[np.float32]
    state: State
    loss: Tensor


class Stream:
    """EM over a stream of frames, one after another: it holds the model, the last frame and the states.

    In the first `RACE` frames several starts run side by side, and the one whose losses sum up to the least so far is
    looked at. Then it alone goes on, until its loss jumps far above what it was: there new starts race with it.
    Components keep their numbers through such a change, by the pixels that they own.

    Args:
        model: on its device already; not to be changed while the stream is used. On a CPU a copy of it is used.
        config: how; of its fields, components, steps, starts, separate and seed matter here.

    Attributes:
        restarts: the numbers of the frames at which new starts took over.
        agreement: of each race, how far the starts agree: the median adjusted Rand index with the winner.
    """

    def __init__(self, model: Model, config: SegmentConfig) -> None:
        fast = accelerate(model)
        if isinstance(fast, FastNeuralEM) and not fast.kernels:
            model = fast = copy.deepcopy(fast)  # its parameters are kept ready, so no later change may reach them
            fast.keep()
        self.config, self._plain, self._model = config, model, fast
        self._like = next(model.parameters())
        self.restarts: list[int] = []
        self.agreement: list[float] = []
        self._frames, self._left = 0, 0  # frames seen; frames that are left of a race
        self._state: State | None = None  # of all that race, in a batch
        self._sums, self._loss = torch.empty(0), torch.empty(0)  # of their losses; their losses on the last frame
        self._before = torch.empty(0)
        self._ahead = deque[_Known]()  # the next steps, where a race was run to its end already
        self._best = 0  # whom the last step was of
        self._old = False  # whether the first in a race is no new start
        self._last: tuple[Tensor, Step] | None = None  # the last frame, and what was made of it
        self._usual: deque[float] = deque(maxlen=_REMEMBERED)
        self._jump = _JUMP

    def look(self, frame: NDArray[np.float32]) -> Step:
        """Takes the next frame (C,H,W), in [0, 1] and of the model's size; gives what EM makes of it now."""
        with torch.inference_mode():
            x = self._tensor(frame)
            if self._ahead and self._ahead[0].frame is not frame:
                self._ahead = deque()  # they are of other frames, which do not come
            if self._state is None or self.config.separate:
                self._begin(*self._settle(x))
            else:
                self._advance(x)
                if not self._left and self._lost(float(self._loss[0])):
                    fresh, loss = self._settle(x)
                    self._begin(_joined(self._state, fresh), torch.cat([self._loss, loss]), old=True)
            self._before, self._frames = x, self._frames + 1
            step = self._lead(int(best_start(self._sums.unsqueeze(1))))
            if self._left == 1:
                self._compare()
                self._decide()
            return step

    def through(self, frames: Iterable[tuple[Item, NDArray[np.float32]]]) -> Iterator[tuple[Item, Step]]:
        """The same for a clip whose next `RACE` frames can be had: the winner of a race gives its first steps too.

        Takes pairs of anything and a frame, gives pairs of the same and the frame's step.
        """
        coming, waiting = iter(frames), deque[tuple[Item, NDArray[np.float32]]]()
        while pair := (waiting.popleft() if waiting else next(coming, None)):
            step = self.look(pair[1])
            if len(self._sums) > 1 and not self.config.separate:
                waiting.extend(islice(coming, max(0, self._left - 1 - len(waiting))))
                step = self._foresee([frame for _, frame in waiting][: self._left - 1])
            yield pair[0], step

    def _foresee(self, frames: list[NDArray[np.float32]]) -> Step:
        """Runs the race to its end on a copy; here its winner alone goes on, by the steps that it made there."""
        trial = copy.copy(self)  # no tensor is ever changed in place
        steps = deque[_Known]()
        with torch.inference_mode():
            for frame in frames:
                x = self._tensor(frame)
                trial._advance(x)
                trial._before, trial._frames = x, trial._frames + 1
                assert trial._state is not None
                steps.append(_Known(frame, trial._state, trial._loss))
            trial._best = int(best_start(trial._sums.unsqueeze(1)))
            trial._compare()
            self._ahead = steps
            step = self._lead(trial._best)
            self._decide()
            return step

    def _tensor(self, frame: NDArray[np.float32]) -> Tensor:
        """A frame (C,H,W) as a batch of one."""
        return torch.from_numpy(np.ascontiguousarray(frame)).to(self._like).unsqueeze(0)

    def _settle(self, x: Tensor) -> tuple[State, Tensor]:
        """States and losses of all starts after their steps on one frame x (1,C,H,W).

        Every second start makes a single step: where objects hide each other in this frame, many settle on a wrong
        answer that later frames do not mend. An image of its own has no later frames: there all make all steps.
        """
        config = self.config
        starts = torch.arange(config.starts or STARTS)
        keys = randomness.keys(config.seed, _STARTS, self._frames, starts, device=x.device)
        image = x.expand(len(starts), -1, -1, -1).unsqueeze(0)  # (1,S,C,H,W)
        every = 1 if config.separate else 2
        steps = infer(self._model, image[:, ::every], config.components, keys[::every], config.steps)
        last = deque(steps, maxlen=1)[0]
        if len(last.info.total) == len(starts):
            return last.state, last.info.total
        (early,) = infer(self._model, image[:, 1::2], config.components, keys[1::2], 1)
        return _joined(last.state, early.state), torch.cat([last.info.total, early.info.total])

    def _begin(self, state: State, loss: Tensor, old: bool = False) -> None:
        self._state, self._sums, self._loss, self._old = state, loss, loss, old
        self._best, self._left, self._ahead = (0 if old else -1), RACE, deque()

    def _advance(self, x: Tensor) -> None:
        """One step of all that race."""
        if self._ahead:
            _, self._state, self._loss = self._ahead.popleft()
        else:
            assert self._state is not None
            B = len(self._state.theta)
            key = randomness.keys(self.config.seed, _NOISE, torch.tensor([self._frames]), device=x.device)
            both = torch.stack([self._before, x]).expand(-1, B, -1, -1, -1)
            (step,) = infer(self._model, both, self.config.components, key.expand(B), state=self._state)
            self._state, self._loss = step.state, step.info.total
        self._sums = self._sums + self._loss
        self._left = max(0, self._left - 1)

    def _lost(self, loss: float) -> bool:
        """Whether the loss is far above what it was; if not, it counts as usual."""
        if len(self._usual) >= _KNOWN:
            usual = statistics.median(self._usual)
            spread = 1.4826 * statistics.median(abs(each - usual) for each in self._usual)
            if loss > usual + max(self._jump * abs(usual), 6 * spread):
                return True
        self._usual.append(loss)
        return False

    def _lead(self, best: int) -> Step:
        """The step of one of those that race, its components in the order of the last step's."""
        assert self._state is not None
        step = self._step(best)
        if best != self._best and self._last is not None and not self.config.separate:
            before, now = self._owners(*self._last), self._owners(self._before, step)
            order = same_components(before, now, self.config.components)
            self._state = _reordered(self._state, best, order)
            self._ahead = deque(each._replace(state=_reordered(each.state, best, order)) for each in self._ahead)
            step = self._step(best)
        self._best, self._last = best, (self._before, step)
        return step

    def _step(self, which: int) -> Step:
        """The step of one of those that race."""
        assert self._state is not None
        theta, psi, gamma, prior = self._state
        return Step(theta[which], psi[which], gamma[which, :, 0], float(self._loss[which]),
                    None if prior is None else prior[which])  # fmt: skip

    def _owners(self, x: Tensor, step: Step) -> Tensor:
        """Labels (H,W) of a step on the frame x (1,C,H,W): 0 or the component."""
        return (step.gamma.argmax(dim=0) + 1) * ~background(self._plain, x[0], step)

    def _compare(self) -> None:
        """Notes how far those that raced agree with their leader."""
        assert self._state is not None
        if len(self._sums) > 1:
            x, step = self._before, self._step(self._best)
            there = foreground(x[0], prior_of(self._plain, step))
            winner = (self._owners(x, step) * there).unsqueeze(0)
            others = [self._state.gamma[i].argmax(dim=0) for i in range(len(self._sums)) if i != self._best]
            scores = adjusted_rand_index(winner.expand(len(others), -1, -1), torch.cat(others))
            self.agreement.append(float(scores.nan_to_num(1.0).median()))

    def _decide(self) -> None:
        """Ends a race: its leader alone goes on."""
        assert self._state is not None
        if self._old and self._best != 0:
            self.restarts.append(self._frames - 1)
        elif self._old:
            self._jump *= 2  # a false alarm: races cost time
        which = self._best
        self._state, self._loss = _only(self._state, which), self._loss[which : which + 1]
        self._ahead = deque(
            _Known(frame, _only(state, which), loss[which : which + 1]) for frame, state, loss in self._ahead
        )
        self._sums = self._sums[which : which + 1]
        self._left, self._old = 0, False
        self._usual.clear()  # another state may have another usual loss
        self._best = 0


def same_components(before: Tensor, after: Tensor, components: int) -> Tensor:
    """Which component of ``after`` continues each of ``before``, by the pixels that both own: labels (H,W), 0 or 1..K.

    Returns (K,): the order of the components afterwards.
    """
    both = (before * (components + 1) + after).flatten()
    table = torch.bincount(both, minlength=(components + 1) ** 2).view(components + 1, components + 1)
    return torch.from_numpy(linear_sum_assignment(table[1:, 1:].cpu().numpy(), maximize=True)[1]).to(before.device)


def _joined(one: State, other: State) -> State:
    pairs = zip(one, other, strict=True)
    return State(*(None if a is None or b is None else torch.cat([a, b]) for a, b in pairs))  # type: ignore[arg-type]


def _only(state: State, which: int) -> State:
    """One sample of a batch, as a batch; copied, so that the others need not be kept."""
    return State(*(None if part is None else part[which : which + 1].clone() for part in state))  # type: ignore[arg-type]


def _reordered(state: State, which: int, order: Tensor) -> State:
    """The state with the components of one sample in another order."""

    def moved(part: Tensor) -> Tensor:
        copied = part.clone()
        copied[which] = part[which, order]
        return copied

    return State(moved(state.theta), moved(state.psi), moved(state.gamma), state.prior)
