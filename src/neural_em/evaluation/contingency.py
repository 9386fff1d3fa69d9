"""Tables of how many scored pixels each group shares with each component: all that clustering scores need."""

from collections.abc import Iterator

import torch
from torch import Tensor

from neural_em.errors import refuse

LARGEST_LABEL = 65535  # what a 16-bit label image can hold
LARGEST_GROUP = 255  # where each group has a row of its own
_FEW = 16  # labels up to here are counted as they are; larger ones by their rank in the image
_UNCOUNTED = (torch.bool, torch.uint16, torch.uint32, torch.uint64)  # types that PyTorch cannot compare and count
_CELLS = 1 << 22  # cells of the tables held at a time
_PIXELS = {"cpu": 1 << 17, "cuda": 1 << 26}  # pixels counted at a time: a CPU's cache, a part of a GPU's memory


def _checked(groups: Tensor, assignment: Tensor) -> tuple[Tensor, Tensor, int, int]:
    """A pair of label maps of one shape, (N,H,W) or (N,P), as (N,P), and their largest labels."""
    for name, labels in (("groups", groups), ("assignment", assignment)):
        if not isinstance(labels, Tensor):
            refuse(name, "an integer tensor", type(labels).__name__)
        if labels.is_floating_point() or labels.is_complex():
            refuse(name, "an integer tensor", str(labels.dtype))
        if labels.dim() not in (2, 3):
            refuse(name, "shape (N,H,W) or (N,P)", tuple(labels.shape))
    if groups.shape != assignment.shape:
        refuse("assignment", f"the shape of groups, {tuple(groups.shape)}", tuple(assignment.shape))
    if groups.device != assignment.device:
        refuse("assignment", f"a tensor on the device of groups, {groups.device}", assignment.device)
    groups, assignment = (
        labels.flatten(1).to(torch.int64 if labels.dtype in _UNCOUNTED else labels.dtype)
        for labels in (groups, assignment)
    )
    if groups.numel() == 0:
        return groups, assignment, 0, 0
    limits = [limit.to(torch.int64) for labels in (groups, assignment) for limit in torch.aminmax(labels)]
    group_low, group_high, low, high = torch.stack(limits).tolist()  # the one wait for the device
    for name, least, largest in (("groups", group_low, group_high), ("assignment", low, high)):
        if least < 0 or largest > LARGEST_LABEL:
            refuse(name, f"labels from 0 to {LARGEST_LABEL}", least if least < 0 else largest)
    return groups, assignment, group_high, high


def tables(groups: Tensor, assignment: Tensor, keep_groups: bool = False) -> Iterator[Tensor]:
    """Contingency tables (n,G,K) int64 of successive images, for label maps (N,H,W) or (N,P); group 0 is left out.

    Where labels are large they are replaced by their rank in the image, which changes the order and number of rows
    and columns and no score. ``keep_groups`` keeps row g - 1 for group g all the same.
    """
    groups, assignment, largest_group, largest_component = _checked(groups, assignment)
    if keep_groups and largest_group > LARGEST_GROUP:
        refuse("groups", f"labels up to {LARGEST_GROUP}", largest_group)
    if largest_group > _FEW and not keep_groups:
        groups = _ranks(groups, largest_group, first=1)
        largest_group = int(groups.max())
    if largest_component > _FEW:
        assignment = _ranks(assignment, largest_component, first=0)
        largest_component = int(assignment.max())
    G, K = largest_group + 1, largest_component + 1
    images = max(1, _CELLS // (G * K))
    for part, other in zip(groups.split(images), assignment.split(images), strict=True):
        yield _count(part, other, G, K)[:, 1:]


def _count(groups: Tensor, assignment: Tensor, G: int, K: int) -> Tensor:
    """How often each pair of labels meets in each image: (n,G,K)."""
    n, P = groups.shape
    images = max(1, _PIXELS[groups.device.type] // max(1, P))
    counts = []
    for part, other in zip(groups.split(images), assignment.split(images), strict=True):
        start = torch.arange(len(part), device=groups.device)[:, None] * (G * K)
        cell = torch.add(other, part.to(torch.int64), alpha=K)  # one pass; int64 whatever the assignment's type
        cell += start
        counts.append(torch.bincount(cell.flatten(), minlength=len(part) * G * K))
    return torch.cat(counts).view(n, G, K)


def _ranks(labels: Tensor, largest: int, first: int) -> Tensor:
    """Each label's rank among the labels of its image; labels below ``first`` stay as they are."""
    images = max(1, _CELLS // (largest + 1))
    ranks = torch.empty_like(labels, dtype=torch.int32)
    for part, out in zip(labels.split(images), ranks.split(images), strict=True):
        part = part.to(torch.int64)
        present = torch.zeros(len(part), largest + 1, dtype=torch.int32, device=labels.device)
        present.scatter_(1, part, 1)
        present[:, :first] = 0
        rank = present.cumsum(1, dtype=torch.int32)
        out.copy_(rank.gather(1, part) - (1 - first))
    return ranks
