"""What confines a component to one object: a window, for an object is in one place, and one colour."""

import torch
from torch import Tensor

EDGE = 5.0  # log-odds that a pixel on the window's edge loses


def windowed(eta: Tensor, share: float) -> Tensor:
    """Eta (B,K,C,H,W) whose last channel, log-odds, falls with the fourth power of the distance from their own centre.

    The centre is the mean place of the pixels, each by the square of its probability; the middle of the frame counts as
    one more pixel, and is the centre of a component that predicts nothing. The window's radius is a share of the
    frame's shorter side.
    """
    *_, H, W = eta.shape
    odds = eta[:, :, -1:].to(torch.promote_types(eta.dtype, torch.float32))  # half precision would lose whole pixels
    weight = torch.sigmoid(odds).square()
    rows, columns = (torch.arange(n, device=odds.device, dtype=odds.dtype) - 0.5 * (n - 1) for n in (H, W))
    rows = rows.unsqueeze(1)
    mass = weight.sum(dim=(-2, -1), keepdim=True) + 1
    y, x = ((weight * place).sum(dim=(-2, -1), keepdim=True) / mass for place in (rows, columns))
    distance = ((rows - y).square() + (columns - x).square()) / (share * min(H, W)) ** 2
    odds = (odds - EDGE * distance.square()).to(eta.dtype)
    return odds if eta.shape[2] == 1 else torch.cat([eta[:, :, :-1], odds], dim=2)


def one_coloured(eta: Tensor) -> Tensor:
    """Eta (B,K,C+1,H,W) of masked pixels with a single colour for each component, the mean of all its pixels'."""
    eta = eta.to(torch.promote_types(eta.dtype, torch.float32))
    colour, odds = eta[:, :, :-1], eta[:, :, -1:]
    return torch.cat([colour.mean(dim=(-2, -1), keepdim=True).expand_as(colour), odds], dim=2)
