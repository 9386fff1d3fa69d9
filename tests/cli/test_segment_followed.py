"""``nem segment`` where a ground is known: objects are followed, and what may be wrong with the ground is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from neural_em.data.images import read_labels


def test_objects_that_touch_are_followed(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    """Two grey discs fly past each other: two objects; without following, the model's components."""
    rows, columns = np.mgrid[:48, :48]
    clip = [((rows - row) ** 2 + (columns - column) ** 2 < 36) * 0.6
            for t in range(24) for row, column in ((19, 8 + 1.4 * t), (29, 40 - 1.4 * t))]  # fmt: skip
    np.save(tmp_path / "clip.npy", np.maximum(clip[::2], clip[1::2]))
    summaries = {}
    for name, options in {"followed": [], "raw": ["--raw"]}.items():
        ended = run_nem("segment", "clip.npy", "--model", weights, "--out", name, *options)
        assert ended.status == 0, ended.errors
        assert "background: flat: objects move on one colour, black (#000000)\n" in ended.out
        assert ("2 objects followed through the clip" in ended.out) == (name == "followed")
        summaries[name] = json.loads((tmp_path / name / "segmentation.json").read_text())
        page = (tmp_path / name / "index.html").read_text()
        assert ("colours of their own" in page) == (name == "followed")
        assert summaries[name]["ground"] == "flat: objects move on one colour, black (#000000)"
    found = summaries["followed"]["followed"]["objects"]
    assert [(each["label"], each["frames"]) for each in found] == [(1, 24), (2, 24)]
    assert summaries["followed"]["objects"]["tracks"] == 2
    assert "followed" not in summaries["raw"]
    assert (summaries["followed"]["starts"], summaries["raw"]["starts"]) == (2, 8)


def test_white_discs_as_small_as_the_model_sees_them(run_nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The shipped model of shapes does not know them; on one colour they are followed all the same."""
    rows, columns = np.mgrid[:28, :28]
    masks = np.zeros((40, 28, 28), np.uint8)
    for t in range(40):
        for number, (row, column, radius) in enumerate(
            [(7, 4 + t / 2, 3.5), (12, 24 - t / 2, 3.9), (24 - t / 10, 5 + t / 2.2, 3)], start=1
        ):
            masks[t, (rows - row) ** 2 + (columns - column) ** 2 < radius**2] = number
    np.save(tmp_path / "clip.npy", np.where(masks > 0, 255, 0).astype(np.uint8))
    np.save(tmp_path / "masks.npy", masks)
    ended = run_nem("segment", "clip.npy", "--masks", "masks.npy")
    assert ended.status == 0, ended.errors
    assert "model: flying-shapes" in ended.out
    assert "3 objects followed through the clip" in ended.out
    summary = json.loads((tmp_path / "segmented-clip" / "segmentation.json").read_text())
    assert summary["scores"]["mean_over_frames"]["ami_max"] > 0.85


def test_what_stands_for_most_of_a_clip_leaves_no_ghost(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    """A square stands on a slope of grey for two thirds of the clip and leaves: it is an object throughout."""
    scene = np.tile(np.linspace(100, 200, 48).astype(np.uint8), (30, 48, 1))
    masks = np.zeros(scene.shape, np.uint8)
    for t in range(30):
        column = 8 if t < 20 else 8 + 4 * (t - 20)
        masks[t, 36:42, t : t + 6] = 1
        masks[t, 8:22, column : column + 14] = 2
    np.save(tmp_path / "clip.npy", np.where(masks == 1, 20, np.where(masks == 2, 10, scene)).astype(np.uint8))
    ended = run_nem("segment", "clip.npy", "--model", weights, "--out", "out")
    assert ended.status == 0, ended.errors
    labels = [read_labels(each) for each in sorted((tmp_path / "out" / "labels").iterdir())]
    for t in (0, 10, 19, 29):
        assert (labels[t] > 0)[masks[t] > 0].mean() > 0.9
        assert (labels[t] > 0)[masks[t] == 0].mean() < 0.02
