"""The fast twin of a whole model: fast layers in place of the plain ones, fused E-step and losses on a GPU.

What is not known here, by its very class, computes what it does without it: another M-step, another pixel
distribution, another model; for layers see `layers.py`.
"""

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from neural_em.errors import NeuralEMError, first_line
from neural_em.model import Info, Model, NeuralEM, State, Unrolled
from neural_em.model.distributions import Masked
from neural_em.model.fast import closed_form, graphs
from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.gathering import StepMemory, memory_there_and_back
from neural_em.model.fast.images import FastImages
from neural_em.model.fast.layers import NETWORKS, FastInteraction, as_built, fast_m_step
from neural_em.model.fast.linear import FastDense, Twin
from neural_em.model.m_step import GradientMStep, RecurrentMStep
from neural_em.model.networks import normalise
from neural_em.model.relational import RelationalMStep

KNOWN = (RecurrentMStep, GradientMStep, RelationalMStep)


class FastNeuralEM(NeuralEM):
    """A model with fast layers in place of the plain ones; its modules and parameters are the plain model's own.

    On a GPU the networks' activations and products may have another ``dtype`` than the parameters; differences,
    E-step, losses and all sums keep that of the parameters.
    """

    def __init__(self, model: NeuralEM, dtype: torch.dtype | None = None) -> None:
        vars(self).update(vars(model))  # the very modules under the very names, whatever is done to them later
        self.dtype, self.running = dtype, False
        self.rows = (StepMemory(1), StepMemory(1))  # memory for delta, and for the gradient of eta
        self.coming: Iterator[Tensor] = iter(())  # the noisy frames that the steps after this one read
        self.made: tuple[Tensor, Tensor] | None = None  # the last gamma, and the delta that was made with it
        self.graphs: dict[Any, Any] = {}  # single steps, by what they depend on
        self.recorder: torch.cuda.Stream | None = None  # where these are recorded
        self.in_larger_graph = False  # whether a caller records whole runs; else these, too, are replayed step by step
        self.made_of: list[Any] = []
        self.renew(next(self.parameters()))

    def renew(self, like: Tensor) -> None:
        """Makes the fast layers again where modules were replaced, or type or device changed."""
        made_of = [like.dtype, like.device, *self.modules()]
        if made_of != self.made_of:
            self.kernels = kernels_for(like.device.type)
            self.fast = (fast_m_step(self.m_step, self.kernels, self.dtype),)  # in a tuple: not a module of the model
            below = list(self.fast[0].modules())[1:]
            self.layers = [each for each in below if isinstance(each, Twin | FastImages)]
            self.covered = all(each in self.layers or as_built(each, FastInteraction, *NETWORKS) for each in below)
            self.made_of, self.graphs, self.recorder = made_of, {}, None
        else:  # what the M-step has besides may have changed
            vars(self.fast[0]).update(vars(self.m_step), _modules=self.fast[0]._modules)

    def hold(self, steps: int) -> None:
        """Keeps the parameters as they are now ready for so many steps; for none, they are read at each use."""
        self.running, self.rows = bool(steps), memory_there_and_back(max(steps, 1))
        for layer in self.layers:
            layer.hold(steps)

    def keep(self) -> None:
        """Has the parameters ready for single steps without gradients on a CPU; they must not change until a `run`."""
        if not self.kernels:
            with torch.no_grad():
                self.hold(1)
            for layer in self.layers:
                if isinstance(layer, FastDense):
                    layer.pack()

    def run(
        self, state: State, x: Tensor, x_noisy: Tensor, weights: Tensor, watched: Sequence[float] | None = None
    ) -> Unrolled:
        if not self.in_larger_graph and self.replays(state):
            return super().run(state, x, x_noisy, weights, watched)
        self.renew(state.theta)
        self.hold(len(x_noisy))
        if self.kernels and not x_noisy.requires_grad:
            self.coming = iter((x_noisy if state.prior is None else x_noisy - state.prior)[1:])
        try:
            return super().run(state, x, x_noisy, weights, watched)
        finally:
            self.hold(0)
            self.coming, self.made = iter(()), None

    def step(
        self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True
    ) -> tuple[State, Info]:
        """One step; by itself, without gradients and on a GPU, it is replayed from a CUDA graph."""
        if self.running or check or not self.replays(state):
            return super().step(state, x_noisy, x_next, check, losses)
        weights = (weight for module in self.made_of[2:] for weight in module._parameters.values())
        places = tuple(weight.data_ptr() for weight in weights if weight is not None)
        deviation = None if self.deviation is None else self.deviation.data_ptr()
        how = (losses, self.config, deviation, graphs.products(), places)
        key = graphs.signature(state, x_noisy, x_next, *how)
        graph = self.graphs.pop(key, None)
        if graph is None:
            if len(self.graphs) == graphs.HELD:
                del self.graphs[next(iter(self.graphs))]
            graph = self.recorded(state, x_noisy, x_next, losses)
        self.graphs[key] = graph  # the latest comes last
        return graph(state, x_noisy, x_next)

    def replays(self, state: State) -> bool:
        """Whether steps from such a state are replayed: what is not known here may do anything in one."""
        if not graphs.worthwhile(state):
            return False
        self.renew(state.theta)
        return bool(self.kernels) and self.covered and as_built(self.m_step, *KNOWN)

    def recorded(self, state: State, x_noisy: Tensor, x_next: Tensor, losses: bool) -> Any:
        """The step as a graph, or as it is, with a warning, where it cannot be recorded."""
        step = functools.partial(super().step, check=False, losses=losses)
        try:
            self.recorder = self.recorder or torch.cuda.Stream(x_next.device)
            return graphs.GraphedStep(step, state, x_noisy, x_next, self.recorder)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph, steps are slower: {first_line(error)}", stacklevel=2)
            torch.cuda.synchronize(x_next.device)
            return step

    def maximise(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        if not self.running:
            self.renew(theta)
        return self.fast[0](theta, delta)

    def uniform(self, keys: Tensor, count: int, stream: int = 0) -> Tensor:
        """The same numbers, in one kernel."""
        if self.kernels and keys.device == self.made_of[1]:
            return self.kernels.uniform(keys, count, stream)
        return super().uniform(keys, count, stream)

    def difference(self, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        """Delta, in one kernel, or two if it is normalised; the E-step before may have made it."""
        if not self.kernels or psi.device != self.made_of[1] or not self.kernels.fits(psi) or x.requires_grad:
            return super().difference(x, psi, gamma)
        delta = self.made[1] if self.made and self.made[0] is gamma else None
        if delta is None:
            delta = self.kernels.MaskedDifference.apply(x, psi, gamma, self.rows[0])
        if self.config.normalize_input:
            flat, rows = delta.flatten(0, 1), FastActivation.memory(1)
            if not self.kernels.row_fits(flat, False):
                return normalise(flat).view_as(delta)
            given = (flat, None, None, None, False)
            delta = self.kernels.Activation.apply(None, rows, "identity", False, *given).view_as(delta)
        return delta

    def windowed(self, eta: Tensor, share: float) -> Tensor:
        """Eta in its windows: one kernel each way."""
        if not self.kernels or not self.kernels.fits(whole := eta.to(self.made_of[0])):
            return super().windowed(eta, share)
        rows = StepMemory(1) if self.config.one_colour else self.rows[1]  # one colour makes the network's gradient
        confined: Tensor = self.kernels.Window.apply(whole, share, rows)
        return confined

    def assign(self, eta: Tensor, x: Tensor, losses: bool = True) -> tuple[Tensor, Tensor, Info]:
        """E-step and losses: one kernel each way, or, but for masked pixels, their gradient written out."""
        eta, config, distribution = eta.to(x.dtype), self.config, self.distribution
        through, rule, masked = config.gamma_gradient, config.channel_rule, type(distribution) is Masked
        numbers = closed_form.numbers_of(distribution, config.inter_weight)
        fused = self.kernels and self.kernels.fits(eta) and (x.shape[1] == 1 or rule == "product")
        covered = numbers and (fused if masked else closed_form.covers(x, numbers, through, rule))
        if not covered or x.requires_grad:
            return super().assign(eta, x, losses)
        if fused:
            coming = next(self.coming, None)
            plain = config.window is None and not config.one_colour  # else eta is not what the network puts out
            rows = self.rows if plain else (self.rows[0], StepMemory(1))
            *parts, delta = self.kernels.Assignment.apply(eta, x, numbers, through, rows, coming)
            self.made = None if coming is None else (parts[1], delta)
        else:
            parts = closed_form.Assignment.apply(eta, x, distribution, numbers, through, losses, rule)
        psi, gamma, total, watched = parts
        return psi, gamma, Info(total, *watched)


@functools.cache
def kernels_for(device: str) -> Any:
    """The fused kernels for this type of device, or nothing, and a word about it where a GPU's cannot be had."""
    if device != "cuda":
        return None
    try:
        from neural_em.model.fast import kernels

        kernels.uniform(torch.zeros(1, dtype=torch.int64, device=device), 1)  # there may be no compiler for them
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever is missing, there is the way without them
        warnings.warn(f"no fused GPU kernels, training is slower: {first_line(error)}", stacklevel=2)
        return None
    return kernels


def accelerate(model: Model, dtype: torch.dtype | None = None) -> Model:
    """The fast twin of a model: the same numbers, the same parameters; training or saving one is as the other.

    Gradients flow through the total loss; one through the intra- or inter-cluster loss alone is refused.

    Args:
        model: the plain one; of a class that is not known here, it is given back as it is.
        dtype: ``torch.bfloat16`` for faster, coarser products and activations on a GPU.
    """
    if type(model) is NeuralEM or type(model) is FastNeuralEM:
        return FastNeuralEM(model, dtype)
    if dtype is not None:
        raise NeuralEMError(f"dtype={dtype} is not for a {type(model).__name__}, which the fast path does not know")
    return model
