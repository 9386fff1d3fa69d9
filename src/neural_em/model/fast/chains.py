"""The fast twin of a chain of convolutions and activations on a GPU: each pair of neighbours in one kernel.

On the way there a convolution and the activation after it; on the way back a convolution's transpose and the activation
before it. Images that are too large for that are left to the layers one by one.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from neural_em.model.fast.activation import FastActivation
from neural_em.model.fast.convolutions import FastConvolution, FastFirst, FastLast, FastUpConvolution
from neural_em.model.fast.linear import constant

# which of the taps u = 0..3 takes an output pixel, at offset -1, 0 or 1, to phase a of the pixels that it has read
SPREAD = (((0, 0, 0, 1), (0, 1, 0, 0), (0, 0, 0, 0)), ((0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0)))


class Link(NamedTuple):
    """A convolution and the activation after it, ready for a kernel."""

    convolution: Any  # its twin
    activation: Any
    taps: Tensor  # the weight as it was made ready
    tape: Any
    parts: tuple[Tensor, ...]  # the activation's scale, offset and bias
    parts_tape: Any
    rows: Any
    weight: Tensor  # (F, taps): there
    back: Tensor | None  # (F, taps): to the link before


class FastChain(nn.Module):
    """Pairs of a convolution and an activation, and perhaps a last up-convolution after them.

    Args:
        layers: the fast twins, which are called one by one where the kernels are not made for the images.
        kernels: the fused kernels.
    """

    def __init__(self, layers: list[nn.Module], kernels: Any) -> None:
        super().__init__()
        self.layers, self.kernels = nn.ModuleList(layers), kernels
        self.pairs: list[tuple[Any, Any]] = list(zip(layers[::2], layers[1::2], strict=False))
        self.last: Any = layers[-1] if len(layers) % 2 else None
        self.up = type(layers[0]) is FastUpConvolution
        self.spread = constant(SPREAD, self.pairs[0][0].layer.weight)
        self.held: tuple[list[Link], Any] | None = None  # what `links` gave, during an unroll

    def hold(self, steps: int) -> None:
        """Makes the weights ready for an unroll of so many steps; the layers' own must be."""
        self.held = self.links() if steps else None

    def links(self) -> tuple[list[Link], Any]:
        """All pairs, with their weights as the kernels read them; likewise parameters, tape and weight of the end."""
        made = []
        for i, (convolution, activation) in enumerate(self.pairs):
            (taps, *_), tape = convolution.held or convolution.made_ready()
            parts, parts_tape, rows = activation.held or activation.made_ready()
            trained = torch.is_grad_enabled()
            with torch.no_grad():
                first = type(convolution) is FastFirst
                weight = taps.T.contiguous() if first else taps.permute(0, 2, 3, 1).flatten(1).contiguous()
                back = self.transposed(taps) if i > 0 and trained else None
            made.append(Link(convolution, activation, taps, tape, parts, parts_tape, rows, weight, back))
        if type(self.last) is not FastLast:
            return made, None
        parts, tape = self.last.held or self.last.made_ready()
        return made, (parts, tape, parts[0].detach().T.contiguous())

    def transposed(self, taps: Tensor) -> Tensor:
        """The weight (F, taps) of the way back through a convolution.

        Through an up-convolution it is that of the 3x3 convolution of its phases. Through one with stride 2, the
        gradient of what it has read is an image of four phases, each from the pixels around.
        """
        if self.up:
            return taps.flip(2, 3).permute(1, 2, 3, 0).flatten(1).contiguous()
        spread = self.spread.to(taps.dtype)
        return torch.einsum("apu,bqv,oiuv->abipqo", spread, spread, taps).flatten(0, 2).flatten(1).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Of (N,C,H,W)."""
        runs = self.runs(*x.shape[2:]) if x.dim() == 4 else [(0, 0)]
        ends = runs[-1][1] > len(self.pairs)  # the last layer belongs to the last run
        done = 0
        for first, stop in runs:
            for layer in itertools.chain(*self.pairs[done:first]):
                x = layer(x)
            if first < stop:
                x = self.run(x, first, stop)
            done = stop
        for layer in itertools.chain(*self.pairs[done:]):
            x = layer(x)
        return x if self.last is None or ends else self.last(x)

    def run(self, x: Tensor, first: int, stop: int) -> Tensor:
        """Pairs that follow each other, and the last layer if it is there to stop before."""
        links, ending = self.held or self.links()
        links, ending = links[first:stop], ending if stop > len(self.pairs) else None
        x = x if type(links[0].convolution) is FastFirst else x.to(links[0].taps.dtype)
        given = [part for link in links for part in (link.taps, *link.parts)] + list(ending[0] if ending else ())
        out: Tensor = Chain.apply(self.kernels, links, ending, torch.is_grad_enabled(), x, *given)
        return out

    def runs(self, H: int, W: int) -> list[tuple[int, int]]:
        """From which pair to before which the kernels are made for images of that size; and for the last layer."""
        runs, n = [(0, 0)], len(self.pairs)
        for i, (convolution, _) in enumerate(self.pairs):
            even, (outputs, inputs) = H % 2 == W % 2 == 0, convolution.layer.weight.shape[:2]
            if self.up:
                there, back = self.fits(H, W, 4 * outputs, 9 * inputs), self.fits(H, W, inputs, 36 * outputs)
                H, W = 2 * H, 2 * W
            else:
                H, W = H // 2, W // 2
                there = even and self.fits(H, W, outputs, 16 * inputs)
                back = self.fits(H, W, 4 * inputs, 9 * outputs)
            if there and back and runs[-1][0] < runs[-1][1] == i:
                runs[-1] = runs[-1][0], i + 1
            elif there:
                runs.append((i, i + 1))
        if runs[-1][1] == n and type(self.last) is FastLast and self.fits(H, W, outputs, 25):
            runs[-1] = runs[-1][0], n + 1
        return runs

    def fits(self, height: int, width: int, columns: int, depth: int) -> bool:
        """Whether a kernel is made for images of that size, with a weight (columns, depth)."""
        convolution = self.pairs[0][0]
        dtype = convolution.dtype or convolution.layer.weight.dtype
        fitting: bool = self.kernels.image_fits(height, width, columns, depth, dtype)
        return fitting


class Chain(torch.autograd.Function):
    """The links of a chain, and perhaps its end, an up-convolution to few channels."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Any, links: list[Link], ending: Any, kept: bool, x: Tensor, *given: Tensor
    ) -> Tensor:
        """Of x (N,C,H,W); ``given`` are all parameters, whose gradients go to the tapes."""
        x = x.contiguous(memory_format=torch.channels_last)
        dtype = links[0].convolution.dtype or x.dtype
        norms: list[Any] = []
        befores: list[Any] = []
        images = [x]
        for link in links:
            norm, before, x = Chain.link_there(kernels, link, x, dtype, kept)
            norms, befores, images = [*norms, norm], [*befores, before], [*images, x]
        if ending:
            weight, bias = ending[0]
            N, _, h, w = x.shape
            x = weight.new_empty(N, 2 * h, 2 * w, bias.numel()).permute(0, 3, 1, 2)
            kernels.to_image(images[-1], weight, bias, x, kernels.LAST)
        else:
            images.pop()
        if kept:
            ctx.save_for_backward(*images, *befores, *(part for norm in norms for part in norm[1:]))
        ctx.kernels, ctx.links, ctx.ending = kernels, links, ending
        return x

    @staticmethod
    def link_there(kernels: Any, link: Link, x: Tensor, dtype: torch.dtype, kept: bool) -> tuple[Any, Any, Tensor]:
        """The activation, what it was given and what it gives."""
        up, (N, _, H, W), F = type(link.convolution) is FastUpConvolution, x.shape, len(link.weight)
        h, w = (H, W) if up else (H // 2, W // 2)
        before = x.new_empty(N, h, w, F, dtype=dtype).permute(0, 3, 1, 2) if kept else None
        shape = (N, F // 4, 2 * h, 2 * w) if up else (N, F, h, w)
        out = link.rows[0].take(shape, x.new_empty(0, dtype=dtype))
        mean, deviation = x.new_empty(2, N, dtype=torch.promote_types(dtype, torch.float32))
        norm = kernels.Norm(link.activation.layer.kind, *link.parts, mean, deviation)
        kernels.image_there(x, link.weight, norm, before, out, kernels.AROUND if up else kernels.HALVING, up)
        return norm, before, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of x; the parameters' to the tapes."""
        kernels, links, ending, n = ctx.kernels, ctx.links, ctx.ending, len(ctx.links)
        saved = ctx.saved_tensors
        images, befores, parts = saved[: -6 * n], saved[-6 * n : -5 * n], saved[-5 * n :]
        norms = [kernels.Norm(link.activation.layer.kind, *parts[5 * i : 5 * i + 5]) for i, link in enumerate(links)]
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if ending:
            _, tape, weight = ending
            if tape is not None:
                tape.add(images[n], gradient)
            arguments = gradient, weight, kernels.REACHED
        for i in range(n - 1, -1, -1):
            link, norm, before = links[i], norms[i], befores[i]
            if i < n - 1 or ending:
                gradient = Chain.link_back(kernels, link, norm, before, *arguments)
            else:
                gradient = Chain.activation_back(kernels, link, norm, before, gradient)
            if link.tape is not None:
                link.tape.add(images[i], gradient)
            arguments = gradient, link.back, kernels.AROUND
        back = Chain.read(kernels, links[0], images[0], gradient) if ctx.needs_input_grad[4] else None
        return (None, None, None, None, back) + (None,) * (len(ctx.needs_input_grad) - 5)

    @staticmethod
    def link_back(kernels: Any, link: Link, norm: Any, before: Tensor, gradient: Tensor, weight: Tensor,
                  patches: Any) -> Tensor:  # fmt: skip
        """The gradient of what the activation was given, from that of what the next convolution gave."""
        up = type(link.convolution) is FastUpConvolution
        out: Tensor = link.rows[1].take(tuple(before.shape), before)
        place = kernels.SPLIT if up else kernels.JOINED
        parts = kernels.image_back(gradient, weight, norm, before, out, patches, place)
        if link.parts_tape is not None:
            link.parts_tape.add(parts)
        return out

    @staticmethod
    def activation_back(kernels: Any, link: Link, norm: Any, before: Tensor, gradient: Tensor) -> Tensor:
        """The same from the gradient of what the activation gave."""
        up = type(link.convolution) is FastUpConvolution
        N, F, h, w = before.shape
        P, C = (4 * h * w, F // 4) if up else (h * w, F)
        settings = kernels.activation_settings(norm.kind, True, True, up, P, C)
        back, parts = kernels.activation_backward(gradient, (before, *norm[1:]), link.rows[1], (N, P, C, w), settings)
        if link.parts_tape is not None:
            link.parts_tape.add(parts)
        return back

    @staticmethod
    def read(kernels: Any, link: Link, x: Tensor, gradient: Tensor) -> Tensor:
        """The gradient of what the first convolution has read."""
        if type(link.convolution) is not FastFirst:
            return type(link.convolution).transpose(gradient, link.taps, x)
        back = torch.empty_like(x)
        kernels.to_image(gradient, link.taps, None, back, kernels.FIRST)
        return back


def chained(layers: list[nn.Module], kernels: Any) -> nn.Module:
    """A sequence of fast twins: a chain, where it is one of convolutions and activations that are made for it."""
    pairs, last = list(zip(layers[::2], layers[1::2], strict=False)), layers[-1:] if len(layers) % 2 else []
    kinds = {type(convolution) for convolution, _ in pairs}
    up = kinds == {FastUpConvolution} and bool(last) and type(last[0]) in (FastLast, FastUpConvolution)
    down = bool(kinds) and kinds <= {FastFirst, FastConvolution} and not last
    absorbed = all(isinstance(activation, FastActivation) and activation.adds_bias for _, activation in pairs)
    return FastChain(layers, kernels) if kernels and absorbed and (up or down) else nn.Sequential(*layers)
