"""``nem export``: a run in, files for other programs out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.known import BARS


def test_a_run_as_onnx(run_nem, tmp_path: Path, hand_made) -> None:  # type: ignore[no-untyped-def]
    """The exported unroll finds the two bars, as the run does."""
    onnxruntime = pytest.importorskip("onnxruntime")
    ended = run_nem("export", hand_made().folder, "--out", "exported")
    assert ended.status == 0, ended.errors
    assert ended.out == "step: exported/step.onnx\nunroll: exported/unroll.onnx\nabout: exported/export.json\n"
    session = onnxruntime.InferenceSession(str(tmp_path / "exported" / "unroll.onnx"))
    x = np.broadcast_to(BARS, (4, 1, 1, 6, 6)).astype(np.float32)
    gamma = np.random.default_rng(0).dirichlet([1, 1], (1, 6, 6)).astype(np.float32).transpose(0, 3, 1, 2)[:, :, None]
    outputs = session.run(["gamma_out"], {"x": x, "x_noisy": x[:3], "gamma": np.ascontiguousarray(gamma)})
    labels = outputs[0][-1, 0, :, 0].argmax(axis=0)
    assert labels[0, 0] != labels[-1, 0]
    assert len(np.unique(labels[:2])) == len(np.unique(labels[-2:])) == 1


def test_a_run_as_torch(run_nem, tmp_path: Path, hand_made) -> None:  # type: ignore[no-untyped-def]
    run_nem("export", hand_made().folder, "--out", "exported", "--format", "torch", "--steps", 1)
    program = torch.export.load(str(tmp_path / "exported" / "unroll.pt2")).module()
    x = torch.from_numpy(BARS).expand(2, 1, 1, 6, 6)
    gamma = torch.rand(1, 2, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = program(x, x[:1], gamma)[2][-1, 0, :, 0].argmax(dim=0)
    assert labels[0, 0] != labels[-1, 0]


def test_an_earlier_export_is_replaced_and_a_folder_with_more_is_kept(
    run_nem, refused, tmp_path: Path, hand_made
) -> None:  # type: ignore[no-untyped-def]
    options = ("export", hand_made().folder, "--out", "exported", "--format", "torch", "--steps", 1)
    for _ in range(2):
        assert run_nem(*options).status == 0
    (tmp_path / "exported" / "use.py").write_text("years")
    assert "got one that holds use.py" in refused(*options)
    assert (tmp_path / "exported" / "use.py").read_text() == "years"


@pytest.mark.parametrize(("arguments", "message"), [
    (["nowhere"], "model: expected a shipped model"),
    (["known", "--format", "tf"], "format: expected one of onnx, torch, got 'tf'"),
    (["known", "--format", "torch", "--steps", "0"], "steps: expected an integer >= 1, got 0"),
    (["known", "--out", "known"], "known: expected a new or empty folder"),
])  # fmt: skip
def test_refusals_leave_nothing(arguments: list[str], message: str, refused, tmp_path: Path, hand_made) -> None:  # type: ignore[no-untyped-def]
    hand_made()
    before = sorted(path.name for path in tmp_path.iterdir())
    out = [] if "--out" in arguments else ["--out", "exported"]
    assert message in refused("export", *arguments, *out)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
