"""Several runs' results as mean and deviation, and results as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neural_em.errors import refuse
from neural_em.evaluation.results import Result, Summary

TITLES = {
    "ami_max": "AMI (max)", "ami_arithmetic": "AMI (arithmetic)", "ari": "ARI", "iou": "matched IoU",
    "confidence": "confidence", "upper_bound": "next-step error", "relational": "  at collisions",
    "relational_later": "  a frame later",
    "total": "loss", "intra": "  intra-cluster", "inter": "  inter-cluster",
}  # fmt: skip
_WITHOUT_INPUT = ("upper_bound", "repeated", "ami_max", "ari")
ROLLOUT_TITLES = {name: TITLES.get(name, "last frame repeated") for name in _WITHOUT_INPUT}
_SETTINGS = ("components", "static")  # what runs that are averaged must share, beside their steps


@dataclass(frozen=True)
class MeanDeviation:
    """Mean and sample standard deviation over runs; no deviation for a single run, neither for none."""

    mean: float | None
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> MeanDeviation:
        known = [value for value in values if value is not None]
        if not known:
            return cls(None, None, 0)
        mean = math.fsum(known) / len(known)
        if len(known) == 1:
            return cls(mean, None, 1)
        return cls(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)), len(known))


@dataclass(frozen=True)
class Aggregate:
    """Several runs evaluated alike: the mean and deviation of their means."""

    runs: int  # how many
    sequences: int  # evaluated in each run
    steps: int  # EM steps
    # ``last step``, ``mean over steps``, ``whole sequence``, ``start with the lowest loss`` and ``baseline: ...``, each
    # with its scores
    sections: Mapping[str, Mapping[str, MeanDeviation]]
    curves: Mapping[str, tuple[MeanDeviation, ...]]  # each score's value at each step
    rollout: Mapping[str, tuple[MeanDeviation, ...]]  # likewise, at each step without input


def aggregate(results: Sequence[Result]) -> Aggregate:
    """Mean and deviation over runs that were evaluated alike."""
    if not results:
        refuse("results", "at least one", 0)
    first = results[0]
    for name in ("components", "static", "sequences", "steps", "rollout_steps"):
        wanted, *others = (result.settings[name] if name in _SETTINGS else getattr(result, name) for result in results)
        for other in others:
            if other != wanted:
                refuse(name, f"the same in every run, {wanted}", other)
    values: dict[tuple[str, str, int | None], list[float | None]] = {}
    for result in results:
        for section, name, step, mean, *_ in result.rows():
            values.setdefault((section, name, step), []).append(mean)
    sections: dict[str, dict[str, MeanDeviation]] = {}
    curves: dict[str, dict[str, tuple[MeanDeviation, ...]]] = {"step": {}, "rollout": {}}
    for (section, name, _), means in values.items():
        if section in curves:
            curves[section][name] = (*curves[section].get(name, ()), MeanDeviation.of(means))
        else:
            sections.setdefault(section, {})[name] = MeanDeviation.of(means)
    return Aggregate(len(results), first.sequences, first.steps, sections, curves["step"], curves["rollout"])


def result_table(result: Result) -> str:
    """One result as a table for the terminal: every score's last step with quartiles, and what stands beside it."""
    names = [name for name in TITLES if name in result.last_step]
    quartiles = ((s.lower_quartile, s.median, s.upper_quartile) for s in (result.last_step[name] for name in names))

    def means(scores: Mapping[str, Summary]) -> list[str]:
        return [_mean(scores.get(name)) for name in names]

    columns = {
        "": [TITLES[name] for name in names],
        "last step": means(result.last_step),
        "quartiles": [" ".join(map(_text, three)) for three in quartiles],
        "mean over steps": means(result.mean_over_steps),
    }
    beside = {"whole sequence": result.whole_sequence, "with background": result.with_background}
    columns |= {title: means(scores) for title, scores in beside.items() if scores}
    if result.starts:
        columns["± over starts"] = [_text(result.starts[name].deviation) for name in names]
        columns["lowest loss"] = [_mean(result.starts[name].lowest_loss) for name in names]
    columns |= {title: means(scores) for title, scores in result.baselines.items()}
    lines = [f"{_counted(result.sequences, 'sequence')}, {_counted(result.steps, 'step')}, "
             f"{_counted(result.settings['components'], 'component')}, "
             f"{_counted(result.settings['starts'], 'start')}"]  # fmt: skip
    lines.append(_table(list(columns), list(zip(*columns.values(), strict=True))))
    if result.by_objects:
        shown = [name for name in ("ami_max", "ari", "iou") if name in result.last_step]
        rows = [[number, str(scores["total"].count), *(_mean(scores.get(name)) for name in shown)]
                for number, scores in result.by_objects.items()]  # fmt: skip
        lines.append(_table(["objects seen", "sequences", *(TITLES[name] for name in shown)], rows))
    if "relational" in names:
        met = result.last_step["relational"].count
        lines.append(f"at the last step balls met in {met:,} of {_counted(result.sequences, 'sequence')}")
    if result.probe:
        rows = [[f"{name}, {found.score}", _text(found.linear), _text(found.network), f"{found.objects:,}"]
                for name, found in result.probe.items()]  # fmt: skip
        lines.append(_table(["read from theta", "linear", "network", "objects"], rows))
    lines += _rollout({name: [_text(mean) for mean in curve.mean] for name, curve in result.rollout.items()})
    if result.unscored_images:
        lines.append(f"nothing to score in {_counted(result.unscored_images, 'image')}, "
                     f"{_counted(result.unscored_sequences, 'whole sequence')}; left out")  # fmt: skip
    if not result.has_groups:
        lines.append("no true groups: losses and confidence only")
    if result.note:
        lines.append(result.note)
    return "\n".join(lines)


def aggregate_table(runs: Aggregate) -> str:
    """Several runs as a table for the terminal: mean ± sample standard deviation."""
    names = [name for name in TITLES if name in runs.curves]
    sections = {name: scores for name, scores in runs.sections.items() if not name.startswith("objects: ")}
    rows = [[TITLES[name], *(_deviation(scores.get(name)) for scores in sections.values())] for name in names]
    title = f"{_counted(runs.runs, 'run')} of {_counted(runs.sequences, 'sequence')}, {_counted(runs.steps, 'step')}"
    rollout = {name: [_deviation(step) for step in curve] for name, curve in runs.rollout.items()}
    return "\n".join([title, _table(["", *sections], rows), *_rollout(rollout)])


def _rollout(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each step without input."""
    names = [name for name in ROLLOUT_TITLES if name in cells]
    rows = [(f"{step}", *row) for step, row in enumerate(zip(*(cells[name] for name in names), strict=True), start=1)]
    return [_table(["without input, step", *(ROLLOUT_TITLES[name] for name in names)], rows)] if rows else []


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in [header, *rows]
    )  # fmt: skip


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _mean(summary: Summary | None) -> str:
    return _text(None if summary is None else summary.mean)


def _deviation(value: MeanDeviation | None) -> str:
    if value is None or value.deviation is None:
        return _text(None if value is None else value.mean)
    return f"{_text(value.mean)} ± {_text(value.deviation)}"


def _text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
