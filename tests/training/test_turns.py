"""Several runs in one process: each as if it were alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch

from neural_em.errors import NeuralEMError
from neural_em.training.loop import Run, outcomes, take_turns
from neural_em.training.state import Outcome, Progress

CPU = torch.device("cpu")


def _run(tiny: Any, seed: int, epochs: int = 2) -> Run:
    config = tiny.with_(seed=seed, epochs=epochs)
    return Run(tiny.build(seed), tiny.training, tiny.validation, config, name=f"seed-{seed}")


def test_seeds_together_are_seeds_alone(tiny: Any) -> None:
    """The very same weights and numbers, though one of them ends earlier than the others."""
    epochs = {0: 2, 1: 1, 2: 3}
    together = take_turns({str(seed): _run(tiny, seed, n).train() for seed, n in epochs.items()}, CPU)
    for seed, n in epochs.items():
        (alone,) = outcomes(take_turns({"": _run(tiny, seed, n).train()}, CPU))
        other = together[str(seed)]
        assert isinstance(other, Outcome)
        assert [r.validation_loss for r in other.progress.rows] == [r.validation_loss for r in alone.progress.rows]
        for a, b in zip(other.model.parameters(), alone.model.parameters(), strict=True):
            assert torch.equal(a, b)
    assert together["0"].model.state_dict().keys() == together["1"].model.state_dict().keys()  # type: ignore[union-attr]


def test_runs_take_turns() -> None:
    """One step of each, and a failing one does not hold up the others."""
    order: list[str] = []

    def steps(name: str, count: int, fails: bool = False) -> Generator[None, None, Outcome]:
        for _ in range(count):
            order.append(name)
            yield
        if fails:
            raise NeuralEMError(f"{name}: no more numbers")
        return Outcome(name, None, "epochs", Progress())  # type: ignore[arg-type]

    results = take_turns({"a": steps("a", 2), "b": steps("b", 1, fails=True), "c": steps("c", 3)}, CPU)
    assert order == ["a", "b", "c", "a", "c", "c"]
    assert list(results) == ["a", "b", "c"]
    with pytest.raises(NeuralEMError, match="1 of 3 runs failed, the others finished: b: no more numbers"):
        outcomes(results)


def test_a_full_disk_under_one_run_is_one_clear_error() -> None:
    """Whatever the system says, the user gets the project's error."""

    def steps() -> Generator[None, None, Outcome]:
        yield
        raise OSError(28, "No space left on device", "log.txt")

    with pytest.raises(NeuralEMError, match="No space left on device"):
        outcomes(take_turns({"": steps()}, CPU))


@pytest.mark.gpu
def test_seeds_overlap_on_a_gpu_and_stay_themselves(tiny: Any) -> None:
    """Each on its own stream: losses equal to training alone to 1e-5 over the first 10 steps."""
    from neural_em.data import DataConfig, load_split

    device = torch.device("cuda")
    config = DataConfig("flying-shapes", frames=6, train_size=160, validation_size=16)
    data, validation = load_split(config, "training", 0, device), load_split(config, "validation", 0, device)

    def losses(seeds: range) -> dict[int, list[float]]:
        seen: dict[int, list[float]] = {seed: [] for seed in seeds}
        runs = {}
        for seed in seeds:
            from neural_em.model import NeuralEM

            settings = tiny.with_(seed=seed, epochs=1, batch_size=16, components=3, engine="fast", precision="float32")
            run = Run(NeuralEM(seed=seed).to(device), data, validation, settings, name=str(seed))
            runs[str(seed)] = run.train()
            run.callbacks = (lambda e, i, run=run, s=seed: e == "steps" and seen[s].extend(run._losses.tolist()),)
        outcomes(take_turns(runs, device))
        return seen

    together = losses(range(3))
    for seed in range(3):
        alone = losses(range(seed, seed + 1))[seed]
        assert len(alone) == 10
        assert together[seed] == pytest.approx(alone, rel=1e-5)
