"""Whether the motion or the network teaches grouping: two networks, trained on moving and on standing shapes."""

from collections.abc import Mapping

from neural_em.report.tables import MISSING, markdown_table, over_runs
from neural_em.reproduce.plan import MOTION
from neural_em.reproduce.records import TrainingRecord, evaluated, mean_of

_ABOUT = """Flying shapes, three objects and K = 5, with two networks: the convolutional one, and a dense one, as static
shapes have it, but with layer norm. Moving shapes, or the same ones standing still; all other settings are alike, but
for the epochs. AMI (max) at the last of 20 steps; what was trained on standing shapes is tested on them in the first
column too. A line without runs has not been trained."""
_HEADER = ("network", "trained on", "test sequences", "standing pictures", "the same without noise", "runs", "epochs")


def section(records: Mapping[str, TrainingRecord]) -> str:
    """What was run of it, as a table; nothing where only the paper's own training was."""
    if not any(name in records for name, *_ in MOTION[1:]):
        return ""
    rows = []
    for name, network, data, _ in MOTION:
        runs = [run for run in records[name].runs.values() if run.evaluations] if name in records else []
        scores = [
            over_runs(mean_of(each.last_step, "ami_max") for each in evaluated(records, name, evaluation))
            for evaluation in ("test", "standing", "standing, clean")
        ]
        epochs = sorted({run.epochs for run in runs if run.epochs is not None})
        length = " to ".join(f"{count}" for count in dict.fromkeys((*epochs[:1], *epochs[-1:]))) or MISSING
        rows.append([network, data, *scores, str(len(runs)), length])
    return f"## Motion or network\n\n{_ABOUT}\n\n{markdown_table(_HEADER, rows)}"
