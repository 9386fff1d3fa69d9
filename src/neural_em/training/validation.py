"""Validation: loss and scores on fixed samples, as a rule with fixed noise and starts, so that epochs compare."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neural_em.data import Dataset
from neural_em.evaluation import grouping_scores
from neural_em.model import Model
from neural_em.model.inference import batch_that_fits, infer, next_groups, prior_of
from neural_em.model.mixture import foreground
from neural_em.training import distributed
from neural_em.training.config import TrainingConfig
from neural_em.training.order import validation_keys

_LARGEST_BATCH = 500
ONE_COMPONENT, UNIFORM, ALIKE = "one component", "uniform", "alike"
USUAL_STEPS = 500  # of the recorded runs that came to bind, all did so by then (results/curves and the ablations)
BINDING_FAILURES = {
    ONE_COMPONENT: "one component explains more than 95 % of the scored pixels",
    UNIFORM: "the assignments of the scored pixels stay nearly uniform",
    ALIKE: "all scored pixels of an image go to the components in nearly the same parts",
}
TELLS_APART = 0.11  # no epoch of the recorded runs that was below it had an AMI above 0.4


class Validation(NamedTuple):
    """Means over the validation samples, named as in `Row`; None where there was nothing to take a mean of."""

    validation_loss: float | None
    upper_bound: float | None
    confidence: float | None
    largest_share: float | None
    ami_last: float | None = None
    ami_mean: float | None = None
    ari_last: float | None = None
    ari_mean: float | None = None

    def binding_failure(self, components: int) -> str:
        """Which kind of failure the whole validation shows; empty for none. A spare component may be empty."""
        if components == 1 or self.confidence is None or self.largest_share is None:
            return ""
        if self.confidence < 1 / components + 0.1 * (1 - 1 / components):
            return UNIFORM
        if self.largest_share > 0.95:
            return ONE_COMPONENT
        return ALIKE if self.confidence - self.largest_share < TELLS_APART * (1 - self.largest_share) else ""


@torch.no_grad()
def validate(
    model: Model, dataset: Dataset, config: TrainingConfig, interrupted: Callable[[], bool] = lambda: False,
    epoch: int = 0,
) -> Validation | None:  # fmt: skip
    """Loss on all samples, scores on the first ``config.score_size``; nothing is waited for until the end.

    ``interrupted`` is asked between batches; where it says so, there is no result. ``epoch`` is for noise and
    starts that are fresh in each.
    """
    device = next(model.parameters()).device
    frames, part = dataset.shape[0], distributed.part(len(dataset))
    steps = config.steps or (model.config.steps if frames == 1 else frames - 1)
    numbers = steps * config.components * math.prod(dataset.shape[1:])
    batch = batch_that_fits(numbers, device, _LARGEST_BATCH)
    sums = torch.zeros(len(Validation._fields), 2, dtype=torch.float64, device=device)
    for first in range(part.start, part.stop, batch):
        if interrupted():
            return None
        sums += _sums(model, dataset, range(first, min(first + batch, part.stop)), config, device, epoch)
    return Validation(*(added / count if count else None for added, count in distributed.total(sums).tolist()))


def _sums(
    model: Model, dataset: Dataset, span: range, config: TrainingConfig, device: torch.device, epoch: int
) -> Tensor:
    """Sum and count of each of the fields of `Validation` over some samples: (fields, 2)."""
    indices = torch.arange(span.start, span.stop, device=device)
    keys = validation_keys(indices, (config.seed, epoch) if config.validation_noise == "fresh" else None)
    x, groups = dataset.batch(indices)
    x = x.to(next(model.parameters()).dtype)
    gammas, losses = [], []
    for step in infer(model, x, config.components, keys, config.steps, check=False):
        gammas.append(step.state.gamma)
        losses.append(step.info.total.mean())
    assert step.x_next is not None
    T = len(gammas)
    if groups is not None:
        groups = next_groups(groups, T)
    loss = (torch.stack(losses) * model.step_weights(T, x)).sum()
    parts = [_repeated(loss, len(span)), _repeated(step.info.upper_bound.mean(), len(span))]
    parts += _binding(gammas[-1], step.x_next, None if groups is None else groups[-1], prior_of(model, step.state))
    scored = min(len(span), max(0, config.score_size - span.start))
    if groups is None or scored == 0:
        parts += [torch.zeros(2, dtype=torch.float64, device=device)] * 4
    else:
        parts += _scores(torch.stack(gammas), groups, scored)
    return torch.stack(parts)


def _binding(gamma: Tensor, x: Tensor, groups: Tensor | None, prior: float | Tensor) -> list[Tensor]:
    """Confidence and largest share of gamma (B,K,1,H,W) over scored pixels, of samples with things to tell apart."""
    gamma = gamma.squeeze(2).flatten(2)  # (B,K,P)
    if groups is None:
        scored = foreground(x, prior).flatten(1)
        several = scored.any(dim=1)
    else:
        flat = groups.flatten(1).to(torch.int64)
        scored = flat != 0
        several = flat.amax(dim=1) > flat.where(scored, 1 << 30).amin(dim=1)  # two or more groups
    weight = scored.to(torch.float64)
    weight = weight / weight.sum(dim=1, keepdim=True)  # an empty sample becomes NaN, which is not counted
    share = (gamma * weight.unsqueeze(1)).sum(dim=2).amax(dim=1)
    confidence = (gamma.amax(dim=1) * weight).sum(dim=1)
    return [_counted(values.where(several, torch.nan)) for values in (confidence, share)]


def _scores(gamma: Tensor, groups: Tensor, scored: int) -> list[Tensor]:
    """AMI and ARI of the first ``scored`` samples, each at the last step and at all steps."""
    T, (H, W) = gamma.shape[0], groups.shape[-2:]
    assignment = gamma[:, :scored].argmax(dim=2).squeeze(2)  # (T,B,H,W)
    result = grouping_scores(groups[:, :scored].reshape(-1, H, W), assignment.reshape(-1, H, W))
    both = result.ami_max.view(T, -1), result.ari.view(T, -1)
    return [_counted(values) for score in both for values in (score[-1], score)]


def _counted(values: Tensor) -> Tensor:
    """Sum of the values that are numbers, and how many they are: (2,) float64."""
    known = ~values.isnan()
    return torch.stack([values.where(known, 0).sum(dtype=torch.float64), known.sum(dtype=torch.float64)])


def _repeated(mean: Tensor, count: int) -> Tensor:
    """Sum and count of so many values with this mean; not-a-number stays so."""
    number = torch.full((), count, dtype=torch.float64, device=mean.device)
    return torch.stack([mean.to(torch.float64) * count, number])
