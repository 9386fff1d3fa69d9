"""Scores of a grouping, one an image, for many images at a time; pure functions of label maps.

Pixels with group 0 are not scored. An image with nothing to score is NaN. Everything is computed in float64, on the
device the maps are on, with scikit-learn's conventions where a score is not defined by its formula.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neural_em.errors import refuse, unknown
from neural_em.evaluation.contingency import tables

Average = Literal["max", "arithmetic"]
AVERAGES: tuple[Average, ...] = ("max", "arithmetic")
_TAIL = math.log(2e17)  # what lies outside the summed range of a distribution has probability below exp(-_TAIL) * 2
_TERMS = {"cpu": 1 << 18, "cuda": 1 << 24}  # terms of the expected mutual information held at a time
_KEY_LIMIT = 1 << 21  # three counts below this fit into one 64-bit key


class GroupingScores(NamedTuple):
    """The clustering scores of N images, each (N,) float64."""

    ami_max: Tensor
    ami_arithmetic: Tensor
    ari: Tensor


def adjusted_mutual_info(groups: Tensor, assignment: Tensor, average: Average = "max") -> Tensor:
    """Adjusted mutual information between groups and assignment, exact under the hypergeometric model.

    Args:
        groups: True groups, integers (N,H,W) or (N,P); pixels with 0 are not scored.
        assignment: The component of each pixel, integers >= 0 of the same shape.
        average: How the two entropies are combined into the normaliser: ``max`` (the paper's) or ``arithmetic``.

    Returns:
        One score an image, (N,) float64: 1 for the same partition, 0 on average for a random one, NaN where no pixel
        is scored.
    """
    if average not in AVERAGES:
        unknown("average", average, AVERAGES)
    return grouping_scores(groups, assignment)[AVERAGES.index(average)]


def adjusted_rand_index(groups: Tensor, assignment: Tensor) -> Tensor:
    """Adjusted Rand index between groups and assignment: (N,) float64; arguments as in `adjusted_mutual_info`."""
    return torch.cat([_rand_index(table) for table in tables(groups, assignment)])


def grouping_scores(groups: Tensor, assignment: Tensor) -> GroupingScores:
    """Both normalisers' mutual information and the Rand index, counting the pixels once."""
    parts = [(*_mutual_info(table), _rand_index(table)) for table in tables(groups, assignment)]
    return GroupingScores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def confidence(gamma: Tensor, groups: Tensor | None = None) -> Tensor:
    """Mean over the scored pixels of the largest responsibility gamma (N,K,1,H,W): (N,) float64.

    Pixels whose true group (N,H,W) is 0 are not scored; without groups all are. NaN where no pixel is scored.
    """
    if gamma.dim() != 5 or gamma.shape[2] != 1:
        refuse("gamma", "shape (N,K,1,H,W)", tuple(gamma.shape))
    N, _, _, H, W = gamma.shape
    largest = gamma.amax(dim=1).reshape(N, H * W).to(torch.float64)
    if groups is None:
        return largest.mean(dim=1)
    if groups.shape != (N, H, W):
        refuse("groups", f"shape {(N, H, W)}", tuple(groups.shape))
    scored = (groups != 0).reshape(N, H * W)
    return (largest * scored).sum(dim=1) / scored.sum(dim=1)  # 0 / 0 is NaN


def expected_mutual_info(table: Tensor) -> Tensor:
    """Expected mutual information (N,), in nats, of two random partitions with the margins of tables (N,G,K).

    With a, b the sizes of a group and a component, n pixels, and X their overlap, hypergeometric, each pair gives
    E[X/n log(nX/(ab))]. Because x P(X = x) = (ab/n) P(Y = x - 1), where Y is hypergeometric with n, a and b one
    smaller, this is ab/n^2 (E log(1 + Y) + log(n/(ab))), and only E log(1 + Y) has to be summed. Zeros give 0.
    """
    n = table.sum(dim=(1, 2))[:, None, None]
    a, b = table.sum(dim=2)[:, :, None], table.sum(dim=1)[:, None, :]
    n, a, b = torch.broadcast_tensors(n, a, b)
    smaller = torch.minimum(a, b).flatten()
    larger = torch.where(smaller > 0, torch.maximum(a, b).flatten(), 0)  # empty groups are all one case
    total = torch.where(smaller > 0, n.flatten(), 0)
    (total, smaller, larger), which = _distinct(total, smaller, larger)
    n, a, b = total.to(torch.float64), smaller.to(torch.float64), larger.to(torch.float64)
    cell = a * b / n**2 * (_expected_log(n, a, b) + torch.log(n) - torch.log(a) - torch.log(b))
    cell = torch.where(a > 0, cell, 0.0)
    return cell[which].view(table.shape).sum(dim=(1, 2))


def _mutual_info(table: Tensor) -> tuple[Tensor, Tensor]:
    """Adjusted mutual information of each table under the two averages, in the order of AVERAGES."""
    n = table.sum(dim=(1, 2)).to(torch.float64)
    a, b = table.sum(dim=2).to(torch.float64), table.sum(dim=1).to(torch.float64)
    joint = table.to(torch.float64)
    entropy_a, entropy_b, entropy_joint = (_entropy(counts, n) for counts in (a, b, joint.flatten(1)))
    expected = expected_mutual_info(table)
    gain = entropy_a + entropy_b - entropy_joint - expected
    met = table > 0
    same = (met.sum(dim=2) <= 1).all(dim=1) & (met.sum(dim=1) <= 1).all(dim=1)  # each group is exactly one component
    # one group against several says nothing: its mutual information and what is expected of it are both zero
    trivial = ((a > 0).sum(dim=1) == 1) ^ ((b > 0).sum(dim=1) == 1)

    def adjusted(normaliser: Tensor) -> Tensor:
        score = torch.where(trivial, 0.0, gain / (normaliser - expected))
        return torch.where(n > 0, torch.where(same, 1.0, score), torch.nan)

    return adjusted(torch.maximum(entropy_a, entropy_b)), adjusted((entropy_a + entropy_b) / 2)


def _rand_index(table: Tensor) -> Tensor:
    """Adjusted Rand index of each table, from ordered pairs of pixels."""
    n = table.sum(dim=(1, 2))
    squares = (table**2).sum(dim=(1, 2))
    only_groups = ((table.sum(dim=2) ** 2).sum(dim=1) - squares).to(torch.float64)  # together in one, not in the other
    only_components = ((table.sum(dim=1) ** 2).sum(dim=1) - squares).to(torch.float64)
    both = (squares - n).to(torch.float64)
    neither = (n**2 - n).to(torch.float64) - both - only_groups - only_components
    gain = 2 * (both * neither - only_groups * only_components)
    full = (both + only_groups) * (only_groups + neither) + (both + only_components) * (only_components + neither)
    score = torch.where((only_groups == 0) & (only_components == 0), 1.0, gain / full)
    return torch.where(n > 0, score, torch.nan)


def _entropy(counts: Tensor, n: Tensor) -> Tensor:
    """Entropy in nats of counts (N,S) that sum to n (N,)."""
    share = counts / n.clamp(min=1)[:, None]
    return -torch.special.xlogy(share, share).sum(dim=1)


def _distinct(n: Tensor, a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """The distinct triples, and for each triple given the place of its equal among them."""
    key = (n * _KEY_LIMIT + a) * _KEY_LIMIT + b
    if n.numel() == 0 or int(n.max()) >= _KEY_LIMIT:  # images this large are few: each triple stands for itself
        return (n, a, b), torch.arange(n.numel(), device=n.device)
    distinct, which = torch.unique(key, return_inverse=True)
    return (distinct // _KEY_LIMIT**2, distinct // _KEY_LIMIT % _KEY_LIMIT, distinct % _KEY_LIMIT), which


def _expected_log(n: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """E log(1 + Y) for Y hypergeometric: a - 1 draws out of n - 1, of which b - 1 count; a <= b <= n; all (R,).

    The weights are multiplied up from the first term of the range by P(y + 1) / P(y), so nothing overflows or is
    rounded more than once a term; past the last possible y a factor is zero, so no range needs a mask.
    """
    n, a, b = (n - 1).clamp(min=0), (a - 1).clamp(min=0), (b - 1).clamp(min=0)
    low, high = _range(n, a, b)
    width, order = torch.sort(high - low + 1)
    if len(width) == 0:
        return width
    rows = max(1, _TERMS[n.device.type] // int(width[-1]))
    last = torch.arange(rows - 1, len(width) + rows - 1, rows, device=n.device).clamp(max=len(width) - 1)
    widths = [int(size) for size in width[last].tolist()]
    logs = torch.log(torch.arange(1, int(high.max()) + widths[-1] + 1, device=n.device, dtype=torch.float64))
    result = torch.empty_like(n)
    for index, size in zip(order.split(rows), widths, strict=True):
        start = low[index]
        y = start[:, None] + torch.arange(size - 1, device=n.device, dtype=torch.float64)
        ratio = (a[index, None] - y) * (b[index, None] - y)
        y += 1
        ratio /= y * (y + (n - a - b)[index, None])
        weight = torch.cat([torch.ones_like(start)[:, None], torch.cumprod(ratio, dim=1)], dim=1)
        log = logs.unfold(0, size, 1)[start.to(torch.int64)]  # log(1 + y), copied row by row
        result[index] = (weight * log).sum(dim=1) / weight.sum(dim=1)
    return result


def _range(n: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """First and last value of a hypergeometric variable that can matter in float64: a draws, b of n count.

    The distance from the mean is the smaller of what Serfling's and Bernstein's inequalities allow.
    """
    share = b / n.clamp(min=1)
    mean, variance = a * share, a * share * (1 - share)
    serfling = torch.sqrt(_TAIL / 2 * a * (1 - (a - 1) / n.clamp(min=1)))
    bernstein = _TAIL / 3 + torch.sqrt(_TAIL**2 / 9 + 2 * _TAIL * variance)
    reach = torch.minimum(serfling, bernstein)
    low = torch.maximum((a + b - n).clamp(min=0), torch.floor(mean - reach))
    return low, torch.minimum(a, torch.ceil(mean + reach))
