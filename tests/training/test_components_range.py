"""Another number of components in every step: against a loop by hand, and across a stop."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats

from neural_em import config as configs
from neural_em.data import DataConfig, load_split
from neural_em.errors import NeuralEMError
from neural_em.training import TrainingConfig, fit, order


def test_all_numbers_are_equally_likely_and_belong_to_seed_and_epoch() -> None:
    drawn = order.components(seed=0, epoch=0, steps=3000, low=2, high=5)
    counts = Counter(drawn)
    assert sorted(counts) == [2, 3, 4, 5]
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert drawn == order.components(0, 0, 3000, 2, 5)
    for other in (order.components(1, 0, 3000, 2, 5), order.components(0, 1, 3000, 2, 5)):
        same = sum(a == b for a, b in zip(drawn, other, strict=True))
        assert 600 < same < 900  # 750 by chance, give or take 24
    assert order.components(0, 0, 5, 3, 3) == [3] * 5


@pytest.mark.parametrize("engine", ["plain", "fast"])
def test_every_step_has_its_own_number(tiny: Any, engine: str) -> None:
    """Three epochs of four steps by hand, each with what the seed draws for it."""
    config = tiny.with_(components_range=(1, 3), learning_rate=0.01, engine=engine)
    ours = fit(tiny.build(), tiny.training, config)
    model, numbers = tiny.build(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        losses = []
        components = order.components(0, epoch, 4, 1, 3)
        plan = order.plan(0, epoch, len(tiny.training), 8)
        for indices, keys, K in zip(*plan, components, strict=True):
            x = tiny.training.batch(indices).frames
            x_noisy, gamma = model.draw(x, K, keys)
            optimizer.zero_grad()
            loss = model.unroll(x, K, x_noisy=x_noisy, gamma=gamma).loss
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            numbers.append(K)
        assert ours.progress.rows[epoch].loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert set(numbers) == {1, 2, 3}


def test_a_range_of_one_number_is_that_number(tiny: Any) -> None:
    one, usual = (fit(tiny.build(), tiny.training, tiny.with_(**change)).model for change in (
        {"components_range": (2, 2)}, {"components": 2}))  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), usual.parameters(), strict=True))


def test_goes_on_where_it_stopped(tiny: Any, tmp_path: Path) -> None:
    """One step a start, and the same bits as without a stop."""
    config = tiny.with_(components_range=(1, 4))
    whole = fit(tiny.build(), tiny.training, config, tiny.validation)
    while not (parts := fit(tiny.build(), tiny.training, config, tiny.validation, tmp_path, max_minutes=1e-9)).finished:
        pass
    assert all(torch.equal(a, b) for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True))
    assert [row.loss for row in parts.progress.rows] == [row.loss for row in whole.progress.rows]


@pytest.mark.gpu
@pytest.mark.parametrize("fresh", [False, True])
def test_every_number_has_its_own_graph(tiny: Any, fresh: bool) -> None:
    """Float64 on a GPU, data there or made batch by batch: the losses of a CPU."""
    data = DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=34, fresh=fresh)
    config = tiny.with_(components_range=(1, 4), precision="float64", engine="fast", learning_rate=0.01)
    there, here = (
        fit(tiny.build().to(device, torch.float64), load_split(data, "training", 0, device), config)
        for device in ("cuda", "cpu")
    )
    for a, b in zip(there.progress.rows, here.progress.rows, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-6)


@pytest.mark.parametrize("value", [(2,), (2, 3, 4), (0, 2), (3, 2), (2, True), ("2", 3), 3, "23", (2.0, 3)])
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(NeuralEMError, match=r"^training\.components_range.*: expected .*, got "):
        TrainingConfig(components_range=value)


def test_it_survives_yaml() -> None:
    config = TrainingConfig(components_range=(2, 4))
    assert configs.from_dict(TrainingConfig, configs.to_dict(config)) == config
    assert configs.override(TrainingConfig(), ["components_range=[2, 4]"]) == config
