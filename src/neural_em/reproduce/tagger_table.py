"""Tagger beside the models of this package, on images of both sizes, read with noise and without."""

from collections.abc import Mapping

import torch

from neural_em.evaluation import MeanDeviation
from neural_em.model import build
from neural_em.report.tables import MISSING, markdown_table, over_runs, span
from neural_em.reproduce.paper import COMPARED
from neural_em.reproduce.plan import TRAININGS
from neural_em.reproduce.records import Scores, TrainingRecord, evaluated, mean_of

ITERATIONS = 5
NOISY, CLEAN = ("test", "standing"), ("clean", "standing, clean")  # of images, and of what was trained on sequences
_QUOTED = "The paper also quotes Tagger, another model: 0.79 ± 0.034, and 0.97 ± 0.009 with layer norm."
_ABOUT = f"""{_QUOTED}

AMI (max) of the test images after each of Tagger's first five iterations, of which it is trained with three, and after
the last step. Its own paper has images of 20 x 20 pixels and scores them without noise; the paper reproduced here has
28 x 28 and noise. Noise is what a model was trained with: bits flipped with probability 0.2, or 0.1 for the models of
static shapes. Layer norm in each place of batch norm is our reading: that variant was never released. With batch
norm an image's score depends on the others in its batch of 100. The models of flying shapes were trained on moving
shapes and see standing ones here."""
_HEADER = ("model", "pixels", "noise at test", *map(str, range(1, ITERATIONS + 1)), "last step", "runs", "weights",
           "training of a run")  # fmt: skip


def section(records: Mapping[str, TrainingRecord]) -> str:
    """What was run of the comparison, as a table; a line where Tagger was not."""
    if not any(name.startswith("tagger") for name in records):
        return f"{_QUOTED} `nem reproduce tagger` has not been run.\n"
    rows: list[list[str]] = []
    missing: dict[str, list[str]] = {}
    for pixels in (20, 28):
        for noise in (False, True):
            for name, about, ending in COMPARED:
                if (ending == "-20") is (pixels == 20):
                    training = f"{name}{ending}"
                    if scores := _scores(training, noise, records):
                        rows.append([about, f"{pixels} x {pixels}", "yes" if noise else "no", *scores])
                    else:
                        missing.setdefault(training, []).append("with" if noise else "without")
    text = f"## Tagger\n\n{_ABOUT}\n\n{markdown_table(_HEADER, rows)}"
    named = (name if len(how) == 2 else f"{name} ({how[0]} noise)" for name, how in missing.items())
    return f"{text}\nNot run, or not scored so: {', '.join(named)}.\n" if missing else text


def _scores(training: str, noise: bool, records: Mapping[str, TrainingRecord]) -> list[str]:
    """The numbers of one line of the table; none where nothing was scored for it."""
    evaluation = (NOISY if noise else CLEAN)[training.startswith("flying")]
    found = evaluated(records, training, evaluation)
    if not found:
        return []
    tagger = training.startswith("tagger")
    each = [over_runs(_at(scores, i) for scores in found) if tagger else MISSING for i in range(ITERATIONS)]
    last = over_runs(mean_of(scores.last_step, "ami_max") for scores in found)
    seconds = [run.seconds for run in records[training].runs.values() if evaluation in run.evaluations]
    return [*each, last, str(len(found)), f"{_weights(training):,}", span(MeanDeviation.of(seconds).mean)]


def _at(scores: Scores, iteration: int) -> float | None:
    curve = scores.curves["ami_max"].mean if "ami_max" in scores.curves else ()
    return curve[iteration] if iteration < len(curve) else None


def _weights(training: str) -> int:
    with torch.device("meta"):
        model = build(TRAININGS[training].experiment().model)
    return sum(parameter.numel() for parameter in model.parameters())
