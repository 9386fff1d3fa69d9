"""The demo: with a shipped model, and with none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import neural_em
from neural_em import NeuralEMError
from neural_em import demo as module
from neural_em.data import DataConfig
from neural_em.demo import SMALL, demo
from neural_em.model import ModelConfig, NeuralEM
from neural_em.storage import pretrained
from neural_em.training import TrainingConfig

TINY = replace(
    SMALL,
    model=ModelConfig(height=8, width=14, theta_size=5, convolutions=(), hidden=7),
    data=DataConfig("flying-shapes", objects=2, frames=4, height=8, width=14, train_size=16, validation_size=8),
    training=TrainingConfig(components=2, batch_size=8, epochs=1, tensorboard=False),
)


@pytest.fixture
def empty_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships nothing, as far as the demo knows, few sequences to group, and time enough for training."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setattr(pretrained, "FOLDER", shelf)
    monkeypatch.setattr(module, "SEQUENCES", 12)
    monkeypatch.setattr(module, "MOST_MINUTES", 1e6)
    return shelf


def test_without_a_shipped_model_it_trains_one(empty_shelf: Path, tmp_path: Path) -> None:
    said: list[str] = []
    done = demo(tmp_path / "out", "cpu", said.append, TINY)
    assert "training a small one" in said[0]
    assert (tmp_path / "out" / "run" / "best.safetensors").is_file()
    page = done.page.read_text(encoding="utf-8")
    assert f"AMI {done.ami:.3f}" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)  # nothing is fetched from anywhere
    with Image.open(done.animation) as gif:
        assert gif.n_frames == 3  # one for each step


def test_a_shipped_model_is_used_and_scored_as_evaluation_scores_it(empty_shelf: Path, tmp_path: Path) -> None:
    model = NeuralEM(TINY.model, seed=3)
    data = {"kind": "flying-shapes", "objects": 2, "frames": 4, "height": 8, "width": 14}
    neural_em.save(model, empty_shelf / "flying-shapes.safetensors", notes={"components": 2, "data": data})
    said: list[str] = []
    done = demo(tmp_path / "out", "cpu", said.append)
    assert said == ["grouping 12 flying-shapes sequences that flying-shapes has never seen"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["demo.gif", "index.html"]
    from neural_em.data import load_split
    from neural_em.evaluation import EvaluationConfig, evaluate

    test = load_split(DataConfig(**data), "test", seed=0, size=12)  # type: ignore[arg-type]
    assert done.ami == pytest.approx(evaluate(model, test, EvaluationConfig(2)).last_step["ami_max"].mean, abs=1e-3)


def test_an_earlier_demo_is_replaced_and_nothing_else(empty_shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(NeuralEMError, match="mine: expected a new or empty folder"):
        demo(tmp_path / "mine", "cpu", lambda line: None, TINY)
    for _ in range(2):
        demo(tmp_path / "out", "cpu", lambda line: None, TINY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out", "shelf"]


@pytest.mark.parametrize(
    "held", [["index.html"], ["index.html", "demo.gif"], ["index.html", "demo.gif", "run/log.txt"]]
)
def test_a_website_with_a_thesis_is_kept(empty_shelf: Path, tmp_path: Path, held: list[str]) -> None:
    site = tmp_path / "site"
    for name in (*held, "run/thesis.txt" if "run/log.txt" in held else "thesis.txt"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("years")
    with pytest.raises(NeuralEMError, match="site: expected a new or empty folder, or an earlier result"):
        demo(site, "cpu", lambda line: None, TINY)
    assert len([path for path in site.rglob("*.*") if path.read_text() == "years"]) == len(held) + 1


@pytest.mark.skipif(
    "flying-shapes" not in [card.name for card in pretrained.models()], reason="no flying-shapes model is shipped yet"
)
def test_the_shipped_model_finds_the_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEQUENCES", 24)
    assert demo(tmp_path / "out", "cpu").ami >= 0.9  # 0.98 on many sequences; one of these few may go wrong


@pytest.mark.slow
def test_the_small_model_groups_far_better_than_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_shelf: Path
) -> None:
    """A third of the demo's own training; AMI is 0 for a grouping by chance."""
    monkeypatch.setattr(module, "SEQUENCES", 100)
    small = replace(SMALL, training=replace(SMALL.training, epochs=8))
    done = demo(tmp_path / "out", "cpu", lambda line: None, small)
    assert done.ami > 0.45
    summary = json.loads((tmp_path / "out" / "run" / "summary.json").read_text())
    assert summary["finished"]
