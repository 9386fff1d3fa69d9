"""The results as a Markdown page: paper and ours side by side, every run, and what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from neural_em.evaluation import MeanDeviation
from neural_em.report.tables import MISSING, deviation, markdown_table, short_commit, span
from neural_em.reproduce import motion_table, tagger_table
from neural_em.reproduce.paper import BEYOND, COMPARISONS, DIGITS, ERRORS, NUMBERS, STATIC, TABLE, Number
from neural_em.reproduce.plan import SEEDS, TRAININGS, Training
from neural_em.reproduce.records import Scores, SeedRecord, TrainingRecord, mean_of
from neural_em.training.state import EPOCHS
from neural_em.training.stop import INTERRUPTED, OUT_OF_TIME

_OF_A_RUN = ("epochs", "stage_epochs", "best_epoch", "stopped", "seconds", "device", "commit")
_CUT_SHORT = (EPOCHS, INTERRUPTED, OUT_OF_TIME)  # before the training itself would have stopped

FIGURE_ONLY = "figure only"
TOY = "**Toy size: these runs only show that everything works. Their numbers mean nothing.**\n"
_LEAD = """\
Every number of the paper and what this code gives for it. Scores are AMI, normalised by the larger entropy ('max'), at
the last EM step; what the mean over all steps gives, the first ones from a random start included, stands beside it.
Ours are mean ± standard deviation over runs that differ in their seed alone, on {sequences} unless a run says
otherwise. The baselines need no learning: connected patches of pixels, and k-means on the pixels' coordinates.
A cell that no run has filled says *missing*; nothing is filled in by hand.
"""
_ABOUT = {
    STATIC: "Three shapes, K = 4, 15 steps.",
    TABLE: "20 steps. Training scores are those of the first 10,000 training sequences.",
    ERRORS: "Binary cross entropy of the next frame, summed over its pixels, with psi = max over the components, which "
    "is an upper bound. Lower is better. The paper shows bars and gives no numbers.",
    DIGITS: "K = 2 and 20 steps in training. The staged runs see 20, 500 and 50,000 digits one after another. "
    "A digit's pixels are those above 0.5, and overlaps, which are not scored, where two digits are; the paper tells "
    "neither.",
    BEYOND: "Presets of our own, static-shapes-plus, flying-shapes-plus and flying-mnist-plus, and N-EM with a learned "
    "step size that starts at 1, on the same data and in the same tests, beside the paper's numbers for them.",
}


@dataclass(frozen=True)
class Cell:
    """One number of the paper and ours; no run, no number."""

    paper: Number
    seeds: tuple[str, ...]  # the runs that were evaluated for it
    unfinished: tuple[str, ...]  # those of them whose training is not finished
    last_step: MeanDeviation  # over these runs, at the last step, which is what is compared
    mean_over_steps: MeanDeviation  # the same for each sequence's mean over all steps
    baselines: Mapping[str, float | None]  # means of groupings without learning on the same data
    sequences: int | None = None  # evaluated in each run
    command: str = ""  # the evaluation as a command, after the training's
    runs: tuple[Mapping[str, Any], ...] = ()  # of each its seed, epochs, why it stopped, time, device and commit

    @property
    def missing(self) -> bool:
        return self.last_step.mean is None

    @property
    def ahead(self) -> float | None:
        """Ours less the paper's, where both are numbers, with the paper's three decimals."""
        ours, paper = self.last_step.mean, self.paper.mean
        return None if ours is None or paper is None else round(round(ours, 3) - paper, 3)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missing": self.missing}


def cells(records: Mapping[str, TrainingRecord]) -> list[Cell]:
    """One for every number of the paper, in its order, then those beyond it that were run; records by training."""
    runs = {name: record.runs for name, record in records.items()}
    found = [_cell(number, runs.get(number.training, {})) for number in (*NUMBERS, *COMPARISONS)]
    return [cell for cell in found if cell.paper in NUMBERS or not cell.missing]


def _cell(paper: Number, runs: Mapping[str, SeedRecord]) -> Cell:
    found: dict[str, Scores] = {}
    for seed, run in runs.items():
        scores = run.evaluations.get(paper.evaluation)
        if scores is not None and mean_of(scores.last_step, paper.score) is not None:
            found[seed] = scores
    first = next(iter(found.values()), None)
    return Cell(
        paper,
        tuple(found),
        tuple(seed for seed in found if not runs[seed].finished),
        MeanDeviation.of(mean_of(each.last_step, paper.score) for each in found.values()),
        MeanDeviation.of(mean_of(each.mean_over_steps, paper.score) for each in found.values()),
        {} if first is None else {name: mean_of(scores, paper.score) for name, scores in first.baselines.items()},
        None if first is None else first.sequences,
        f"nem evaluate RUN {TRAININGS[paper.training].evaluations[paper.evaluation].options()}".rstrip(),
        tuple({"seed": seed, **{name: getattr(runs[seed], name) for name in _OF_A_RUN}} for seed in found),
    )


def render(
    cells: Sequence[Cell], records: Mapping[str, TrainingRecord], runs: Path, pictures: Mapping[str, str] | None = None
) -> str:
    """The whole page: the paper's numbers and ours, pictures by caption, the runs and the commands that make them."""
    quick = any(record.quick for record in records.values())
    counts = {cell.sequences for cell in cells if cell.sequences}
    sequences = f"{max(counts):,} test sequences" if counts else "the test sequences"
    parts = ["# Reproduction\n", _LEAD.format(sequences=sequences)]
    parts += [TOY if quick else "", f"{_overview(cells)}\n"]
    for section, about in _ABOUT.items():
        rows = [cell for cell in cells if cell.paper.section == section]
        parts += [f"## {section}\n", f"{about}\n", _table(rows)] if rows else []
    parts += [tagger_table.section(records), motion_table.section(records)]
    parts += [figures(dict(sorted((pictures or {}).items()))), runs_table(records)]
    return joined([*parts, problems(records), _missing(cells), "" if quick else commands(records, runs)])


def joined(parts: Sequence[str]) -> str:
    """A page of the parts that are not empty."""
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def figures(pictures: Mapping[str, str]) -> str:
    """The pictures with their captions."""
    shown = [f"![{caption}]({path})\n\n*{caption}*\n" for caption, path in pictures.items()]
    return "\n".join(["## Figures\n", *shown]) if shown else ""


def _overview(cells: Sequence[Cell]) -> str:
    cells = [cell for cell in cells if cell.paper.section != BEYOND]
    done, numbers = [cell for cell in cells if not cell.missing], sum(cell.paper.mean is not None for cell in cells)
    counted = sum(cell.paper.mean is not None for cell in done)
    below = sum((cell.ahead or 0) < 0 for cell in done)
    return (
        f"{counted} of the paper's {numbers} numbers have been run here, and {len(done) - counted} of the "
        f"{len(cells) - numbers} bars and points that it draws without a number. {below} of ours are below the paper's."
    )


def _table(cells: Sequence[Cell]) -> str:
    header = ["in the paper", "what", "paper", "ours, last step", "ours less the paper's", "ours, mean over steps",
              "runs", "epochs, stopped by", "baselines"]  # fmt: skip
    rows = []
    for cell in cells:
        paper = FIGURE_ONLY if cell.paper.mean is None else f"{cell.paper.mean:.3f} ± {cell.paper.deviation:.3f}"
        known = {name: value for name, value in cell.baselines.items() if value is not None}
        baselines = ", ".join(f"{name} {value:.3f}" for name, value in known.items()) or MISSING
        ahead = MISSING if cell.ahead is None else f"{cell.ahead:+.3f}"
        means = [deviation(cell.last_step), ahead, deviation(cell.mean_over_steps)]
        ours = ["*missing*", MISSING, MISSING] if cell.missing else means
        count = f"{len(cell.seeds)}" + (f", of which {len(cell.unfinished)} not finished" if cell.unfinished else "")
        rows.append([cell.paper.where, cell.paper.about, paper, *ours, count, _lengths(cell), baselines])
    return markdown_table(header, rows)


def _lengths(cell: Cell) -> str:
    """How many epochs the runs took and why they stopped."""
    ends: dict[str, list[str]] = {}
    for run in cell.runs:
        ends.setdefault(run["stopped"] or "not finished", []).append(epochs_told(run["epochs"], run["stage_epochs"]))
    return "; ".join(f"{', '.join(epochs)} ({reason})" for reason, epochs in ends.items()) or MISSING


def runs_table(records: Mapping[str, TrainingRecord]) -> str:
    """Every run: how long, why it ended, where, and of which code."""
    header = ["run", "seed", "epochs", "best", "stopped", "time", "precision", "device", "commit", "torch"]
    rows = [
        [
            name, seed, epochs_told(run.epochs, run.stage_epochs), run.best_epoch, run.stopped or "not finished",
            span(run.seconds), run.precision, run.device, short_commit(run.commit), run.torch,
        ]
        for name, record in records.items()
        for seed, run in record.runs.items()
    ]  # fmt: skip
    if not rows:
        return ""
    about = (
        "*patience*: ten epochs without a better validation loss; *epochs*: as many as were allowed. The weights of "
        "the best epoch, in the last stage where there are several, are the result. Seeds of one experiment train at "
        "the same time on one device, so their times overlap."
    )
    return f"## Runs\n\n{about}\n\n{markdown_table(header, rows)}"


def problems(records: Mapping[str, TrainingRecord]) -> str:
    lines = []
    for name, record in records.items():
        for seed, run in record.runs.items():
            what = run.problem or ("" if run.finished else f"stopped early: {run.stopped or 'killed'}")
            lines += [f"- {name}, seed {seed}: {text}" for text in (what, *run.warnings) if text]
    return "## Failed, stopped early, or doubtful\n\n" + "\n".join(lines) + "\n" if lines else ""


def _missing(cells: Sequence[Cell]) -> str:
    missing: dict[str, dict[str, None]] = {}
    for cell in cells:
        if cell.missing:
            missing.setdefault(cell.paper.training, {})[cell.paper.evaluation] = None
    if not missing:
        return ""
    lines = [f"- `nem reproduce {training}`: {', '.join(names)}" for training, names in missing.items()]
    return "## Missing\n\n" + "\n".join(lines) + "\n"


def commands(
    records: Mapping[str, TrainingRecord],
    runs: Path,
    trainings: Mapping[str, Training] = TRAININGS,
    whole: str = "nem reproduce",
    seeds: int = SEEDS,
) -> str:
    """The commands behind the page; ``whole`` does all of them."""
    lines = ["## Commands\n", f"`{whole}` does all of this; each experiment alone, `nem reproduce NAME`, is:\n"]
    lines.append("```sh")
    for name, training in trainings.items():
        lines += _command(training, runs / name, records[name].runs if name in records else {}, seeds)
    return "\n".join([*lines, "```", ""])


def _command(training: Training, folder: Path, runs: Mapping[str, SeedRecord], seeds: int) -> list[str]:
    """The commands that make the runs, with what was not as usual: fewer epochs, another precision."""
    falling = any(part.training.schedule != "constant" for part in training.experiment().parts())
    told = (EPOCHS,) if falling else _CUT_SHORT  # with fewer epochs a learning rate would fall faster
    lengths = [run.stage_epochs or (run.epochs,) for run in runs.values() if run.stopped in told]
    limits = [max(count or 0 for count in counts) for counts in zip(*lengths, strict=False)]
    precision = "bf16" if any(run.precision == "bf16" for run in runs.values()) else "auto"
    evaluations = [f"nem evaluate {folder} {each.options()}".rstrip() for each in training.evaluations.values()]
    first = next(iter(runs.values()), None)
    settings = [] if first is None else [f"{name}={value}" for name, value in first.settings.items()]
    return [training.command(folder, len(runs) or seeds, limits, precision, settings), *evaluations]


def epochs_told(epochs: int | None, stages: Sequence[int | None]) -> str:
    """The epochs of a run, or of each of its stages."""
    return " + ".join(str(count or 0) for count in stages or (epochs,))
