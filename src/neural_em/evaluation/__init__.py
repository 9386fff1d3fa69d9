"""Scores of groupings, and the evaluation of a model on a data set."""

from neural_em.evaluation.baselines import connected_components, k_means
from neural_em.evaluation.matching import matched_iou, object_mean
from neural_em.evaluation.metrics import (
    GroupingScores,
    adjusted_mutual_info,
    adjusted_rand_index,
    confidence,
    grouping_scores,
)

__all__ = [
    "GroupingScores",
    "adjusted_mutual_info",
    "adjusted_rand_index",
    "confidence",
    "connected_components",
    "grouping_scores",
    "k_means",
    "matched_iou",
    "object_mean",
]
