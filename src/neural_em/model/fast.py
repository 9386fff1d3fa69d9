"""The same model, faster: what `accelerate` returns computes what the plain one does and shares its parameters.

Three things are done differently.

* Weight gradients are gathered: each use of a layer keeps its input and its output's gradient, and one large product
  over all time steps makes the weight's gradient, instead of one small product a step.
* Upsampling and convolving is one 3x3 convolution of the small image that gives all four phases of the large one
  (36 taps instead of 64, and no upsampled copy).
* The elementwise parts (layer norm with its non-linearity; E-step with its losses) are fused where a compiler can.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.em import Info, NeuralEM, State
from neural_em.model.m_step import GradientMStep
from neural_em.model.networks import Activation, Convolution, Dense, UpConvolution, activate


class _Tape:
    """What all uses of one layer leave behind, until its parameters' gradients are wanted."""

    def __init__(self, gradients: Callable[..., tuple[Tensor, ...]], dim: int = 0) -> None:
        self.gradients = gradients  # of the layer's parameters, from what was left, joined along `dim`
        self.dim = dim
        self.left: list[tuple[Tensor, ...]] = []

    def add(self, *tensors: Tensor) -> None:
        """Keeps what one use leaves."""
        self.left.append(tensors)

    def collect(self) -> tuple[Tensor, ...]:
        """The parameters' gradients."""
        joined = [torch.cat(tensors, dim=self.dim) for tensors in zip(*self.left, strict=True)]
        self.left.clear()
        return self.gradients(*joined)


class _Share(torch.autograd.Function):
    """Hands parameters to many uses; its backward runs once, after all of theirs."""

    @staticmethod
    def forward(ctx: Any, tape: _Tape, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *ctx.tape.collect())


class _Use(torch.autograd.Function):
    """One use of a layer: gives the gradient of its input, and leaves its parameters' to the tape."""

    @staticmethod
    def forward(ctx: Any, tape: _Tape, layer: type[_Linear], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.tape, ctx.layer = tape, layer
        ctx.save_for_backward(x, parameters[0])
        return layer.product(x, *parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.tape.add(x, gradient)
        wanted = ctx.needs_input_grad
        back = ctx.layer.transpose(gradient, weight, x) if wanted[2] else None
        return (None, None, back) + (None,) * (len(wanted) - 3)


class _Linear(nn.Module):
    """A layer that is linear in its input and in its weight; subclasses say how it is applied and transposed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.tape: _Tape | None = None
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self) -> None:
        """Makes the weights ready for an unroll."""
        self.parts = self.ready()
        self.tape = None
        if torch.is_grad_enabled() and any(part.requires_grad for part in self.parts):
            self.tape = _Tape(self.gradients)
            self.parts = _Share.apply(self.tape, *self.parts)

    def ready(self) -> tuple[Tensor, ...]:
        """The weight, as it is applied, and the bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The layer, on the tape if there is one."""
        if self.tape is None:
            return self.product(x, *self.parts)
        return _Use.apply(self.tape, type(self), x, *self.parts)

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's output."""
        raise NotImplementedError

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient of the input, from that of the output."""
        raise NotImplementedError

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of `ready()`, from all inputs and output gradients."""
        raise NotImplementedError


class FastDense(_Linear):
    """Fully connected."""

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """W x + b."""
        return F.linear(x, weight, bias)

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """W^T g."""
        return gradient @ weight

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The sums over all samples and steps of g x^T and g."""
        weight = gradient.T @ x
        return (weight,) if self.bias is None else (weight, gradient.sum(0))


class _FastImage(_Linear):
    """A convolution: stride and padding are the subclass's. Without its bias where what follows adds it."""

    stride: int
    padding = 1

    def __init__(self, layer: nn.Module, bias: bool = True) -> None:
        super().__init__(layer)
        if not bias:
            self.bias = None

    @classmethod
    def product(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution."""
        return F.conv2d(x, weight, bias, stride=cls.stride, padding=cls.padding)

    @classmethod
    def transpose(cls, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The transposed convolution."""
        return cls.backward(gradient, x, weight, (True, False, False))[0]

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """The parameters' gradients."""
        wanted = (False, True, self.bias is not None)
        return tuple(self.backward(gradient, x, self.parts[0].detach(), wanted)[1 : 1 + len(self.parts)])

    @classmethod
    def backward(cls, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
        """Gradients of input, weight and bias, those that are wanted."""
        stride, padding = [cls.stride] * 2, [cls.padding] * 2
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, [weight.shape[0]], stride, padding, [1, 1], False, [0, 0], 1, wanted
        )


class FastConvolution(_FastImage):
    """4x4, stride 2."""

    stride = 2

    def ready(self) -> tuple[Tensor, ...]:
        """The weight with its channels last in memory, as the images are, and the bias."""
        weight = self.weight.contiguous(memory_format=torch.channels_last)
        return (weight,) if self.bias is None else (weight, self.bias)


class FastUpConvolution(_FastImage):
    """All four phases of the doubled image as the channels (2,2,out) of one 3x3 convolution of the small one.

    Along one axis, output pixel 2i + a reads the taps u = 0..3 at doubled positions 2i + a + u - 1, which are the small
    pixels i + floor((a + u - 1) / 2): SHARE[a][offset][u] says which tap falls on which of the offsets -1, 0, 1.
    """

    stride = 1
    SHARE = (((1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1)), ((0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1)))

    def __init__(self, layer: nn.Module, bias: bool = True) -> None:
        super().__init__(layer, bias)
        self.register_buffer("share", torch.tensor(self.SHARE).to(self.weight), persistent=False)

    def ready(self) -> tuple[Tensor, ...]:
        """The phases' weight (4*out, in, 3, 3) and bias (4*out,)."""
        phases = torch.einsum("apu,bqv,oiuv->aboipq", self.share, self.share, self.weight)
        weight = phases.flatten(0, 2).contiguous(memory_format=torch.channels_last)
        return (weight,) if self.bias is None else (weight, self.bias.repeat(4))


def interleave(x: Tensor) -> Tensor:
    """Puts the phases where they belong: (N, (2,2,C), H, W) to (N,C,2H,2W), channels last in memory."""
    N, C, H, W = x.shape
    x = x.permute(0, 2, 3, 1).reshape(N, H, W, 2, 2, C // 4).transpose(2, 3)
    return x.reshape(N, 2 * H, 2 * W, C // 4).permute(0, 3, 1, 2)


class FastActivation(nn.Module):
    """Bias and phases of the convolution before it, layer norm, non-linearity: one kernel where there are kernels."""

    def __init__(self, layer: Activation, kernels: Any, bias: nn.Parameter | None, phases: bool) -> None:
        super().__init__()
        self.kind, self.scale, self.offset, self.bias = layer.kind, layer.scale, layer.offset, bias
        self.kernels, self.phases = kernels, phases
        self.tape: _Tape | None = None
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self) -> None:
        """Makes the parameters ready for an unroll."""
        self.parts = tuple(part for part in (self.scale, self.offset, self.bias) if part is not None)
        self.tape = None
        if self.kernels and self.scale is not None and torch.is_grad_enabled() and self.scale.requires_grad:
            self.tape = _Tape(lambda parts: tuple(parts.sum(dim=1)), dim=1)
            self.parts = _Share.apply(self.tape, *self.parts)

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C) or (N,C,H,W)."""
        if self.tape is None and not (self.kernels and self.scale is not None):
            return self.plain(x)
        scale, offset, bias = (*self.parts, None)[:3]
        return self.kernels.Activation.apply(self.tape, self.kind, self.phases, x, scale, offset, bias)

    def plain(self, x: Tensor) -> Tensor:
        """The same, step by step."""
        x = interleave(x) if self.phases else x
        x = x if self.bias is None else x + self.bias.reshape(-1, 1, 1)
        return activate(x, self.scale, self.offset, self.kind)


class FastOutput(nn.Module):
    """The last up-convolution, whose phases nothing else puts in place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C,H,W)."""
        return interleave(self.layer(x))


class FastGradientMStep(GradientMStep):
    """N-EM with the closed form of the pullback where the decoder is the paper's single layer."""

    def pullback(self, theta: Tensor, delta: Tensor) -> Tensor:
        """s(theta) (1 - s(theta)) * W^T delta, or the general product through a deeper decoder."""
        if self.decoder.convolutions or len(self.decoder.dense) > 1:
            return super().pullback(theta, delta)
        s = torch.sigmoid(theta)
        delta = delta.permute(0, 2, 3, 1).flatten(1)
        return s * (1 - s) * (delta @ self.decoder.dense.get_parameter("0.weight"))


class FastNeuralEM(NeuralEM):
    """A model with fast layers in place of the plain ones, on the same parameters."""

    def __init__(self, model: NeuralEM) -> None:
        nn.Module.__init__(self)
        self.config = model.config
        self.m_step = copy.deepcopy(model.m_step, {id(p): p for p in model.parameters()})
        self.kernels = load_kernels() if next(model.parameters()).is_cuda else None
        replace(self, self.kernels)
        if isinstance(self.m_step, GradientMStep):
            self.m_step.__class__ = FastGradientMStep

    def start(self, *arguments: Any, **options: Any) -> State:
        """The first state; the layers make their parameters ready for the unroll that follows."""
        for module in self.modules():
            if isinstance(module, _Linear | FastActivation):
                module.prepare()
        return super().start(*arguments, **options)

    def difference(self, x: Tensor, psi: Tensor, gamma: Tensor) -> Tensor:
        """Delta, in one kernel, or two if it is normalised."""
        if not self.kernels or x.shape[1] > 1:
            return super().difference(x, psi, gamma)
        delta = self.kernels.MaskedDifference.apply(x, psi, gamma)
        if self.config.normalize_input:
            flat = delta.flatten(0, 1)
            delta = self.kernels.Activation.apply(None, "identity", False, flat, None, None, None).view_as(delta)
        return delta

    def assign(self, eta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Info]:
        """E-step and losses, in one kernel."""
        if not self.kernels or x.shape[1] > 1:
            return super().assign(eta, x)
        config = self.config
        p = config.prior
        gaussian = config.distribution == "gaussian"
        entropy = 0.0 if gaussian else sum(q * math.log(q) for q in (p, 1 - p) if q > 0)
        numbers = {"PRIOR": p, "CONSTANT": entropy, "WIDTH": config.e_step_deviation, "WEIGHT": config.inter_weight,
                   "GAUSSIAN": gaussian}  # fmt: skip
        psi, gamma, total, watched = self.kernels.Assignment.apply(eta, x, numbers, config.gamma_gradient)
        return psi, gamma, Info(total, *watched)


def replace(module: nn.Module, kernels: Any) -> None:
    """Puts the fast layers in place of the plain ones below the module."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            setattr(module, name, nn.Sequential(*replaced(list(child), kernels)))
        elif isinstance(child, Dense | Activation):
            setattr(module, name, replaced([child], kernels)[0])
        else:
            replace(child, kernels)


def replaced(layers: list[nn.Module], kernels: Any) -> list[nn.Module]:
    """The fast twins of a chain of layers."""
    fast: list[nn.Module] = []
    bias, phases = None, False
    for i, layer in enumerate(layers):
        followed = i + 1 < len(layers) and isinstance(layers[i + 1], Activation)
        absorbed = followed and kernels is not None and layers[i + 1].scale is not None
        if isinstance(layer, Activation):
            fast.append(FastActivation(layer, kernels, bias, phases))
            bias, phases = None, False
        elif isinstance(layer, Dense):
            fast.append(FastDense(layer))
        elif isinstance(layer, Convolution | UpConvolution):
            bias, phases = layer.bias if absorbed else None, isinstance(layer, UpConvolution)
            twin = (FastUpConvolution if phases else FastConvolution)(layer, bias=not absorbed)
            fast.append(FastOutput(twin) if phases and not followed else twin)
    return fast


@functools.cache
def load_kernels() -> Any:
    """The fused GPU kernels, or nothing and a word about it where they cannot be had."""
    try:
        from neural_em.model import kernels
    except ImportError as error:
        warnings.warn(f"no fused GPU kernels, training is slower: {error}", stacklevel=2)
        return None
    return kernels


def accelerate(model: NeuralEM) -> FastNeuralEM:
    """The fast twin of a model: the same numbers, the same parameters; training one trains the other."""
    return FastNeuralEM(model)
