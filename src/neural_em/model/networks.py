"""The layers and the two networks of the paper's appendix: encoder and decoder, for frames of any size.

Images inside are (N,C,H,W) with N = B*K, in channels-last memory; they are flattened as (H,W,C), the authors' order.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HALVES = (torch.float16, torch.bfloat16)
EPSILON = 1e-12  # of the layer norm, as in the authors' code
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"elu": F.elu, "relu": F.relu, "sigmoid": torch.sigmoid,
                                                       "tanh": torch.tanh}  # fmt: skip


class Dense(nn.Module):
    """Fully connected: (N,in) to (N,out)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Convolution(nn.Module):
    """4x4 convolution with stride 2: (N,in,H,W) to (N,out,H/2,W/2), for even H and W."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 4, 4))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=2, padding=1)


class UpConvolution(Convolution):
    """Doubles the image by nearest neighbours, then a 4x4 convolution: (N,in,H,W) to (N,out,2H,2W)."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return F.conv2d(F.pad(x, (1, 2, 1, 2)), self.weight, self.bias)  # 4 taps: one before, two after


class Activation(nn.Module):
    """Layer norm over a whole sample with a scale and offset for each channel (if wanted), then the non-linearity."""

    def __init__(self, channels: int, kind: str, normalise: bool = True) -> None:
        super().__init__()
        self.kind = kind
        self.scale = nn.Parameter(torch.ones(channels)) if normalise else None
        self.offset = nn.Parameter(torch.zeros(channels)) if normalise else None

    def forward(self, x: Tensor) -> Tensor:
        return activate(x, self.scale, self.offset, self.kind)


def recurrent(output: nn.Module, a: Tensor) -> tuple[Tensor, Tensor]:
    """What a recurrent layer gives for a (N,M), by its activation, and its next state, sigmoid(a)."""
    at_once = getattr(output, "with_state", None)  # the fast twin's
    return at_once(a) if at_once else (output(a), torch.sigmoid(a))


def activate(x: Tensor, scale: Tensor | None, offset: Tensor | None, kind: str) -> Tensor:
    """The non-linearity of the normalised x (N,C) or (N,C,H,W); scale and offset are (C,) or (N,C)."""
    if scale is not None and offset is not None:
        x = normalise(x)
        affine = (-1, x.shape[1]) + (1,) * (x.dim() - 2)  # one scale a channel
        x = x * scale.reshape(affine) + offset.reshape(affine)
    return ACTIVATIONS[kind](x)


def normalise(x: Tensor) -> Tensor:
    """Each sample of (N,...) to zero mean and unit deviation."""
    over = tuple(range(1, x.dim()))
    wide = x.float() if x.dtype in HALVES else x  # small squares vanish in half precision, and so does epsilon
    centred = wide - wide.mean(dim=over, keepdim=True)
    return (centred * torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + EPSILON)).to(x.dtype)


class Encoder(nn.Module):
    """Images (N,C,H,W) to features (N, self.outputs): strided convolutions, then a fully connected layer."""

    def __init__(
        self, channels: int, height: int, width: int, convolutions: tuple[int, ...], hidden: int, layer_norm: bool
    ) -> None:
        super().__init__()
        self.padding = padding(height, width, len(convolutions))
        layers: list[nn.Module] = []
        for outputs in convolutions:
            layers += [Convolution(channels, outputs), Activation(outputs, "elu", layer_norm)]
            channels = outputs
        self.convolutions = nn.Sequential(*layers)
        below, right = self.padding
        self.outputs = channels * (height + below >> len(convolutions)) * (width + right >> len(convolutions))
        self.hidden = nn.Sequential()
        if hidden:
            self.hidden = nn.Sequential(Dense(self.outputs, hidden), Activation(hidden, "elu", layer_norm))
            self.outputs = hidden

    def forward(self, x: Tensor) -> Tensor:
        if any(self.padding):
            x = F.pad(x, (0, self.padding[1], 0, self.padding[0]))
        x = self.convolutions(x)
        x = x.permute(0, 2, 3, 1).flatten(1)  # (N, H*W*C)
        return self.hidden(x)


class Decoder(nn.Module):
    """Vectors (N,inputs) to natural pixel parameters eta (N,C,H,W): the encoder's mirror image."""

    def __init__(
        self, inputs: int, channels: int, height: int, width: int, convolutions: tuple[int, ...], hidden: int,
        layer_norm: bool, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.height, self.width = height, width
        depth = len(convolutions)
        below, right = padding(height, width, depth)
        first = convolutions[-1] if convolutions else channels
        self.shape = (height + below >> depth, width + right >> depth, first)  # of the smallest image
        pixels = self.shape[0] * self.shape[1] * first
        layers: list[nn.Module] = []
        if hidden:
            layers += [Dense(inputs, hidden), Activation(hidden, "relu", layer_norm)]
            inputs = hidden
        layers.append(Dense(inputs, pixels, bias=bias or bool(convolutions)))
        if convolutions:
            layers.append(Activation(pixels, "relu", layer_norm))
        self.dense = nn.Sequential(*layers)
        layers = []
        sizes = (*reversed(convolutions), channels)
        for i in range(depth):
            layers.append(UpConvolution(sizes[i], sizes[i + 1]))
            if i < depth - 1:
                layers.append(Activation(sizes[i + 1], "relu", layer_norm))
        self.convolutions = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense(x)
        x = x.unflatten(1, self.shape).permute(0, 3, 1, 2)  # (N,C,h,w), channels last in memory
        return self.convolutions(x)[:, :, : self.height, : self.width]


def padding(height: int, width: int, halvings: int) -> tuple[int, int]:
    """Rows and columns to add so that the size can be halved that often."""
    unit = 1 << halvings
    return -height % unit, -width % unit


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Glorot-uniform weights; biases, scales and offsets stay as built (0, 1, 0)."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
