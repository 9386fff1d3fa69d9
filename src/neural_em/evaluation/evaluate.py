"""Runs a model over a data set and scores every step of every sequence."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.dataset import Dataset
from neural_em.errors import NeuralEMError, refuse
from neural_em.evaluation.baselines import ON, connected_components, k_means
from neural_em.evaluation.matching import matched_iou, object_mean
from neural_em.evaluation.metrics import confidence, grouping_scores
from neural_em.evaluation.results import AT_COLLISIONS, Curve, Result, StartSpread, Summary
from neural_em.fields import Check, Checked, flag, integer, optional
from neural_em.model import Model, distributions
from neural_em.model.inference import Step, batch_that_fits, infer, next_groups, stacked
from neural_em.model.mixture import prediction_error, upper_bound

_STARTS, _BASELINE = 0x5354, 0x4B4D  # tell the draws under one seed apart
_MOST_NUMBERS = 1 << 31  # in all steps' psi of a single sequence
# the most that anybody can mean; more is a slip of the finger, and is refused before it takes memory
LIMITS = {"components": 1024, "steps": 100_000, "starts": 1000, "limit": 10**8, "batch_size": 10**6}
# what is measured: on steps with input, without it, on whole sequences, with the background as a group, and of the data
_STEPS, _ROLLOUT, _WHOLE, _BACKGROUND, _DATA = "steps", "rollout", "whole", "background", "data"
_BASELINE_OF = "baseline: "
Arrays = dict[tuple[str, str], np.ndarray]  # by what is measured and its name


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """How to evaluate.

    Attributes:
        components: K; need not be what the model was trained with.
        steps: EM steps; ``None``: one for each frame but the first and those of the rollout, or the model's own number
            on a single image.
        static: look at frame 0 only, repeated.
        starts: random starts for each sequence.
        seed: of the starts, of the noise and of the k-means baseline.
        limit: score the first so many sequences only; ``None``: all of them.
        batch_size: sequences at a time, fewer where frames are large; changes memory and speed, and no result but that
            of a model with batch norm.
        baselines: score connected components and k-means on the last step's frames too; in colour, and where the
            ground is bright, on true masks.
        rollout: further steps on the model's own predictions, scored apart, against the frames that follow.
        clean: let the components read frames and predictions without noise.
    """

    components: int
    steps: int | None = None
    static: bool = False
    starts: int = 1
    seed: int = 0
    limit: int | None = None
    batch_size: int = 500
    baselines: bool = True
    rollout: int = 0
    clean: bool = False

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **{name: integer(1, LIMITS[name]) for name in ("components", "starts", "batch_size")},
        **{name: optional(integer(1, LIMITS[name])) for name in ("steps", "limit")},
        "rollout": integer(0, LIMITS["steps"]),
        **dict.fromkeys(("static", "baselines", "clean"), flag),
        "seed": integer(-(2**63), 2**63),
    }


def evaluate(
    model: Model, dataset: Dataset, config: EvaluationConfig, progress: Callable[[int, int], None] | None = None
) -> Result:
    """Scores the model on the data set; on the model's device, in batches, with draws that belong to the sequence.

    Without true groups only losses and confidence are given.

    Args:
        model: What `neural_em.model.inference` asks for.
        dataset: Sequences, with groups or without.
        config: How to evaluate.
        progress: Called with the number of sequences done and of all.
    """
    size = min(len(dataset), config.limit or len(dataset))
    if size == 0:
        refuse("data", "at least one sequence", 0)
    parts, steps = [], steps_with_input(model, dataset, config)
    batch_size = _batch_size(model, dataset, config, steps)
    with evaluating(model), torch.inference_mode():
        for first in range(0, size, batch_size):
            indices = torch.arange(first, min(first + batch_size, size))
            parts.append(_evaluate_batch(model, dataset, indices, config, steps))
            if progress is not None:
                progress(first + len(indices), size)
    # the sequences are the last axis of every array
    arrays = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    return _result(arrays, config, _loss_weights(model, steps), dataset.note)


def start_keys(seed: int, start: int, indices: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Keys (B,) of a start of the sequences at the given indices (B,): the noise and the first assignment scored."""
    return randomness.keys(seed, _STARTS, start, indices, device=device)


def steps_with_input(model: Model, dataset: Dataset, config: EvaluationConfig) -> int:
    """How many steps read a frame; those of a rollout come after them and need frames to be compared with."""
    frames = dataset.shape[0]
    if config.static or frames == 1:
        return config.steps or model.config.steps
    steps = config.steps or max(1, frames - 1 - config.rollout)
    if config.rollout and steps + config.rollout >= frames:
        needed = f"{steps} + {config.rollout} steps need {steps + config.rollout + 1} frames"
        raise NeuralEMError(f"rollout={config.rollout}: {needed}, and a sequence has {frames}")
    return steps


def _batch_size(model: Model, dataset: Dataset, config: EvaluationConfig, steps: int) -> int:
    """Sequences at a time: what was asked for, or as many as keep all steps' psi within the memory meant for it."""
    _, C, H, W = dataset.shape
    steps += config.rollout
    numbers = steps * config.components * C * H * W
    if numbers > _MOST_NUMBERS:
        most = max(1, _MOST_NUMBERS // (C * H * W))
        refuse("steps x components", f"at most {most} for frames of {C} x {H} x {W}", f"{steps} x {config.components}")
    return batch_that_fits(numbers, next(model.parameters()).device, config.batch_size)


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """The model's mode is put back afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _evaluate_batch(model: Model, dataset: Dataset, indices: Tensor, config: EvaluationConfig, steps: int) -> Arrays:
    """All that is measured on B sequences in S starts: (S,T,B) each step, (S,B) whole sequences, (B,) baselines."""
    weight = next(model.parameters())
    device = weight.device
    seen = slice(1 if config.static else None)
    met, (frames, groups) = dataset.collisions(indices), dataset.batch(indices)
    frames = frames[seen].to(weight)
    if groups is not None:
        groups = next_groups(groups[seen].to(device), steps + config.rollout)
    if met is not None:
        met = met[seen].to(weight)
        met = met.expand(steps + config.rollout + 1, -1, -1, -1) if len(met) == 1 else met
    starts = []
    for start in range(config.starts):
        keys = start_keys(config.seed, start, indices, device)
        found = infer(
            model, frames, config.components, keys, steps, config.rollout, noise=not config.clean, check=start == 0
        )
        starts.append(_evaluate_start(model, found, groups, met, steps, dataset.background))
    arrays = {name: np.stack([scores[name] for scores in starts]) for name in starts[0]}
    if groups is not None:
        arrays[_DATA, "scored"] = (groups[:steps] != 0).flatten(2).any(dim=2).cpu().numpy()[None]  # (1,T,B)
        there = [(groups == g).flatten(2).any(dim=2).any(dim=0) for g in range(1, int(groups.max()) + 1)]  # (B,) each
        number = torch.stack([torch.zeros_like(indices, device=device), *there]).sum(dim=0)
        arrays[_DATA, "objects"] = number.cpu().numpy()
        if config.baselines:
            keys = randomness.keys(config.seed, _BASELINE, indices, device=device)
            arrays |= _baselines(frames[min(steps, len(frames) - 1)], groups[steps - 1], config.components, keys)
    return arrays


def _evaluate_start(
    model: Model, found: Iterable[Step], groups: Tensor | None, met: Tensor | None, steps: int, background: bool
) -> Arrays:
    """One start, scored against the groups (T,B,H,W) of the frames that its steps explain; the first T read a frame.

    Where objects met (T+1,B,H,W), in the frame read first and in these, the error of the prediction is also given for
    them alone: in the frame in which they met, and at the same pixels in the one after it.
    """
    infos, certain, assignment, repeated = [], [], [], []
    relational: dict[str, list[Tensor]] = {name: [] for name in AT_COLLISIONS}
    last, pixels = None, distributions.of_frames(model.distribution)
    for t, step in enumerate(found):
        gamma = step.state.gamma
        infos.append(step.info)
        certain.append(confidence(gamma, None if groups is None else groups[t]))
        assignment.append(gamma[:, :, 0].argmax(dim=1).to(torch.uint8 if gamma.shape[1] <= 256 else torch.int32))
        if met is not None and step.x_next is not None:
            error = prediction_error(pixels, step.x_next, step.state.psi).sum(dim=1)
            for name, where in zip(AT_COLLISIONS, (met[t + 1], met[t]), strict=True):
                there = (error * where).sum(dim=(1, 2))
                relational[name].append(there.where(where.flatten(1).any(dim=1), torch.nan))  # none has met: no error
        if not step.rollout:
            last = step.x_next
        elif last is not None and step.x_next is not None:
            repeated.append(upper_bound(pixels, step.x_next, last.unsqueeze(1)))
    scores = {**dict(zip(infos[0]._fields, stacked(infos), strict=True)), "confidence": torch.stack(certain)}
    scores |= {name: torch.stack(errors) for name, errors in relational.items() if errors}
    parts: dict[str, dict[str, Tensor]] = {}
    if groups is not None:
        every = torch.stack(assignment)
        of_frames = _grouping(groups.flatten(0, 1), every.flatten(0, 1))
        scores |= {name: score.view(groups.shape[:2]) for name, score in of_frames.items()}
        # in a whole sequence a component has to stay with its object
        parts[_WHOLE] = _grouping(*(maps[:steps].transpose(0, 1).flatten(1) for maps in (groups, every)))
        if background:
            parts[_BACKGROUND] = grouping_scores(groups[steps - 1] + 1, assignment[steps - 1])._asdict()
    parts[_STEPS] = {name: score[:steps] for name, score in scores.items()}
    if repeated:
        parts[_ROLLOUT] = {name: score[steps:] for name, score in scores.items()} | {"repeated": torch.stack(repeated)}
    return {(part, name): _array(score) for part, each in parts.items() for name, score in each.items()}


def _grouping(groups: Tensor, assignment: Tensor) -> dict[str, Tensor]:
    """All scores (N,) of label maps (N,H,W) or (N,P)."""
    return {**grouping_scores(groups, assignment)._asdict(), "iou": object_mean(matched_iou(groups, assignment))}


def _array(score: Tensor) -> np.ndarray:
    return score.to(torch.float64).cpu().numpy()


def _baselines(frames: Tensor, groups: Tensor, components: int, keys: Tensor) -> Arrays:
    """Scores (B,) of groupings that need no learning, on the frames (B,C,H,W) of the last step.

    In colour, and in grey frames most of whose ground is bright, these are told which pixels are scored.
    """
    ground = groups == 0
    bright = (ground & (frames > ON).any(dim=1)).flatten(1).sum(dim=1) * 2 > ground.flatten(1).sum(dim=1)
    told = bright | (frames.shape[1] > 1)
    seen = torch.where(told[:, None, None, None], (~ground).unsqueeze(1).to(frames), frames)
    found = {"connected components": connected_components(seen), "k-means": k_means(seen, components, keys)}
    return {
        (f"{_BASELINE_OF}{baseline}", name): _array(score)
        for baseline, assignment in found.items()
        for name, score in _grouping(groups, assignment).items()
    }


def _loss_weights(model: Model, steps: int) -> np.ndarray:
    """How much each step's loss counts when starts are compared: as in training, or evenly where that does not fit."""
    chosen = model.config.loss_steps
    fits = isinstance(chosen, str) or len(chosen) == steps
    return model.step_weights(steps, torch.zeros((), dtype=torch.float64)).numpy() if fits else np.ones(steps)


def _result(arrays: Arrays, config: EvaluationConfig, weights: np.ndarray, note: str) -> Result:
    parts: dict[str, dict[str, np.ndarray]] = {part: {} for part in (_STEPS, _ROLLOUT, _WHOLE, _BACKGROUND)}
    for (part, name), array in arrays.items():
        parts.setdefault(part, {})[name] = array
    steps, baselines = parts[_STEPS], [part for part in parts if part.startswith(_BASELINE_OF)]  # steps: (S,T,N)
    scored = arrays.get((_DATA, "scored"))

    def summaries(part: str) -> dict[str, Summary]:
        return {name: Summary.of(array) for name, array in parts[part].items()}

    with warnings.catch_warnings(action="ignore"):  # of sequences without a score, which stay NaN
        over_steps = {name: np.nanmean(array, axis=1) for name, array in steps.items()}  # (S,N)
    _, T, N = steps["total"].shape
    loss = np.einsum("stn,t->sn", steps["total"], weights)
    return Result(
        settings=asdict(config),
        note=note,
        sequences=N,
        steps=T,
        has_groups=scored is not None,
        unscored_images=0 if scored is None else int((~scored).sum()),
        unscored_sequences=0 if scored is None else int((~scored.any(axis=1)).sum()),
        curves={name: Curve.of(array) for name, array in steps.items()},
        last_step={name: Summary.of(array[:, -1]) for name, array in steps.items()},
        mean_over_steps={name: Summary.of(array) for name, array in over_steps.items()},
        whole_sequence=summaries(_WHOLE),
        starts={name: StartSpread.of(array[:, -1], loss) for name, array in steps.items()} if config.starts > 1 else {},
        baselines={part.removeprefix(_BASELINE_OF): summaries(part) for part in baselines},
        per_sequence={name: tuple(map(_number, array[0, -1])) for name, array in steps.items()},
        rollout={name: Curve.of(array) for name, array in parts[_ROLLOUT].items()},
        with_background=summaries(_BACKGROUND),
        by_objects=_by_objects(steps, arrays.get((_DATA, "objects"))),
    )


def _by_objects(steps: Mapping[str, np.ndarray], objects: np.ndarray | None) -> dict[str, dict[str, Summary]]:
    """The last step of (S,T,N), apart for each number of objects (N,); nothing where it is always the same."""
    numbers = [] if objects is None else np.unique(objects[objects > 0]).tolist()
    if len(numbers) < 2:
        return {}
    return {
        str(number): {name: Summary.of(array[:, -1, objects == number]) for name, array in steps.items()}
        for number in numbers
    }


def _number(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
