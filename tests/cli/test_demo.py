"""``nem demo``: says where to look."""

from __future__ import annotations

from pathlib import Path

import pytest

import neural_em
from neural_em import demo as module
from neural_em.storage import pretrained
from tests.known import known_model


def test_it_says_how_good_and_where(run_nem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setattr(pretrained, "FOLDER", shelf)
    monkeypatch.setattr(module, "SEQUENCES", 5)
    model = neural_em.NeuralEM(neural_em.ModelConfig(height=8, width=14, theta_size=5, convolutions=(), hidden=7))
    data = {"kind": "flying-shapes", "objects": 2, "frames": 4, "height": 8, "width": 14}
    neural_em.save(model, shelf / "flying-shapes.safetensors", notes={"components": 2, "data": data})
    ended = run_nem("demo", "--out", "shown", "--device", "cpu")
    assert ended.status == 0, ended.errors
    lines = ended.out.splitlines()
    assert lines[1].startswith("AMI ")
    assert lines[1].endswith("at the last step, on average over 5 sequences")
    assert lines[-1] == f"open: {tmp_path / 'shown' / 'index.html'}"
    assert (tmp_path / "shown" / "demo.gif").is_file()


def test_a_folder_in_the_way(refused, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "kept").mkdir()
    neural_em.save(known_model(), tmp_path / "kept" / "file")
    assert "kept: expected a new or empty folder" in refused("demo", "--out", "kept")
