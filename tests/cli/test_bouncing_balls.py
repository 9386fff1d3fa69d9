"""R-NEM by the real commands at toy size: ``nem reproduce relational``, and its attention drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from neural_em.experiments.evaluation import Evaluation, Evaluator
from neural_em.report.run_reports import sequences
from neural_em.runs.find import find_runs
from tests.reproduce.made import row

Run = Callable[..., Any]
RUNS, PAGE = Path("runs/quick"), Path("runs/quick/results/relational.md")
QUICK = ("reproduce", "--quick", "--device", "cpu", "--seeds", 1)


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_one_of_the_models_and_what_its_evaluations_say(run_nem: Run) -> None:
    ended = run_nem(*QUICK, "bouncing-balls", "--set", "data.train_size=16", "--set", "training.epochs=1")
    assert ended.status == 0, ended.errors
    assert ended.out.endswith(f"{PAGE}\n")
    assert "bouncing-balls: 1 + 1 epochs of 16 sequences" in text()
    found = [json.loads(path.read_text()) for path in (RUNS / "bouncing-balls" / "seed-0" / "evaluations").glob("*")
             if path.suffix == ".json"]  # fmt: skip
    four, more = sorted(found, key=lambda each: each["settings"]["data"]["objects"])
    assert (four["settings"]["components"], more["settings"]["components"]) == (8, 8)
    assert (more["settings"]["data"]["objects"], more["settings"]["data"]["most_objects"]) == (6, 8)
    for part, result in zip(text().split("## ")[1:3], (four, more), strict=True):
        mean, last = result["mean_over_steps"], result["last_step"]
        values = [mean["ari"], last["ari"], mean["upper_bound"], last["upper_bound"]]
        values += [mean["relational"], mean["relational_later"]]
        assert [float(cell) for cell in row(part, "| R-NEM ")[1:7]] == pytest.approx(
            [value["mean"] for value in values], abs=0.006
        )
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if "|" in line]
        steps = {line[0]: line[1:] for line in table if line[0].isdigit()}
        assert list(steps) == ["1", "2", "3", "4"]
        for step, errors in steps.items():
            wanted = [result["rollout"][name]["mean"][int(step) - 1] for name in ("upper_bound", "repeated")]
            assert [float(error) for error in errors] == pytest.approx(wanted, abs=0.006)
    before = text()
    shutil.move(str(PAGE.parent), "kept")
    shutil.rmtree(RUNS)
    assert run_nem(*QUICK, "relational", "--report", "--out", "kept").status == 0
    assert Path("kept/relational.md").read_text(encoding="utf-8") == before  # results outlive the runs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["relational", "--set", "model.theta_size=9"], "--set changes what bouncing-balls is: model.theta_size=9"),
        (["static-shapes", "--set", "data.train_size=9"], "--set changes what static-shapes is: data.train_size=9"),
        (["relational", "static-shapes"], "experiment: expected one of bouncing-balls, bouncing-balls-rnn-em"),
    ],
)
def test_mistakes_are_answered_in_one_line(refused: Run, arguments: list[str], words: str) -> None:
    assert words in refused("reproduce", *arguments)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_all_four_at_toy_size(run_nem: Run) -> None:
    ended = run_nem("reproduce", "relational", "--quick", "--device", "cpu")
    assert ended.status == 0, ended.errors
    assert "*missing*" not in text()
    assert (
        "bouncing-balls, bouncing-balls-rnn-em, bouncing-balls-rnn: 2 + 2 epochs of 32 sequences; curtain: 2 epochs"
        in text()
    )
    pictures = {path.stem for path in (PAGE.parent / "figures").glob("*.png")}
    assert pictures == {"rollout-4-balls", "rollout-6-to-8-balls", "bouncing-balls", "curtain"}
    again = run_nem("reproduce", "relational", "--quick", "--device", "cpu")
    assert again.out == f"{PAGE}\n"  # nothing is left to do


TINY = [
    "train", "bouncing-balls", "--device", "cpu", "--components", 3, "--train-size", 8, "--batch-size", 8,
    "--epochs", 1, "--set", "data.frames=5", "--set", "training.steps=3", "--set", "data.height=16",
    "--set", "data.width=16", "--set", "data.radii=[2,3]", "--set", "data.objects=2", "--set", "data.most_objects=2",
    "--set", "data.validation_size=4", "--set", "data.test_size=6", "--set", "model.theta_size=8",
    "--set", "model.convolutions=[4]",
    "--set", "model.hidden=10", "--set", "training.tensorboard=false",
]  # fmt: skip


def test_the_shipped_model_predicts_better_than_that_nothing_moves(run_nem: Run) -> None:
    ended = run_nem("evaluate", "bouncing-balls", "--rollout", 10, "--size", 3, "--device", "cpu", "--out", "scores")
    assert ended.status == 0, ended.errors
    assert "bouncing-balls: 3 sequences, 30 steps, 8 components" in ended.out
    result = json.loads(Path("scores/test-rollout10-size3.json").read_text())
    errors, repeated = (result["rollout"][name]["mean"] for name in ("upper_bound", "repeated"))
    assert len(errors) == 10
    assert all(error < nothing for error, nothing in zip(errors, repeated, strict=True))
    assert result["last_step"]["ari"]["mean"] > 0.5  # 0.92 on many; by chance 0


def test_the_attention_is_drawn(run_nem: Run) -> None:
    assert run_nem(*TINY, "--run", "balls").status == 0
    drawn = run_nem("figure", "balls", "--kind", "attention", "--pick", 1, "--device", "cpu")
    assert drawn.status == 0, drawn.errors
    assert drawn.out.split() == ["balls/figures/attention-1.png", "balls/figures/attention-1.pdf"]
    rolled = run_nem("figure", "balls", "--kind", "attention", "--pick", 1, "--rollout", 2, "--device", "cpu",
                     "--out", "balls.gif")  # fmt: skip
    assert rolled.status == 0, rolled.errors
    with Image.open("balls.gif") as animation:
        assert getattr(animation, "n_frames", 1) == 4 + 2
    assert run_nem("report", "balls", "--device", "cpu").status == 0
    assert Path("report.html").read_text(encoding="utf-8").count('aria-label="attention"') == 3  # best, typical, worst
    # what is drawn is the attention of the state that each step has read: all zero at first
    (run,) = find_runs(["balls"]).runs
    (shown,) = sequences(Evaluator("cpu"), run, Evaluation(), {"one": 1})
    model = run.load(torch.device("cpu"))
    with torch.no_grad():
        first = model.m_step.attention(torch.zeros(1, 3, 8))[0].numpy()
    assert shown.attention is not None
    assert shown.attention.shape == (4, 3, 3)
    np.testing.assert_allclose(shown.attention[0], first, atol=1e-6)
    assert np.abs(shown.attention[1] - first).max() > 1e-5


def test_a_model_without_attention_has_none_to_draw(refused: Run) -> None:
    words = "flying-shapes: attention is between two or more components of a model with model.m_step=relational"
    assert words in refused("figure", "flying-shapes", "--kind", "attention", "--device", "cpu")
