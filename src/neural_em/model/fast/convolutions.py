"""The fast twins of the convolutions in `networks.py`: the same numbers, on the same parameters."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_em.model.fast.linear import ON_ARM, Linear, constant, long_sum


class FastConvolution(Linear):
    """4x4, stride 2."""

    stride = 2
    by_products = ON_ARM  # PyTorch has no fast way back through a convolution there

    def ready(self) -> tuple[Tensor, ...]:
        """The weight with its channels last in memory, as the images are, and the bias."""
        return self.with_bias(self.layer.weight.contiguous(memory_format=torch.channels_last))

    @classmethod
    def product(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, stride=cls.stride, padding=1)

    @classmethod
    def transpose(cls, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        if gradient.is_cuda or not cls.by_products or x.shape[2] % 2 or x.shape[3] % 2:
            return cls.backward(gradient, x, weight, (True, False, False))[0]
        turned, back = weight.flip(2, 3).transpose(0, 1), torch.empty_like(x, memory_format=torch.channels_last)
        for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):  # each phase of the image is a 2x2 convolution of the gradient
            part = turned[:, :, a::2, b::2].contiguous(memory_format=torch.channels_last)
            back[:, :, a::2, b::2] = F.conv2d(F.pad(gradient, (1 - b, b, 1 - a, a)), part)
        return back

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        if x.is_cuda or not self.by_products:
            wanted = (False, True, len(parts) > 1)
            return tuple(self.backward(gradient, x, parts[0].detach(), wanted)[1 : 1 + len(parts)])
        out, channels, taps, _ = parts[0].shape
        rows = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        weight = (rows.T @ patches(x, taps, self.stride)).view(out, taps, taps, channels).permute(0, 3, 1, 2)
        return (weight, rows.sum(0))[: len(parts)]

    @classmethod
    def backward(cls, gradient: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
        """Gradients of input, weight and bias, those that are wanted."""
        return torch.ops.aten.convolution_backward(
            gradient, x, weight, [weight.shape[0]], [cls.stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, wanted
        )


def patches(x: Tensor, taps: int, stride: int, padding: int = 1) -> Tensor:
    """What each place of a convolution of (N,C,H,W) reads, as rows (N*h*w, taps*taps*C)."""
    x = F.pad(x.permute(0, 2, 3, 1), (0, 0) + (padding,) * 4)
    return x.unfold(1, taps, stride).unfold(2, taps, stride).permute(0, 1, 2, 4, 5, 3).reshape(-1, taps**2 * x.shape[3])


def folded(rows: Tensor, size: tuple[int, int], taps: int, padding: int) -> Tensor:
    """Patches (N,h*w,taps*taps), added up where they overlap: (N,1,H,W). As channels of one image, which is faster."""
    parts = rows.transpose(1, 2).reshape(1, -1, rows.shape[1])
    return F.fold(parts, size, taps, stride=2, padding=padding).view(-1, 1, *size)


class FastPatches(FastConvolution):
    """4x4, stride 2, of one-channel images on a CPU: a product with their patches, channels last in memory."""

    by_products = True

    @classmethod
    def product(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Of (N,1,H,W), to (N,out,H/2,W/2)."""
        N, _, H, W = x.shape
        return F.linear(patches(x, 4, 2), weight.flatten(1), bias).view(N, H // 2, W // 2, -1).permute(0, 3, 1, 2)

    @classmethod
    def transpose(cls, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Every patch's gradient, added up where patches overlap."""
        rows = gradient.permute(0, 2, 3, 1).flatten(1, 2) @ weight.flatten(1)
        return folded(rows, (x.shape[2], x.shape[3]), 4, 1)


class FastUpConvolution(FastConvolution):
    """All four phases of the doubled image as the channels (2,2,out) of one 3x3 convolution of the small one.

    Along one axis, output pixel 2i + a reads the taps u = 0..3 at doubled positions 2i + a + u - 1, which are the small
    pixels i + floor((a + u - 1) / 2): SHARE[a][offset][u] says which tap falls on which of the offsets -1, 0, 1.
    """

    stride = 1
    SHARE = (((1, 0, 0, 0), (0, 1, 1, 0), (0, 0, 0, 1)), ((0, 0, 0, 0), (1, 1, 0, 0), (0, 0, 1, 1)))

    def __init__(self, layer: nn.Module, bias: bool, interleaves: bool) -> None:
        super().__init__(layer, bias)
        self.share, self.interleaves = constant(self.SHARE, self.layer.weight), interleaves
        self.last: tuple[Tensor, Tensor] | None = None  # a copy of the last weight, and its phases

    def ready(self) -> tuple[Tensor, ...]:
        """The phases' weight (4*out, in, 3, 3) and bias (4*out,).

        On a CPU, without gradients, the last weight's phases if the weight is still the same. The numbers themselves
        are compared: they can change in ways that torch keeps no count of.
        """
        weight = self.layer.weight
        if torch.is_grad_enabled() or weight.is_cuda:
            return self.with_bias(self.of_phases(weight), 4)
        if self.last is None or self.last[0].dtype != weight.dtype or not torch.equal(self.last[0], weight):
            weight = weight.clone()
            self.last = weight, self.of_phases(weight)
        return self.with_bias(self.last[1], 4)

    def of_phases(self, weight: Tensor) -> Tensor:
        phases = torch.einsum("apu,bqv,oiuv->aboipq", self.share, self.share, weight)
        return phases.flatten(0, 2).contiguous(memory_format=torch.channels_last)

    @classmethod
    def transpose(cls, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        if gradient.is_cuda or not cls.by_products:
            return super().transpose(gradient, weight, x)
        turned = weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)
        return cls.product(gradient, turned)  # a convolution again

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,in,H,W): the phases, put in place if nothing that follows does."""
        x = super().forward(x)
        return interleave(x) if self.interleaves else x


class FastDifferences(FastUpConvolution):
    """The same on ARM with 24 taps instead of 36, without gradients: the rows' phases share a product.

    Along the rows, with d[i] = x[i+1] - x[i] and the taps k, output 2i is s x[i] - k0 d[i-1] + k3 d[i] and output
    2i + 1 is s x[i] + (k2 + k3) d[i], where s is the sum of the taps.
    """

    PARTS = ((1, 1, 1, 1), (-1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1))

    def of_phases(self, weight: Tensor) -> Tensor:
        """Without gradients, the weight (4*2*out, in, 1, 3) of the rows' parts and the columns' phases."""
        if torch.is_grad_enabled():
            return super().of_phases(weight)
        parts = torch.einsum("ku,bqv,oiuv->kboiq", constant(self.PARTS, weight), self.share, weight)
        return parts.flatten(0, 2).unsqueeze(2).contiguous(memory_format=torch.channels_last)

    @classmethod
    def product(cls, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if weight.shape[2] == 3:
            return super().product(x, weight, bias)
        half = len(weight) // 4  # two phases
        both = F.conv2d(x, weight[:half], None if bias is None else bias[:half], padding=(0, 1))
        difference = F.pad(x, (0, 0, 1, 1)).diff(dim=2)
        before, after, last = F.conv2d(difference, weight[half:], padding=(0, 1)).chunk(3, dim=1)
        return torch.cat([both + before[:, :, :-1] + after[:, :, 1:], both + last[:, :, 1:]], dim=1)


def interleave(x: Tensor) -> Tensor:
    """Puts the phases where they belong: (N, (2,2,C), H, W) to (N,C,2H,2W), channels last in memory."""
    N, C, H, W = x.shape
    x = x.permute(0, 2, 3, 1).reshape(N, H, W, 2, 2, C // 4).transpose(2, 3)
    return x.reshape(N, 2 * H, 2 * W, C // 4).permute(0, 3, 1, 2)


class FastFirst(Linear):
    """The first convolution, of few channels, in kernels of its own; without its bias, which the next adds."""

    def __init__(self, layer: nn.Module, kernels: Any) -> None:
        super().__init__(layer, bias=False)
        self.kernels = kernels

    def ready(self) -> tuple[Tensor, ...]:
        """The weight (16*in, out)."""
        return (self.layer.weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous(),)

    def applied_as(self) -> None:
        """The kernels take the weight as it is."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:  # not what the kernels are made for
            return F.conv2d(x, self.layer.weight, stride=2, padding=1).to(self.dtype or x.dtype)
        parts, tape = self.held or self.made_ready()
        return self.kernels.ToFeatures.apply(x, *parts, tape, self.dtype or x.dtype)

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        return (self.kernels.patches_by_features(x, gradient, self.kernels.FIRST),)


class FastLast(Linear):
    """The last up-convolution, to few channels, in kernels of its own.

    Along one axis, small pixel i reaches output pixels 2i - 2 .. 2i + 2; tap u falls on patch places 3 - u and 4 - u.
    """

    REACH = ((0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0), (1, 1, 0, 0), (1, 0, 0, 0))

    def __init__(self, layer: nn.Module, kernels: Any) -> None:
        super().__init__(layer)
        self.kernels, self.reach = kernels, constant(self.REACH, self.layer.weight)

    def ready(self) -> tuple[Tensor, ...]:
        """The weight (25*out, in) and the bias."""
        weight = torch.einsum("du,ev,oiuv->deoi", self.reach, self.reach, self.layer.weight)
        return weight.flatten(0, 2).contiguous(), self.layer.bias

    def applied_as(self) -> None:
        """The kernels take the weight as it is."""

    def forward(self, x: Tensor) -> Tensor:
        parts, tape = self.held or self.made_ready()
        return self.kernels.ToImage.apply(x, *parts, tape)

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        rows = gradient.permute(0, 2, 3, 1).flatten(2).flatten(0, 1)  # of (W,C): wider than pixels, faster to add up
        bias = long_sum(rows, self.kernels).view(-1, gradient.shape[1]).sum(0)
        return self.kernels.patches_by_features(gradient, x, self.kernels.LAST), bias


class FastFolded(FastLast):
    """The last up-convolution, to one channel, on a CPU: a product, whose rows are added up where they overlap."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer, None)

    forward = Linear.forward

    @staticmethod
    def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Of (N,in,H,W), to (N,1,2H,2W)."""
        rows = x.permute(0, 2, 3, 1).flatten(1, 2) @ weight.T
        return folded(rows, (2 * x.shape[2], 2 * x.shape[3]), 5, 2) + bias

    @staticmethod
    def seen(gradient: Tensor) -> Tensor:
        """The patches of 5x5 that each small pixel reaches."""
        return patches(gradient, 5, 2, 2)

    @staticmethod
    def transpose(reached: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        N, _, H, W = x.shape
        return (reached @ weight).view(N, H, W, -1).permute(0, 3, 1, 2)

    def gradients(self, parts: tuple[Tensor, ...], x: Tensor, reached: Tensor) -> tuple[Tensor, ...]:
        centre = reached.sum(0).view(5, 5)[2:4, 2:4]  # every pixel of the image once
        return reached.T @ x.permute(0, 2, 3, 1).flatten(0, 2), centre.sum().reshape(1)
