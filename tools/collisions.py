"""How well a model predicts balls that met: the error near them, frame by frame from the collision on.

    python tools/collisions.py bouncing-balls --size 96
    python tools/collisions.py bouncing-balls --size 64 --objects 6 --most 8 --components 12 --effects scaled
    python tools/collisions.py bouncing-balls --size 64 --objects 4 --most 4 --attention

RUN is whatever ``nem evaluate`` takes. The error is the binary cross entropy of the next frame, psi = max over the
components, summed over the pixels of balls that met and those up to three pixels away from them; from the eleventh of
30 steps on, with the model's noise, on validation data. ``--effects`` changes what R-NEM's components send each other:
``none`` of it, the ``mean`` over components and sequences, that of ``another`` sequence, or the sum ``scaled`` to as
many others as there were in training. ``--attention`` adds how much components heed each other, by how far apart the
centres are of what they predict; those that predict less than half a ball are left out.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_em.evaluation.evaluate import start_keys
from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.model import Model
from neural_em.model.inference import infer
from neural_em.model.mixture import prediction_error
from neural_em.runs.find import find_runs

STEPS, FIRST, LATER = 30, 10, 4
"""Steps, those of them that are left out, and of how many frames from a collision on the error is given."""
NEAR = 3  # pixels
DISTANCES = (0.0, 11.0, 13.0, 15.0, 18.0, 24.0, float("inf"))  # pixels; balls touch at 10.2 to 12.8
SMALL = 40.0  # pixels: half a small ball
EFFECTS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda effect, ratio: torch.zeros_like(effect),
    "mean": lambda effect, ratio: effect.mean(dim=(0, 1), keepdim=True).expand_as(effect),
    "another": lambda effect, ratio: effect.roll(1, dims=0),
    "scaled": lambda effect, ratio: effect * ratio,
}
"""What becomes of the effects (B,K,M); ``ratio``: others in training to others now."""


def main() -> None:
    """Prints a line for each run."""
    parser = argparse.ArgumentParser(description="How well a model predicts balls that met.")
    parser.add_argument("run", nargs="+")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--objects", type=int)
    parser.add_argument("--most", type=int, help="largest number of objects, where it differs")
    parser.add_argument("--components", type=int)
    parser.add_argument("--effects", choices=EFFECTS)
    parser.add_argument("--attention", action="store_true", help="print it by distance too")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    evaluation = Evaluation(
        objects=options.objects, components=options.components, steps=STEPS, split="validation", size=options.size,
        changes=() if options.most is None else (f"data.most_objects={options.most}",),
    )  # fmt: skip
    print(f"{'near: at once':>32} {'a frame later':>13} {'two':>7} {'three':>7} {'all frames':>10} {'quiet':>7}")
    found = find_runs(options.run)
    if found.problems:
        parser.error("; ".join(found.problems))
    if options.effects == "another" and options.size < 2:
        parser.error("--effects another needs two sequences")
    for run in found.runs:
        evaluator, config = Evaluator(options.device), evaluation.config(run)
        data, model = evaluator.dataset(run, evaluation), run.load(evaluator.device).eval()
        if options.effects:
            _change(model, EFFECTS[options.effects], run.experiment.training.components, config.components)
        rows = torch.arange(len(data))
        met = data.collisions(rows)
        if met is None:
            parser.error(f"{run.name}: its data have no collisions")
        keys = start_keys(config.seed, 0, rows, evaluator.device)
        if options.attention and not (hasattr(getattr(model, "m_step", None), "attention") and config.components > 1):
            parser.error(f"{run.name}: there are no components here that heed each other")
        frames = data.batch(rows).frames
        near, every, quiet = measured(model, frames, met, config.components, keys)
        print(f"{run.name:18} " + " ".join(f"{value:{width}.1f}" for value, width in zip(
            [*near, every, quiet], (13, 13, 7, 7, 10, 7), strict=True)))  # fmt: skip
        if options.attention:
            for (low, high), (mean, count) in heeded(model, frames, config.components, keys).items():
                print(f"  {low:g} to {high:g} pixels apart: attention {mean:.3f}, {count} pairs")


def measured(
    model: Model, frames: Tensor, met: Tensor, components: int, keys: Tensor
) -> tuple[list[float], float, float]:
    """Errors near balls that met (T,B,H,W), by frames since; of all frames; of those without any in the last three."""
    frames, met = frames.to(keys.device, next(model.parameters()).dtype), met.to(keys.device).float()
    errors = []
    for step in infer(model, frames, components, keys, STEPS):
        assert step.x_next is not None
        errors.append(prediction_error(model.distribution, step.x_next, step.state.psi).sum(dim=1))
    error = torch.stack([torch.zeros_like(errors[0]), *errors])  # (T,B,H,W), as the frames; nothing predicts the first
    near = F.max_pool2d(met, 2 * NEAR + 1, 1, NEAR)
    some = met.flatten(2).any(dim=2)  # (T,B)
    by_frames = []
    for later in range(LATER):
        at = torch.arange(FIRST + 1, STEPS + 1 - later)
        here = (error[at + later] * near[at]).flatten(2).sum(dim=2)
        by_frames.append(float(here[some[at]].mean()))
    whole = error[FIRST + 1 :].flatten(2).sum(dim=2)
    still = torch.stack([~some[t + 1 - LATER : t + 1].any(dim=0) for t in range(FIRST + 1, STEPS + 1)])
    return by_frames, float(whole.mean()), float(whole[still].mean())


def heeded(model: Model, frames: Tensor, components: int, keys: Tensor) -> dict[tuple[float, float], tuple[float, int]]:
    """Mean attention among components, and how many pairs it is of, by the distance of their centres."""
    frames = frames.to(keys.device, next(model.parameters()).dtype)
    rows, columns = (torch.arange(n, device=keys.device, dtype=frames.dtype) for n in frames.shape[-2:])
    distances, weights = [], []
    for number, step in enumerate(infer(model, frames, components, keys, STEPS)):
        if number >= FIRST:
            psi = step.state.psi.amax(dim=2)  # (B,K,H,W)
            mass = psi.sum(dim=(2, 3))
            centre = torch.stack([(psi.sum(3) @ rows), (psi.sum(2) @ columns)], dim=-1) / mass.unsqueeze(-1)
            some = mass >= SMALL
            pairs = some.unsqueeze(1) & some.unsqueeze(2) & ~torch.eye(components, dtype=torch.bool, device=some.device)
            distances.append(torch.cdist(centre, centre)[pairs])
            weights.append(model.m_step.attention(step.state.theta).detach()[pairs])
    apart, weight = torch.cat(distances), torch.cat(weights)
    found = {}
    for low, high in itertools.pairwise(DISTANCES):
        there = weight[(apart >= low) & (apart < high)]
        found[low, high] = float(there.mean()), len(there)
    return found


def _change(model: Model, change: Callable[[Tensor, float], Tensor], trained: int, components: int) -> None:
    """Lets the components read changed effects; with how many components it was trained, and how many there are."""
    interaction = getattr(getattr(model, "m_step", None), "interaction", None)
    if interaction is None or components == 1:
        raise SystemExit("--effects: there are no components here that see each other")
    ratio = (trained - 1) / (components - 1)

    def changed(module: object, given: tuple[Tensor, ...], out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return out[0], change(out[1], ratio), out[2]

    interaction.register_forward_hook(changed)


if __name__ == "__main__":
    main()
