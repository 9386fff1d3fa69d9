"""Where a model groups wrongly: how often two objects share a component or one is torn, by how much objects overlap.

    python tools/grouping_errors.py static-shapes-plus --size 1000
    python tools/grouping_errors.py flying-mnist-plus --static --steps 50 --set data.overlap_above=0.1

RUN is whatever ``nem evaluate`` takes, and so are ``--static``, ``--steps`` and ``--set``. The groups are those of the
last step, from one start, on validation data. Pixels are shared where the data's own rules leave them out as overlaps.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from neural_em import adjusted_mutual_info
from neural_em.evaluation.contingency import tables
from neural_em.evaluation.evaluate import start_keys
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.model.inference import infer, next_groups
from neural_em.runs.find import TrainedRun, find_runs

GOOD = 0.9
TORN = 0.8
"""An object is torn where its largest part is a smaller share of it than this."""
OVERLAPS = ((0, 0), (1, 3), (4, 7), (8, 12), (13, 10_000))


def main() -> None:
    """Prints a table for each run."""
    parser = argparse.ArgumentParser(description="Where a model groups wrongly.")
    parser.add_argument("run", nargs="+")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--components", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--static", action="store_true", help="look at frame 0 only, repeated")
    parser.add_argument("--set", dest="changes", metavar="FIELD=VALUE", action="append", default=[])
    parser.add_argument("--no-noise", action="store_true", help="show the model frames without noise")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset", help="whose data to use, for a weight file that does not tell")
    options = parser.parse_args()
    evaluation = Evaluation(
        components=options.components, steps=options.steps, split="validation", static=options.static,
        size=options.size, changes=tuple(options.changes),
    )  # fmt: skip
    for run in find_runs(options.run, preset=options.preset).runs:
        overlap, score, shared, torn = _measured(run, evaluation, options.start, options.device, not options.no_noise)
        print(f"{run.name}: {len(score)} sequences, AMI {score.nanmean():.3f}; above 0.99: {int((score > 0.99).sum())}")
        print("pixels shared  sequences    AMI  below 0.9  two in one component  one torn")
        for low, high in OVERLAPS:
            here = (overlap >= low) & (overlap <= high)
            bad = here & (score < GOOD)
            label = f"{low}" if low == high else f"{low} to {high}" if high < OVERLAPS[-1][1] else f"{low} or more"
            print(f"{label:>13} {int(here.sum()):10} {score[here].nanmean():6.3f} {int(bad.sum()):10} "
                  f"{int((bad & shared).sum()):21} {int((bad & torn).sum()):9}")  # fmt: skip


def _measured(
    run: TrainedRun, evaluation: Evaluation, start: int, device: str, noise: bool = True
) -> tuple[Tensor, ...]:
    """Of each sequence: pixels that several objects cover, AMI, and whether objects share a component or are torn."""
    evaluator = Evaluator(device)
    data, model, config = evaluator.dataset(run, evaluation), evaluator.model(run).eval(), evaluation.config(run)
    threshold = getattr(evaluation.data_config(run), "threshold", 0.5)
    parts = []
    for indices in torch.arange(len(data)).split(100):
        batch = data.batch(indices)
        assert batch.groups is not None
        frames, truth = (part[:1] if config.static else part for part in (batch.frames, batch.groups))
        keys = start_keys(config.seed, start, indices, frames.device)
        steps = list(infer(model, frames, config.components, keys, config.steps, noise=noise))
        groups = next_groups(truth, len(steps))[-1]
        x, assignment = steps[-1].x_next, steps[-1].state.gamma[:, :, 0].argmax(dim=1)
        assert x is not None
        overlap = ((x[:, 0] > threshold) & (groups == 0)).flatten(1).sum(dim=1)
        (table,) = tables(groups, assignment, keep_groups=True)
        parts.append((overlap, adjusted_mutual_info(groups, assignment), *_faults(table)))
    return tuple(torch.cat(part).cpu() for part in zip(*parts, strict=True))


def _faults(table: Tensor) -> tuple[Tensor, Tensor]:
    """Whether two objects have their largest parts in one component, and whether one is torn; table (B,G,K)."""
    there = table.sum(dim=2) > 0
    home = torch.nn.functional.one_hot(table.argmax(dim=2), table.shape[2]) * there[:, :, None]
    largest = table.max(dim=2).values / table.sum(dim=2).clamp(min=1)
    return (home.sum(dim=1) > 1).any(dim=1), (there & (largest < TORN)).any(dim=1)


if __name__ == "__main__":
    main()
