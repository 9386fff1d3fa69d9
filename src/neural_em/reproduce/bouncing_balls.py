"""R-NEM on bouncing balls beside RNN-EM and a single recurrent network: groups, prediction, rollouts; and a curtain.

S. van Steenkiste, M. Chang, K. Greff, J. Schmidhuber: Relational Neural Expectation Maximization, ICLR 2018. Its
results are bars without numbers, so the page compares the models with each other and with a frame that stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from matplotlib.figure import Figure

from neural_em.experiments.evaluation import Evaluation
from neural_em.report.plots import error_curves
from neural_em.report.tables import MISSING, markdown_table, over_runs
from neural_em.reproduce.plan import Training
from neural_em.reproduce.records import Scores, SeedRecord, TrainingRecord, evaluated, mean_of
from neural_em.reproduce.results_page import TOY, commands, epochs_told, figures, joined, problems, runs_table
from neural_em.reproduce.work import Reproduction

WITH_INPUT, AHEAD, HALF = 30, 20, 10  # steps that read a frame, steps that follow, and half of these
SEQUENCES = 2_000  # of the test set
FOUR, MORE, CURTAIN = "4 balls", "6 to 8 balls", "curtain"
_FREE = frozenset({"data.train_size", "training.learning_rate"})
_AS_TRAINED = Evaluation(steps=WITH_INPUT, rollout=AHEAD, size=SEQUENCES)


def _balls(preset: str) -> Training:
    four = replace(_AS_TRAINED, objects=4, changes=("data.most_objects=4",))
    return Training(preset, preset, {}, {FOUR: four, MORE: replace(_AS_TRAINED, objects=6)}, _FREE)


TRAININGS: dict[str, Training] = {
    training.name: training
    for training in (
        _balls("bouncing-balls"),
        _balls("bouncing-balls-rnn-em"),
        _balls("bouncing-balls-rnn"),
        Training("curtain", "curtain", {}, {CURTAIN: _AS_TRAINED}, _FREE),
    )
}
GROUPS: dict[str, tuple[str, ...]] = {"relational": tuple(TRAININGS)}
MODELS = {"bouncing-balls": "R-NEM", "bouncing-balls-rnn-em": "RNN-EM", "bouncing-balls-rnn": "RNN (K = 1)"}
REPEATED = "last frame repeated"
_COLUMNS = {
    "ARI, mean over steps": ("mean_over_steps", "ari"),
    "ARI, last step": ("last_step", "ari"),
    "BCE, mean over steps": ("mean_over_steps", "upper_bound"),
    "BCE, last step": ("last_step", "upper_bound"),
    "relational BCE, mean over steps": ("mean_over_steps", "relational"),
    "a frame later": ("mean_over_steps", "relational_later"),
}

_LEAD = """\
R-NEM, whose components see each other, on balls that bounce off each other and off the walls, beside the same network
without that (RNN-EM) and a single component (RNN). They are trained on four to eight balls with K = 8, the RNN with
K = 1, in two stages: on balls three times as fast, then at the usual speed, at which they are tested. The authors train
on four, at one speed, with K = 5. Means ± standard deviation over runs that differ in their seed alone. A model reads
{given} frames and then goes on for {ahead} steps without input. The *BCE* is the binary cross entropy of the next
frame, summed over its pixels, with psi = max over the components; the *relational BCE* counts the pixels of balls that
have just met, in frames where some have, and *a frame later* the same pixels in the next frame: there the balls' new
directions begin to show, and there the authors' code counts. Lower is better. ARI is scored on the pixels of exactly
one ball; 1 is perfect. The authors' paper shows bars and gives no numbers. Components have windows, theirs do not; the
RNN, which holds all balls, has none.
"""
_ROLLOUT = """\
BCE by step without input: the models read their own predictions, the baseline expects that nothing moves any more.
"""


@dataclass
class RelationalReproduction(Reproduction):
    """The work on the relational models."""

    page: ClassVar[str] = "relational.md"
    usual_seeds: ClassVar[int] = 3
    trainings: ClassVar[Mapping[str, Training]] = TRAININGS
    groups: ClassVar[Mapping[str, Sequence[str]]] = GROUPS
    groupings: ClassVar[Sequence[tuple[str, str, str, str, str]]] = tuple(
        (name, "attention", name, data, f"A typical sequence, {data}, and how much components heed each other")
        for name, data in (("bouncing-balls", FOUR), ("curtain", CURTAIN))
    )

    def written(self, records: Mapping[str, TrainingRecord]) -> str:
        """The page's text; draws its pictures."""
        trainings = self.chosen((), self.quick)
        shown = trainings[0].evaluations[FOUR]
        parts = ["# Relational Neural EM\n", _LEAD.format(given=shown.steps, ahead=shown.rollout)]
        parts += [TOY if self.quick else "", _alike(records, trainings)]
        for data in (FOUR, MORE):
            rows = _rows(records, data)
            parts += [f"## {data.capitalize()}\n", _scores(rows), _ahead(rows)]
        rows = {"R-NEM": evaluated(records, "curtain", CURTAIN)}
        about = "Three balls, trained and tested behind a black square that hides what is there; K = 5."
        parts += ["## Curtain\n", f"{about}\n", _scores(rows), _ahead(rows)]
        parts += [figures(self.pictures(records)), runs_table(records), problems(records)]
        if not self.quick:
            parts.append(commands(records, self.runs, TRAININGS, "nem reproduce relational", self.usual_seeds))
        return joined(parts)

    def charts(self, records: Mapping[str, TrainingRecord]) -> Iterator[tuple[str, str, Figure]]:
        for data in (FOUR, MORE):
            if curves := _curves(_rows(records, data)):
                caption = f"Error by step without input, {data}: mean, and lowest to highest run"
                yield f"rollout-{data.replace(' ', '-')}", caption, error_curves(curves, "step without input", "BCE")


def _rows(records: Mapping[str, TrainingRecord], data: str) -> dict[str, list[Scores]]:
    """The evaluations of the models that are compared, by their names."""
    return {model: evaluated(records, training, data) for training, model in MODELS.items()}


def _scores(rows: Mapping[str, Sequence[Scores]]) -> str:
    """A row for each model, and one for each grouping without learning; a column for what some run has."""
    every = [scores for seeds in rows.values() for scores in seeds]
    columns = {
        title: (part, name)
        for title, (part, name) in _COLUMNS.items()
        if not every or any(name in getattr(scores, part) for scores in every)
    }
    lines = []
    for model, seeds in rows.items():
        cells = [over_runs(mean_of(getattr(s, part), name) for s in seeds) for part, name in columns.values()]
        counts = sorted({scores.sequences for scores in seeds if scores.sequences})
        sequences = " / ".join(f"{count:,}" for count in counts) or MISSING
        lines.append([model, *(cells if seeds else ["*missing*", *cells[1:]]), sequences, f"{len(seeds)}"])
    for name, scores in (every[0].baselines if every else {}).items():
        ari = over_runs([mean_of(scores, "ari")])
        cells = [ari if at == ("last_step", "ari") else MISSING for at in columns.values()]
        lines.append([f"{name}, no learning", *cells, MISSING, MISSING])
    return markdown_table(["model", *columns, "sequences", "runs"], lines)


def _ahead(rows: Mapping[str, Sequence[Scores]]) -> str:
    """The error at each step without input: the models', and that of the last frame repeated."""
    curves = _curves(rows)
    if not curves:
        return ""
    steps = min(len(run) for runs in curves.values() for run in runs)
    spans = {f"{step + 1}": slice(step, step + 1) for step in range(steps)}
    spans |= {f"mean of 1 to {last}": slice(last) for last in (HALF, AHEAD) if last <= steps}
    lines = [
        [name, *(over_runs(sum(run[span]) / len(run[span]) for run in runs) for runs in curves.values())]
        for name, span in spans.items()
    ]
    return f"{_ROLLOUT}\n{markdown_table(['step without input', *curves], lines)}"


def _curves(rows: Mapping[str, Sequence[Scores]]) -> dict[str, list[list[float]]]:
    """By model each run's errors without input, and as a baseline that of the last frame repeated, once."""
    curves = {model: _errors(seeds, "upper_bound") for model, seeds in rows.items()}
    repeated = [run for seeds in rows.values() for run in _errors(seeds, "repeated")][:1]  # the data's, not the runs'
    return {name: runs for name, runs in (curves | {REPEATED: repeated}).items() if runs}


def _errors(seeds: Sequence[Scores], name: str) -> list[list[float]]:
    curves = (scores.rollout[name].mean for scores in seeds if name in scores.rollout)
    return [[value for value in curve if value is not None] for curve in curves if None not in curve]


def _alike(records: Mapping[str, TrainingRecord], trainings: Sequence[Training]) -> str:
    """How the models were trained, and loudly where those that are compared were not trained alike."""
    lines: dict[str, list[str]] = {}  # the models by how they were trained
    for each in trainings:
        if each.name in records:
            line = " / ".join(sorted({_length(each, run) for run in records[each.name].runs.values()}))
            lines.setdefault(line, []).append(each.name)
    if not lines:
        return "No model has been trained yet.\n"
    unlike = sum(not MODELS.keys().isdisjoint(names) for names in lines.values()) > 1
    warning = "**The models were not all trained alike; their numbers do not compare.** " if unlike else ""
    told = "; ".join(f"{', '.join(names)}: {line}" for line, names in lines.items())
    return f"{warning}Training: {told}. The authors trained for up to 500 epochs.\n"


def _length(training: Training, run: SeedRecord) -> str:
    """Epochs, sequences an epoch and the other settings of a run that are not the preset's."""
    settings = dict(run.settings)
    sequences = settings.pop("data.train_size", training.experiment().data.train_size)
    others = "".join(f", {name}={value}" for name, value in settings.items())
    told = epochs_told(run.epochs or 0, run.stage_epochs)
    count = "1 epoch" if told == "1" else f"{told} epochs"
    epochs = count if run.stopped != "patience" else "epochs until patience ended it"
    return f"{epochs} of {sequences:,} sequences{others}"
