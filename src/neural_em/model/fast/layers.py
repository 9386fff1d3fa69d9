"""The fast twins of the layers in `networks.py`: the same numbers, on the same parameters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.fast.gathering import Rows, Share, Tape
from neural_em.model.networks import EPSILON, Activation, activate

IN_PLACE = {"elu": F.elu_, "relu": F.relu_, "sigmoid": torch.sigmoid_}  # their gradients need the result only


class Use(torch.autograd.Function):
    """One use of a layer: gives the gradient of its input, and leaves its parameters' to the tape."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, layer: type[Linear], x: Tensor, *parameters: Tensor) -> Tensor:
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


class Linear(nn.Module):
    """A layer that is linear in its input and in its weight; subclasses say how it is applied and transposed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight: nn.Parameter = layer.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        self.dtype: torch.dtype | None = None  # of activations and products, where it is not the weight's
        self.tape: Tape | None = None
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self, steps: int) -> None:
        """Makes the weights ready for an unroll of so many steps."""
        self.parts = self.ready()
        self.tape = None
        if torch.is_grad_enabled() and any(part.requires_grad for part in self.parts):
            self.tape = Tape(self.gradients)
            self.parts = Share.apply(self.tape, *self.parts)

    def ready(self) -> tuple[Tensor, ...]:
        """The weight, as it is applied, and the bias."""
        return self.typed(self.weight)

    def typed(self, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        """Weight and bias, if there is one, in the type of the products; the layer's own bias if none is given."""
        parts = (weight, self.bias if bias is None else bias)
        return tuple(part.to(self.dtype or part.dtype) for part in parts if part is not None)

    def forward(self, x: Tensor) -> Tensor:
        """The layer, on the tape if there is one."""
        x = x.to(self.parts[0].dtype)
        if self.tape is None:
            return self.product(x, *self.parts)
        return Use.apply(self.tape, type(self), x, *self.parts)

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


class FastDense(Linear):
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
        weight = long_product(gradient, x)
        return (weight,) if self.bias is None else (weight, gradient.sum(0))


def long_product(a: Tensor, b: Tensor) -> Tensor:
    """The product a^T b of (N,p) and (N,q); many short ones side by side where N is far larger than p and q."""
    N = a.shape[0]
    parts = next((parts for parts in (256, 128, 64, 32) if N % parts == 0), 1)
    if not a.is_cuda or parts == 1 or max(a.shape[1], b.shape[1]) > N // 256:
        return a.T @ b
    return torch.bmm(a.reshape(parts, -1, a.shape[1]).transpose(1, 2), b.reshape(parts, -1, b.shape[1])).sum(0)


class FastImage(Linear):
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


class FastConvolution(FastImage):
    """4x4, stride 2."""

    stride = 2

    def ready(self) -> tuple[Tensor, ...]:
        """The weight with its channels last in memory, as the images are, and the bias."""
        return self.typed(self.weight.contiguous(memory_format=torch.channels_last))


class FastPatches(Linear):
    """4x4, stride 2, of one-channel images on a CPU: a product with their patches, channels last in memory."""

    def ready(self) -> tuple[Tensor, ...]:
        """The weight (out, 16) and the bias."""
        return self.typed(self.weight.flatten(1))

    @staticmethod
    def patches(x: Tensor) -> Tensor:
        """The 4x4 patches of (N,1,H,W) as rows (N*H/2*W/2, 16)."""
        return F.pad(x[:, 0], (1, 1, 1, 1)).unfold(1, 4, 2).unfold(2, 4, 2).reshape(-1, 16)

    @classmethod
    def product(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Of (N,1,H,W), to (N,out,H/2,W/2)."""
        N, _, H, W = x.shape
        return F.linear(cls.patches(x), weight, bias).view(N, H // 2, W // 2, -1).permute(0, 3, 1, 2)

    @staticmethod
    def transpose(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Every patch's gradient, added up where patches overlap."""
        rows = gradient.permute(0, 2, 3, 1).flatten(1, 2) @ weight
        return F.fold(rows.transpose(1, 2), (x.shape[2], x.shape[3]), 4, stride=2, padding=1)

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Of the patches' product."""
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        weight = rows.T @ self.patches(x)
        return (weight,) if self.bias is None else (weight, rows.sum(0))


class FastUpConvolution(FastImage):
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
        return self.typed(weight, None if self.bias is None else self.bias.repeat(4))


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
        self.tape: Tape | None = None
        self.rows = (Rows(1), Rows(1))
        self.parts: tuple[Tensor, ...] = ()

    def prepare(self, steps: int) -> None:
        """Makes the parameters ready for an unroll of so many steps."""
        self.rows = (Rows(steps), Rows(steps, backwards=True)) if torch.is_grad_enabled() else (Rows(1), Rows(1))
        self.parts = tuple(part for part in (self.scale, self.offset, self.bias) if part is not None)
        self.tape = None
        if self.kernels and self.scale is not None and torch.is_grad_enabled() and self.scale.requires_grad:
            self.tape = Tape(lambda parts: tuple(parts.sum(dim=0)))
            self.parts = Share.apply(self.tape, *self.parts)

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C) or (N,C,H,W)."""
        if not self.kernels or self.scale is None or not self.kernels.row_fits(x, self.phases):
            return self.plain(x)
        scale, offset, bias = (*self.parts, None)[:3]
        return self.kernels.Activation.apply(self.tape, self.rows, self.kind, self.phases, x, scale, offset, bias)

    def plain(self, x: Tensor) -> Tensor:
        """The same with PyTorch's own layer norm, whose scales are one for each number of a sample."""
        if self.scale is not None and x.dtype != self.scale.dtype:
            return self.plain(x.to(self.scale.dtype)).to(x.dtype)
        x = interleave(x) if self.phases else x
        x = x if self.bias is None else x + self.bias.reshape(-1, 1, 1)
        if self.scale is None or self.offset is None:
            return activate(x, None, None, self.kind)
        rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        pixels = rows[0].numel() // rows.shape[-1]
        scale, offset = (part.repeat(pixels).reshape(rows.shape[1:]) for part in (self.scale, self.offset))
        rows = IN_PLACE[self.kind](F.layer_norm(rows, rows.shape[1:], scale, offset, EPSILON))
        return rows.permute(0, 3, 1, 2) if x.dim() == 4 else rows


class FastOutput(nn.Module):
    """The last up-convolution, whose phases nothing else puts in place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C,H,W)."""
        return interleave(self.layer(x))


class FastFirst(Linear):
    """The first convolution of one-channel images, in kernels of its own; without its bias, which the next adds."""

    def __init__(self, layer: nn.Module, kernels: Any) -> None:
        super().__init__(layer)
        self.bias, self.kernels = None, kernels

    def ready(self) -> tuple[Tensor, ...]:
        """The weight (16, out)."""
        return (self.weight.flatten(1).T,)

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,1,H,W), to (N,out,H/2,W/2)."""
        return self.kernels.ToFeatures.apply(x, self.parts[0], self.tape, self.dtype or x.dtype)

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Of all images and all gradients of their features."""
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        patches = self.kernels.patches(x, self.kernels.FIRST, rows.dtype)
        return (long_product(patches, rows)[:16].to(self.weight.dtype),)


class FastLast(Linear):
    """The last up-convolution, to one channel, in kernels of its own.

    Along one axis, small pixel i reaches output pixels 2i - 2 .. 2i + 2; tap u falls on patch places 3 - u and 4 - u.
    """

    REACH = ((0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 0))

    def __init__(self, layer: nn.Module, kernels: Any) -> None:
        super().__init__(layer)
        self.kernels = kernels
        self.register_buffer("reach", torch.tensor(self.REACH).to(self.weight), persistent=False)

    def ready(self) -> tuple[Tensor, ...]:
        """The weight (25, in) and the bias."""
        assert self.bias is not None
        return torch.einsum("du,ev,iuv->dei", self.reach, self.reach, self.weight[0]).flatten(0, 1), self.bias

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,in,H,W), to (N,1,2H,2W)."""
        return self.kernels.ToImage.apply(x, *self.parts, self.tape)

    def gradients(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Of all features and all gradients of the images."""
        rows = x.permute(0, 2, 3, 1).flatten(0, 2)
        weight = long_product(self.kernels.patches(gradient, self.kernels.LAST, rows.dtype), rows)
        return weight[:25].to(self.weight.dtype), gradient.sum().reshape(1)
