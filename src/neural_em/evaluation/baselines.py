"""Groupings that need no learning, scored beside the model so that its number means something."""

import numpy as np
import torch
from torch import Tensor

from neural_em import randomness
from neural_em.errors import refuse

ON = 0.25  # pixels above are part of some object: fits binary frames and grey digits
_IMAGES = 128  # images grouped at a time: what a CPU's cache holds


def connected_components(frames: Tensor, threshold: float = ON) -> Tensor:
    """Each connected patch of on-pixels is a group of its own; neighbours touch by a side or a corner.

    A pixel of the frames (N,C,H,W) is on where any channel is above the threshold. Returns int64 (N,H,W) on the frames'
    device: 0 where the image is off, then 1, 2, ... within each image.
    """
    from scipy import ndimage

    on = _on_pixels(frames, threshold)
    structure = np.zeros((3, 3, 3), dtype=bool)
    structure[1] = True  # neighbours within an image, none between images
    patches = torch.from_numpy(ndimage.label(on.cpu().numpy(), structure)[0].astype(np.int64))
    if patches.numel() == 0:
        return patches.to(frames.device)
    # patches are numbered through all images; each image's numbers start again at 1
    before = torch.cat([torch.zeros(1, dtype=torch.int64), patches.flatten(1).amax(dim=1).cummax(dim=0).values[:-1]])
    return torch.where(patches > 0, patches - before[:, None, None], 0).to(frames.device)


def k_means(frames: Tensor, components: int, keys: Tensor, starts: int = 4, iterations: int = 25,
            threshold: float = ON) -> Tensor:  # fmt: skip
    """k-means on the coordinates of the on-pixels: knows that objects are compact, and nothing else.

    Of several random ``starts``, drawn from an image's own key (N,), the one with the smallest distances is kept.
    Returns int64 (N,H,W) in [0, components): the nearest centre of every pixel of the frames (N,C,H,W), on or off.
    """
    if components < 1:
        refuse("components", "an integer >= 1", components)
    on = _on_pixels(frames, threshold)
    images = len(on) if on.is_cuda else _IMAGES
    parts = zip(on.split(max(1, images)), keys.split(max(1, images)), strict=True)
    return torch.cat([_k_means(part, components, key, starts, iterations) for part, key in parts])


def _k_means(on: Tensor, components: int, keys: Tensor, starts: int, iterations: int) -> Tensor:
    """k-means of on-pixels, bool (N,H,W)."""
    N, H, W = on.shape
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    every = torch.stack([y.flatten(), x.flatten()], dim=1).to(device=on.device, dtype=torch.float32)  # (P,2)
    on = on.reshape(N, H * W)
    most = max(1, int(on.sum(dim=1).max())) if N else 1  # on-pixels; images with fewer are filled up with weight 0
    weight, index = torch.sort(on.to(torch.float32), dim=1, descending=True, stable=True)
    place, weight = every[index[:, :most]], weight[:, :most].contiguous()  # (N,S,2), (N,S)
    best = torch.zeros(N, H * W, dtype=torch.int64, device=on.device)
    least = torch.full((N,), torch.inf, device=on.device)
    for start in range(starts):
        centres = _first_centres(place, weight, components, keys, start)
        for _ in range(iterations):
            before, centres = centres, _moved(place, weight, centres)
            if torch.equal(before, centres):
                break
        spread = (_distances(place, centres).amin(dim=2) * weight).sum(dim=1)
        nearest = _distances(every[None], centres).argmin(dim=2)  # (N,P)
        best = torch.where((spread < least)[:, None], nearest, best)
        least = torch.minimum(spread, least)
    return best.view(N, H, W)


def _first_centres(place: Tensor, weight: Tensor, components: int, keys: Tensor, start: int) -> Tensor:
    """First centres (N,K,2) by k-means++: pixels drawn in proportion to the squared distance from those drawn."""
    u = randomness.uniform(keys.to(weight.device), components, stream=start)  # (N,K)
    centres: list[Tensor] = []
    chance, nearest = weight, torch.full_like(weight, torch.inf)
    for k in range(components):
        mass = chance.cumsum(dim=1)
        drawn = torch.searchsorted(mass, u[:, k : k + 1] * mass[:, -1:], right=True).clamp(max=mass.shape[1] - 1)
        centres.append(place.gather(1, drawn[:, :, None].expand(-1, -1, 2)))  # (N,1,2)
        nearest = torch.minimum(nearest, _distances(place, centres[-1])[:, :, 0])
        chance = nearest * weight
    return torch.cat(centres, dim=1)


def _moved(place: Tensor, weight: Tensor, centres: Tensor) -> Tensor:
    """Each centre (N,K,2) to the mean of the on-pixels nearest to it; one that has none stays."""
    nearest = _distances(place, centres).argmin(dim=2)  # (N,S)
    component = torch.arange(centres.shape[1], device=place.device)[:, None]
    member = torch.where(nearest[:, None, :] == component, weight[:, None, :], 0.0)  # (N,K,S)
    count = member.sum(dim=2)[:, :, None]
    return torch.where(count > 0, member @ place / count.clamp(min=1), centres)


def _distances(place: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (N,S,K) of places (N,S,2) from centres (N,K,2).

    Written out, so that a pixel's result does not depend on the batch it is in.
    """
    y, x = (place[:, :, None, axis] - centres[:, None, :, axis] for axis in (0, 1))
    return y * y + x * x


def _on_pixels(frames: Tensor, threshold: float) -> Tensor:
    """(N,C,H,W) -> bool (N,H,W)."""
    if frames.dim() != 4:
        refuse("frames", "shape (N,C,H,W)", tuple(frames.shape))
    return (frames > threshold).any(dim=1)
