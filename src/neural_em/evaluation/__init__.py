"""Scores of groupings, and the evaluation of a model on a data set."""

from neural_em.evaluation.baselines import connected_components, k_means
from neural_em.evaluation.evaluate import EvaluationConfig, evaluate
from neural_em.evaluation.matching import matched_iou, object_mean
from neural_em.evaluation.metrics import adjusted_mutual_info, adjusted_rand_index, confidence, grouping_scores
from neural_em.evaluation.results import Curve, Result, Summary
from neural_em.evaluation.summary import Aggregate, MeanDeviation, aggregate, aggregate_table, result_table

__all__ = [
    "Aggregate", "Curve", "EvaluationConfig", "MeanDeviation", "Result", "Summary", "adjusted_mutual_info",
    "adjusted_rand_index", "aggregate", "aggregate_table", "confidence", "connected_components", "evaluate",
    "grouping_scores", "k_means", "matched_iou", "object_mean", "result_table",
]  # fmt: skip
