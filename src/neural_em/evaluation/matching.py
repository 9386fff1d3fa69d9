"""Matched intersection over union: each object with the component that the best one-to-one matching gives it."""

from __future__ import annotations

import torch
from torch import Tensor

from neural_em.errors import refuse
from neural_em.evaluation.contingency import check_maps, tables

LARGEST_GROUP = 255
_STATES = 1 << 20  # of the search held at a time
_SUBSETS = 8  # up to so many objects or components all subsets are searched at once; above, image by image


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
    maps = check_maps(groups, assignment)
    if maps.largest_group > LARGEST_GROUP:
        refuse("groups", f"labels up to {LARGEST_GROUP}", maps.largest_group)
    scores = [_matched(table) for table in tables(maps, keep_groups=True)]
    if not scores:
        return torch.empty(len(groups), maps.largest_group, dtype=torch.float64, device=groups.device)
    return torch.cat(scores)


def object_mean(iou: Tensor) -> Tensor:
    """Mean over the objects of each image: (N,G) -> (N,), NaN where there is none."""
    return iou.nanmean(dim=1) if iou.shape[1] else iou.new_full((len(iou),), torch.nan)


def best_matching(value: Tensor) -> Tensor:
    """The one-to-one matching of rows to columns with the largest sum, for many matrices (N,R,S) >= 0 at once.

    Returns (N,R) int64: each row's column, -1 for the rows left over when R > S.
    """
    N, R, S = value.shape
    if min(N, R, S) == 0:
        return value.new_full((N, R), -1, dtype=torch.int64)
    if min(R, S) > _SUBSETS:
        return _matching_one_by_one(value)
    images = max(1, _STATES // (max(R, S) << min(R, S)))
    if R >= S:
        return torch.cat([_matching_by_subsets(part) for part in value.split(images)])
    # a match for every column of the shorter side, turned round
    parts = value.transpose(1, 2).split(images)
    column_rows = torch.cat([_matching_by_subsets(part) for part in parts])  # (N,S) of rows
    matched = value.new_full((N, R + 1), -1, dtype=torch.int64)
    columns = torch.arange(S, device=value.device).expand(N, S)
    matched.scatter_(1, torch.where(column_rows >= 0, column_rows, R), columns)
    return matched[:, :R]


def _matched(table: Tensor) -> Tensor:
    """Matched IoU (n,G) of tables (n,G,K)."""
    size, other = table.sum(dim=2), table.sum(dim=1)
    union = size[:, :, None] + other[:, None, :] - table
    iou = table.to(torch.float64) / union.clamp(min=1)
    column = best_matching(iou)
    score = iou.gather(2, column.clamp(min=0)[:, :, None])[:, :, 0]
    return torch.where(size > 0, torch.where(column >= 0, score, 0.0), torch.nan)


def _matching_by_subsets(value: Tensor) -> Tensor:
    """Row after row: the best sum for every set of columns taken so far; R >= S, each row may be left out."""
    N, R, S = value.shape
    subsets = torch.arange(1 << S, device=value.device)
    best = torch.where(subsets == 0, 0.0, -torch.inf).to(value.dtype).repeat(N, 1)  # (N,2^S)
    column = torch.arange(S, device=value.device)
    without = subsets[:, None] & ~(1 << column)  # (2^S,S): the set before the column joined it
    member = (subsets[:, None] >> column & 1).bool()
    choices = []
    for row in range(R):
        joined = torch.where(member, best[:, without] + value[:, row, None, :], -torch.inf)  # (N,2^S,S)
        score, choice = joined.max(dim=2)
        choices.append(torch.where(score > best, choice, -1))
        best = torch.maximum(score, best)
    taken = torch.full((N, 1), (1 << S) - 1, dtype=torch.int64, device=value.device)
    matched = []
    for choice in reversed(choices):
        matched.append(choice.gather(1, taken))
        taken = torch.where(matched[-1] >= 0, taken & ~(1 << matched[-1].clamp(min=0)), taken)
    return torch.cat(matched[::-1], dim=1)


def _matching_one_by_one(value: Tensor) -> Tensor:
    from scipy.optimize import linear_sum_assignment

    matched = torch.full(value.shape[:2], -1, dtype=torch.int64)
    for image, matrix in enumerate(value.cpu().numpy()):
        rows, columns = linear_sum_assignment(matrix, maximize=True)
        matched[image, torch.from_numpy(rows)] = torch.from_numpy(columns)
    return matched.to(value.device)
