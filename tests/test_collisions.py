"""``tools/collisions.py``: errors of predictions that are known, and the effects that it changes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_em import NeuralEM
from neural_em.model import ModelConfig
from tools import collisions

SIZE, FRAMES, PIXEL = 12, collisions.STEPS + 1, math.log(2)  # 0.5 costs log 2 a pixel
MODEL = NeuralEM(ModelConfig(height=SIZE, width=SIZE, m_step="relational", theta_size=6, convolutions=(4,), hidden=8))


def measured(monkeypatch: pytest.MonkeyPatch, met: Tensor, *known: int) -> tuple[list[float], float, float]:
    """Of black frames, of which the ``known`` ones are predicted rightly and all others as 0.5."""

    def steps(model: Any, frames: Tensor, components: int, keys: Tensor, steps: int) -> Iterator[SimpleNamespace]:
        for t in range(1, steps + 1):
            psi = torch.full((frames.shape[1], components, 1, SIZE, SIZE), 0.0 if t in known else 0.5)
            yield SimpleNamespace(x_next=frames[t], state=SimpleNamespace(psi=psi))

    monkeypatch.setattr(collisions, "infer", steps)
    return collisions.measured(MODEL, torch.zeros(FRAMES, met.shape[1], 1, SIZE, SIZE), met, 3, torch.zeros(1))


def test_the_error_near_balls_that_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence of two has a collision, a pixel at frame 20: 7 x 7 pixels are near it, and so they are later."""
    met = torch.zeros(FRAMES, 2, SIZE, SIZE, dtype=torch.bool)
    met[20, 1, 5, 5] = True
    near, every, quiet = measured(monkeypatch, met)
    assert near == pytest.approx([49 * PIXEL] * 4, rel=1e-5)
    assert every == pytest.approx(SIZE * SIZE * PIXEL, rel=1e-5) == quiet
    near, every, quiet = measured(monkeypatch, met, 21, 24)
    assert near == pytest.approx([49 * PIXEL, 0, 49 * PIXEL, 49 * PIXEL], rel=1e-5, abs=0.01)
    assert every == pytest.approx(SIZE * SIZE * PIXEL * 18 / 20, rel=1e-4)
    # quiet: all 20 frames of the first sequence, of the second all but 20 to 23
    assert quiet == pytest.approx(SIZE * SIZE * PIXEL * (18 + 15) / (20 + 16), rel=1e-4)


def test_collisions_before_the_eleventh_step_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    met = torch.zeros(FRAMES, 1, SIZE, SIZE, dtype=torch.bool)
    met[10, 0, 5, 5] = True  # the tenth step's frame
    near, *_ = measured(monkeypatch, met)
    assert all(math.isnan(value) for value in near)


def test_attention_by_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three squares of 49 pixels, 12 and 16 pixels apart in a row, and a component that predicts next to nothing."""
    psi = torch.zeros(1, 4, 1, 40, 40)
    for k, left in enumerate((0, 12, 28)):
        psi[0, k, 0, 5:12, left : left + 7] = 1
    psi[0, 3, 0, 0, 0] = 1
    attention = torch.arange(16.0).view(1, 4, 4)
    state = SimpleNamespace(psi=psi, theta=torch.zeros(1, 4, 6))
    monkeypatch.setattr(collisions, "infer", lambda *given: [SimpleNamespace(state=state)] * (collisions.FIRST + 2))
    monkeypatch.setattr(MODEL.m_step, "attention", lambda theta: attention)
    found = collisions.heeded(MODEL, torch.zeros(FRAMES, 1, 1, 40, 40), 4, torch.zeros(1))
    pairs = {(11.0, 13.0): [1, 4], (15.0, 18.0): [6, 9], (24.0, math.inf): [2, 8]}  # both ways, in each of two steps
    assert {span: part for span, part in found.items() if part[1]} == {
        span: (sum(values) / 2, 4) for span, values in pairs.items()
    }


def test_what_becomes_of_the_effects() -> None:
    effect = torch.arange(12.0).view(3, 2, 2)
    changed = {name: change(effect, 0.5) for name, change in collisions.EFFECTS.items()}
    assert not changed["none"].any()
    assert torch.equal(changed["mean"], torch.tensor([5.0, 6.0]).expand(3, 2, 2))
    assert torch.equal(changed["another"], effect[[2, 0, 1]])
    assert torch.equal(changed["scaled"], effect / 2)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for effects in ([], ["--effects", "scaled"], ["--effects", "none"]):  # as many as in training: scaled by one
        command = ["collisions.py", "bouncing-balls", "--size", "3", "--device", "cpu", *effects]
        monkeypatch.setattr(sys, "argv", command)
        collisions.main()
        lines.append(capsys.readouterr().out.splitlines()[-1])
    assert lines[0] == lines[1] != lines[2]
    assert lines[0].startswith("bouncing-balls")
    monkeypatch.setattr(
        sys, "argv", ["collisions.py", "bouncing-balls", "--size", "3", "--device", "cpu", "--attention"]
    )
    collisions.main()
    *_, errors, near, _, _, _, _, far = capsys.readouterr().out.splitlines()
    assert errors == lines[0]
    assert re.fullmatch(r"  0 to 11 pixels apart: attention (\d\.\d{3}|nan), \d+ pairs", near)
    assert re.fullmatch(r"  24 to inf pixels apart: attention 0\.0\d\d, \d+ pairs", far)


def test_the_sum_is_scaled_to_the_others_in_training() -> None:
    effects, model = [], NeuralEM(MODEL.config)
    model.m_step.interaction.register_forward_hook(lambda module, given, out: effects.append(out[1]))
    collisions._change(model, collisions.EFFECTS["scaled"], 5, 8)
    model.m_step.interaction.register_forward_hook(lambda module, given, out: effects.append(out[1]))
    model.m_step.interaction(torch.rand(2, 8, 6))
    torch.testing.assert_close(effects[1], effects[0] * 4 / 7)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["flying-shapes"], "its data have no collisions"),
        (["flying-shapes", "--effects", "none"], "no components here that see each other"),
        (["bouncing-balls", "--components", "1", "--effects", "scaled"], "no components here that see each other"),
        (["bouncing-balls", "--size", "1", "--effects", "another"], "needs two sequences"),
        (["bouncing-balls", "--components", "1", "--attention"], "no components here that heed each other"),
    ],
)
def test_what_it_is_not_for(
    options: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["collisions.py", "--size", "2", "--device", "cpu", *options])
    with pytest.raises(SystemExit) as stopped:
        collisions.main()
    assert why in f"{stopped.value}{capsys.readouterr().err}"
