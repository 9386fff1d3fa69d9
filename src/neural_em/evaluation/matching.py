"""Matched intersection over union: each object with the component that the best one-to-one matching gives it."""

import itertools

import torch
from torch import Tensor

from neural_em.evaluation.contingency import tables

_SUMS = 1 << 22  # numbers of the search held at a time
_MOST = 6  # up to so many objects and components all matchings are tried at once; above, image by image


def matched_iou(groups: Tensor, assignment: Tensor) -> Tensor:
    """Intersection over union of each object and its component, under the matching with the largest sum.

    Only scored pixels count, in the union too: what a component claims of the background is not held against it.

    Args:
        groups: True groups, integers (N,H,W) or (N,P) up to 255; pixels with 0 are not scored.
        assignment: The component of each pixel, integers >= 0 of the same shape.

    Returns:
        (N,G) float64: object g in column g - 1, NaN where the image has no such object, 0 for an object that is left
        without a component. `object_mean` gives one score an image.
    """
    return torch.cat([_matched(table) for table in tables(groups, assignment, keep_groups=True)])


def object_mean(iou: Tensor) -> Tensor:
    """Mean over the objects of each image: (N,G) -> (N,), NaN where there is none."""
    return iou.nanmean(dim=1) if iou.shape[1] else iou.new_full((len(iou),), torch.nan)


def best_matching(value: Tensor) -> Tensor:
    """The one-to-one matching of rows to columns with the largest sum, for many matrices (N,R,S) >= 0 at once.

    Returns (N,R) int64: each row's column, -1 for the rows left over when R > S.
    """
    N, R, S = value.shape
    side = max(R, S)
    if min(N, R, S) == 0 or side > _MOST:
        return _matching_one_by_one(value)
    square = torch.nn.functional.pad(value, (0, side - S, 0, side - R))  # a padded column is none
    orders = torch.tensor(list(itertools.permutations(range(side))), device=value.device)  # (P,side)
    rows = torch.arange(side, device=value.device)
    best = [part[:, rows, orders].sum(dim=2).argmax(dim=1) for part in square.split(max(1, _SUMS // orders.numel()))]
    column = orders[torch.cat(best)][:, :R]
    return torch.where(column < S, column, -1)


def _matched(table: Tensor) -> Tensor:
    """Matched IoU (n,G) of tables (n,G,K)."""
    size, other = table.sum(dim=2), table.sum(dim=1)
    union = size[:, :, None] + other[:, None, :] - table
    iou = table.to(torch.float64) / union.clamp(min=1)
    column = best_matching(iou)
    score = iou.gather(2, column.clamp(min=0)[:, :, None])[:, :, 0]
    return torch.where(size > 0, torch.where(column >= 0, score, 0.0), torch.nan)


def _matching_one_by_one(value: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    matched = torch.full(value.shape[:2], -1, dtype=torch.int64)
    for image, matrix in enumerate(value.cpu().numpy()):
        rows, columns = linear_sum_assignment(matrix, maximize=True)
        matched[image, torch.from_numpy(rows)] = torch.from_numpy(columns)
    return matched.to(value.device)
