"""The demo: with a shipped model, and with none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

import neural_em
from neural_em import NeuralEMError
from neural_em import demo as module
from neural_em.data import DataConfig
from neural_em.demo import demo
from neural_em.model import ModelConfig, NeuralEM
from neural_em.storage import pretrained

DATA = {"kind": "flying-shapes", "objects": 2, "frames": 4, "height": 8, "width": 14}


@pytest.fixture
def empty_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that ships nothing, as far as the demo knows, and few sequences to group."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setattr(pretrained, "FOLDER", shelf)
    monkeypatch.setattr(module, "SEQUENCES", 12)
    return shelf


@pytest.fixture
def model(empty_shelf: Path) -> NeuralEM:
    """A small one, shipped."""
    model = NeuralEM(ModelConfig(height=8, width=14, theta_size=5, convolutions=(), hidden=7), seed=3)
    neural_em.save(model, empty_shelf / "flying-shapes.safetensors", notes={"components": 2, "data": DATA})
    return model


def test_without_a_shipped_model_there_is_none(empty_shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError, match=r"model: expected a shipped model \(none in this version\)"):
        demo(tmp_path / "out", "cpu", lambda line: None)
    assert not (tmp_path / "out").exists()


def test_a_shipped_model_is_used_and_scored_as_evaluation_scores_it(model: NeuralEM, tmp_path: Path) -> None:
    said: list[str] = []
    done = demo(tmp_path / "out", "cpu", said.append)
    assert said == ["grouping 12 flying-shapes sequences that flying-shapes has never seen"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["demo.gif", "index.html"]
    from neural_em.data import load_split
    from neural_em.evaluation import EvaluationConfig, evaluate

    test = load_split(DataConfig(**DATA), "test", seed=0, size=12)  # type: ignore[arg-type]
    assert done.ami == pytest.approx(evaluate(model, test, EvaluationConfig(2)).last_step["ami_max"].mean, abs=1e-3)
    page = done.page.read_text(encoding="utf-8")
    assert f"AMI {done.ami:.3f} after the last of 3 steps" in page
    assert "<body data-plays>" in page
    assert 'data-rollout="10"' in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)  # nothing is fetched from anywhere
    with Image.open(done.animation) as gif:
        assert gif.n_frames == 3 + module.ROLLOUT  # one for each step, with input and without


def test_an_earlier_demo_is_replaced_and_nothing_else(model: NeuralEM, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(NeuralEMError, match="mine: expected a new or empty folder"):
        demo(tmp_path / "mine", "cpu", lambda line: None)
    for _ in range(2):
        demo(tmp_path / "out", "cpu", lambda line: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out", "shelf"]


@pytest.mark.parametrize("held", [["index.html"], ["index.html", "demo.gif"]])
def test_a_website_with_a_thesis_is_kept(model: NeuralEM, tmp_path: Path, held: list[str]) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in (*held, "thesis.txt"):
        (site / name).write_text("years")
    with pytest.raises(NeuralEMError, match="site: expected a new or empty folder, or an earlier result"):
        demo(site, "cpu", lambda line: None)
    assert len([path for path in site.rglob("*.*") if path.read_text() == "years"]) == len(held) + 1


@pytest.mark.skipif(
    "flying-shapes" not in [card.name for card in pretrained.models()], reason="no flying-shapes model is shipped yet"
)
def test_the_shipped_model_finds_the_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEQUENCES", 24)
    assert demo(tmp_path / "out", "cpu").ami >= 0.9  # 0.98 on many sequences; one of these few may go wrong
