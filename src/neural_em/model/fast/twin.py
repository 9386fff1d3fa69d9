"""The fast twin of a whole model: fast layers in place of the plain ones, fused E-step and losses on a GPU.

What is not known here, by its very class, computes what it does without it: a layer made from one of the package's,
a layer with hooks, another M-step, another pixel distribution, another model.
"""

import copy
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_em.errors import NeuralEMError, first_line
from neural_em.model import Info, Model, NeuralEM, State, Unrolled
from neural_em.model.distributions import Masked
from neural_em.model.fast import closed_form, graphs
from neural_em.model.fast.activation import ACTIVATIONS, FastActivation, absorbs
from neural_em.model.fast.convolutions import (
    FastConvolution,
    FastDifferences,
    FastFirst,
    FastFolded,
    FastLast,
    FastPatches,
    FastUpConvolution,
)
from neural_em.model.fast.gathering import StepMemory, memory_there_and_back
from neural_em.model.fast.images import FastImages, chain
from neural_em.model.fast.linear import FastDense, FastPairs, FusedPairs, Linear, Twin
from neural_em.model.m_step import GradientMStep, RecurrentMStep, differentiated_twice
from neural_em.model.networks import Activation, Convolution, Decoder, Dense, Encoder, UpConvolution, normalise
from neural_em.model.relational import Interaction, Pairs, RelationalMStep

KNOWN = (RecurrentMStep, GradientMStep, RelationalMStep)
NETWORKS = (nn.Sequential, Encoder, Decoder, Interaction)
# what a module can have beyond its class: hooks, and a function of its own in place of its class's
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")


class FastGradientMStep(GradientMStep):
    """N-EM with the closed form of the pullback through the paper's decoder, a single layer."""

    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        """s(theta) (1 - s(theta)) * W^T delta."""
        s = torch.sigmoid(theta)
        delta = delta.permute(0, 2, 3, 1).flatten(1)
        dense: Any = self.decoder.dense[0]
        return s * (1 - s) * (delta @ dense.layer.weight)


class FastInteraction(Interaction):
    """Components that see each other, with a kernel for what each heeds."""

    kernels: Any

    def forward(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The attention that is given back is empty where no hook may read it: nothing else on the fast path does."""
        B, K, M = theta.shape
        if self.attend is None or self._forward_hooks or not self.kernels.pairs_fit(K, M):
            return super().forward(theta)
        encoded = self.encode(theta.reshape(B * K, M)).view(B, K, M)
        core = self.core(self.pair(encoded).flatten(0, 2))
        effect = self.kernels.Heeded.apply(self.effect(core).view(B, K, K - 1, M), self.attend(core).view(B, K, K - 1))
        return encoded, effect, theta.new_empty(B, K, 0)


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


def as_built(module: object, *classes: type) -> bool:
    """Whether it is of one of these very classes, and nothing was hooked to it or put in place of its `forward`."""
    return type(module) in classes and not any(vars(module).get(name) for name in _HOOKS)


def known(layer: object) -> bool:
    """Whether there is a fast twin of the layer."""
    if as_built(layer, Activation):
        return layer.kind in ACTIVATIONS  # type: ignore[attr-defined]
    return as_built(layer, Dense, Pairs, Convolution, UpConvolution)


def fast_m_step(m_step: Any, kernels: Any, dtype: torch.dtype | None) -> nn.Module:
    """The M-step with fast layers in place of those that are known, or itself."""
    fast: nn.Module = m_step
    if as_built(m_step, GradientMStep) and single_layer(m_step.decoder):
        fast = with_fast_layers(m_step, kernels)
        fast.__class__ = FastGradientMStep
    elif as_built(m_step, type(m_step)) and not differentiated_twice(m_step):
        fast = with_fast_layers(m_step, kernels)
    if dtype is not None and any(list(child.parameters()) for child in fast.children()):  # fast ones have none
        raise NeuralEMError(f"dtype={dtype} is not for a model that keeps some of its plain layers")
    for each in fast.modules() if kernels else ():
        if isinstance(each, Linear):
            each.dtype = dtype
    return fast


def single_layer(decoder: Any) -> bool:
    """Whether it is the paper's decoder of N-EM, whose pullback can be written down."""
    if not as_built(decoder, Decoder) or not as_built(decoder.dense, nn.Sequential):
        return False
    last = as_built(decoder.convolutions, nn.Sequential) and not len(decoder.convolutions)
    return last and len(decoder.dense) == 1 and as_built(decoder.dense[0], Dense)


def with_fast_layers(module: nn.Module, kernels: Any) -> nn.Module:
    """A copy of the module, on the same parameters, with fast layers below it."""
    twin, features = copy.copy(module), last(module.convolutions) if type(module) is Encoder else None
    twin._modules = {
        name: replacement(child, kernels, features if name == "hidden" else None)
        for name, child in module._modules.items()
    }
    if kernels and type(module) is Interaction:
        vars(twin)["kernels"], twin.__class__ = kernels, FastInteraction
    return twin


def last(layers: Any) -> Any:
    """The activation that a chain ends with, if it does."""
    layer = layers[-1] if as_built(layers, nn.Sequential) and len(layers) else None
    return layer if type(layer) is Activation and known(layer) else None


def replacement(module: Any, kernels: Any, before: Any = None, after: Any = None) -> Any:
    """The fast twin of a layer, of a chain or of a network of these; of anything else, the module itself.

    In a chain a layer may share work with a known neighbour. Of what comes before a chain, only an activation counts,
    which keeps its output in bounds.
    """
    if known(module):
        return twin_of(module, before, after, kernels)
    if as_built(module, nn.Sequential):
        around = [
            before if type(before) is Activation else None,
            *(layer if known(layer) else None for layer in module),
            None,
        ]
        return chain([replacement(layer, kernels, around[i], around[i + 2]) for i, layer in enumerate(module)], kernels)
    return with_fast_layers(module, kernels) if as_built(module, *NETWORKS) else module


def twin_of(layer: Any, before: Any, after: Any, kernels: Any) -> nn.Module:
    """The fast twin of a known layer, by what comes before and after it, as far as that is known."""
    if type(layer) is Pairs:
        return FusedPairs(layer, kernels) if kernels else FastPairs(layer)
    if type(layer) is Activation:
        return FastActivation(layer, kernels, before if type(before) in (Dense, Convolution, UpConvolution) else None)
    followed, up = type(after) is Activation, type(layer) is UpConvolution
    absorbed = followed and absorbs(after, layer, kernels)
    if type(layer) is Dense:
        return FastDense(layer, kernels, not absorbed, type(before) is Activation and before.scale is not None)
    if kernels and up and not followed and layer.weight.shape[0] <= kernels.CHANNELS:
        return FastLast(layer, kernels)
    if absorbed and not up and before is None and layer.weight.shape[1] <= kernels.CHANNELS:
        return FastFirst(layer, kernels)
    if not kernels and not up and layer.weight.shape[1] == 1:
        return FastPatches(layer)
    on_arm = FastConvolution.by_products and not layer.weight.is_cuda
    if not kernels and on_arm and up and not followed and layer.weight.shape[0] == 1:
        return FastFolded(layer)
    if not kernels and on_arm and up and followed:
        return FastDifferences(layer, True, False)
    return FastUpConvolution(layer, not absorbed, not followed) if up else FastConvolution(layer, not absorbed)


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
