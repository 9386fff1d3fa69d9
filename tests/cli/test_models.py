"""``nem models``: what is shipped, or that nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

import neural_em
from neural_em.storage import pretrained
from tests.known import known_model


def test_what_there_is(run_nem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    notes = {
        "about": "two bars", "command": "nem train bars --seed 3", "components": 2,
        "scores": {"ami_last": 0.99912, "ami_mean": 0.8, "ari_last": 1},
    }  # fmt: skip
    neural_em.save(known_model(), tmp_path / "bars.safetensors", notes=notes)
    lines = run_nem("models").out.splitlines()
    assert lines == [
        "bars: two bars",
        "  frames 1 x 6 x 6, 2 components, 0.0 MB",
        "  AMI, last step: 0.999",
        "  AMI, mean over steps: 0.800",
        "  ARI, last step: 1.000",
        "  made by: nem train bars --seed 3",
    ]


def test_nothing_shipped_is_said(run_nem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    ended = run_nem("models")
    assert (ended.status, ended.out) == (0, "this version ships no trained models; `nem train` makes one\n")
