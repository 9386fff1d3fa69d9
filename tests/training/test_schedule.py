"""The learning rate's schedule, against PyTorch's own, and across a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_em.errors import NeuralEMError
from neural_em.training import TrainingConfig, fit, order


def test_cosine_is_what_pytorch_calls_so(tiny: Any) -> None:
    """Three epochs of four steps by hand: Adam and CosineAnnealingLR over all twelve."""
    config = replace(tiny.config, schedule="cosine", learning_rate=0.01)
    ours = fit(tiny.build(), tiny.training, config).model
    model = tiny.build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    best = float("inf")
    for epoch in range(3):
        losses = []
        for indices, keys in zip(*order.plan(0, epoch, len(tiny.training), 8), strict=True):
            x = tiny.training.batch(indices).frames
            x_noisy, gamma = model.draw(x, 2, keys)
            optimizer.zero_grad()
            loss = model.unroll(x, 2, x_noisy=x_noisy, gamma=gamma).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        best = min(best, sum(losses) / 4)
    assert sum(losses) / 4 == best  # without validation data the last epoch is the best one, and what is kept
    for mine, theirs in zip(ours.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_goes_on_where_it_stopped(tiny: Any, tmp_path: Path) -> None:
    """A run that is stopped half-way ends in the same weights."""
    config = replace(tiny.config, schedule="cosine")
    whole = fit(tiny.build(), tiny.training, config, tiny.validation)

    def stop_in_the_second(event: str, info: dict[str, Any]) -> None:
        if event == "steps" and info["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(tiny.build(), tiny.training, config, tiny.validation, tmp_path, callbacks=[stop_in_the_second])
    rest = fit(tiny.build(), tiny.training, config, tiny.validation, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(rest.model.parameters(), whole.model.parameters(), strict=True))


def test_other_schedules_are_refused() -> None:
    with pytest.raises(NeuralEMError, match=r"^training\.schedule: .*'cosin'.*did you mean 'cosine'"):
        TrainingConfig(schedule="cosin")  # type: ignore[arg-type]
