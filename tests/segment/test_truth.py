"""What is said of a clip: shares counted by hand, and each warning where it is due and nowhere else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import neural_em
from neural_em.data import flying_shapes
from neural_em.runs.find import find_runs
from neural_em.segment import SegmentConfig, segment
from neural_em.segment.truth import Usual, Watch, usual
from tests.known import BARS, known_model


def watched(path: Path, frames: np.ndarray, usual: Usual | None = None, **options: object) -> Watch:
    np.save(path / "clip.npy", frames)
    config = SegmentConfig(**{"components": 2, "starts": 2, "background": "none", **options})  # type: ignore[arg-type]
    segmentation = segment(path / "clip.npy", known_model(), config)
    watch = Watch(segmentation, usual)
    for frame in segmentation:
        watch.add(frame)
    return watch


def test_a_clip_that_the_model_knows(tmp_path: Path) -> None:
    watch = watched(tmp_path, np.stack([BARS] * 3))
    assert watch.summary() == {
        "foreground": round(24 / 36, 4), "explained": 1, "largest_component": 0.5, "within_patches": 1,
        "objects_a_frame": 2, "patches_a_frame": 2, "loss_against_usual": None, "agreement_of_starts": 1,
        "empty_frames": 0, "restarts": [], "explained_usually": None,
    }  # fmt: skip
    assert watch.line() == (
        "the model explains 100% of the foreground pixels; 2.0 objects a frame (2.0 connected patches); "
        "starts agree by 1.00"
    )


def test_pixels_that_nobody_explains(tmp_path: Path) -> None:
    """A row between the bars, which no component predicts: 6 of 30 pixels, all in one patch with both bars."""
    frame = BARS.copy()
    frame[2] = 1
    summary = watched(tmp_path, frame[None]).summary()
    assert summary["explained"] == round(24 / 30, 4)
    assert summary["patches_a_frame"] == 2


def test_frames_without_anything_to_see(tmp_path: Path) -> None:
    dark = np.stack([BARS * 0, BARS * 0.4, BARS * 0])
    said = watched(tmp_path, dark).warnings("clip.npy")
    assert said == [
        "frames are 0 % white: use --invert or --threshold", "the model sees nothing in 3 of 3 frames",
    ]  # fmt: skip
    said = watched(tmp_path, 1 - BARS * 0.1).warnings("clip.npy")
    assert said[0] == "frames are 1e+02 % white: use --invert or --threshold"


def test_one_component_that_owns_everything(tmp_path: Path) -> None:
    said = watched(tmp_path, np.stack([BARS] * 12), components=1).warnings("clip.npy")
    assert "one component owns everything" in said
    assert said[-1].startswith("this model does not know this clip (it explains 50% of the foreground pixels")
    adapt, other = "train on it (nem adapt clip.npy --from sprites), or ", "try --model sprites"
    assert said[-1].endswith(f"): {adapt}{other}, or try --background median")
    # of few frames: too few to tell their ground; black and white already, and too few to train on; enough
    clear = other + ", or try --background flat"
    for frames, help in ((3, other), (11, clear), (12, adapt + clear)):
        said = watched(tmp_path, np.stack([BARS] * frames), components=1, background="auto").warnings("clip.npy")
        assert said[-1].endswith(f"): {help}")
    watch = watched(tmp_path, np.stack([BARS] * 3), components=1, background="auto")
    model = watch._segmentation.model
    model.config = dataclasses.replace(model.config, prior=0.5)  # such a model is not compared with sprites
    assert watch.warnings("clip.npy")[-1].endswith("of the foreground pixels): try --background flat")


def test_starts_of_a_single_image_that_disagree(tmp_path: Path) -> None:
    """Chance alone tells them apart; of a clip it is one more sign that the model does not know it."""
    for frames, told in ((1, "starts disagree: look at the result, or try more --starts"),
                         (3, "this model does not know this clip (starts disagree): try --model sprites")):  # fmt: skip
        watch = watched(tmp_path, np.stack([BARS] * frames))
        assert not any("starts disagree" in line for line in watch.warnings("clip.npy"))
        watch._segmentation.stream.agreement[:] = [0.4]
        assert any(line.startswith(told) for line in watch.warnings("clip.npy"))


def test_what_a_model_explains_is_held_against_what_it_usually_explains(tmp_path: Path) -> None:
    """One component of two explains half: too little for one that explains all of its own data, enough for others."""
    bars = np.stack([BARS] * 3)
    for share, doubted in ((1.0, True), (0.9, False)):
        watch = watched(tmp_path, bars, Usual(1.0, share + 0.02), components=1)
        assert any("does not know" in each for each in watch.warnings("x")) is doubted
        assert watch.summary()["explained_usually"] == share + 0.02


def test_colour_that_a_model_does_not_see(tmp_path: Path) -> None:
    red = np.stack([BARS, 0 * BARS, 0 * BARS], axis=-1)
    assert "colour is ignored by this model" in watched(tmp_path, red[None], threshold=0.2).warnings("x")
    grey = np.stack([BARS] * 3, axis=-1)
    assert "colour is ignored by this model" not in watched(tmp_path, grey[None]).warnings("x")


def test_a_frame_in_which_nothing_stands_out_has_no_label(tmp_path: Path) -> None:
    """However well a component predicts the little there is."""
    faint = np.full((64, 64, 3), 128, np.uint8)
    faint[20:40, 20:40] += 20  # of 255
    labels = []
    for brighter in (0, 80):
        faint[20:40, 20:40] += brighter
        np.save(tmp_path / "clip.npy", faint[None])
        (found,) = segment(tmp_path / "clip.npy", neural_em.pretrained("sprites"), SegmentConfig(5, background="none"))
        labels.append(found.labels.any())
    assert labels == [False, True]


def test_a_clip_in_which_nothing_moves(tmp_path: Path) -> None:
    """It is not advised to train on it; one of a few frames gets another word."""
    stripes = np.zeros((6, 6))
    stripes[:, ::2] = 0.7  # which the model does not know
    still = watched(tmp_path, np.stack([stripes] * 12), background="auto").warnings("clip.npy")
    assert ": nothing moves in it, so there may be no object" in still[-1]
    assert "nem adapt" not in still[-1]
    few = watched(tmp_path, np.stack([stripes] * 2), background="auto").warnings("clip.npy")
    assert "nothing moves" not in few[-1]


def test_a_model_that_was_trained_on_the_clip(tmp_path: Path) -> None:
    """It is not advised to do that again."""
    watch = watched(tmp_path, np.stack([1 - BARS] * 12), background="none")
    assert "train on it (nem adapt" in watch.warnings(str(tmp_path / "clip.npy"))[-1]
    again = Watch(watch._segmentation, None, str(tmp_path / "clip.npy"))
    again._rows = watch._rows
    said = again.warnings(str(tmp_path / "clip.npy"))[-1]
    assert "it was trained on it, so train longer" in said
    assert "nem adapt" not in said


def test_objects_that_come_and_go(tmp_path: Path) -> None:
    """Five flashes of five frames each, beside a square that is always there."""
    frames = np.full((120, 64, 64, 3), 90, np.uint8)
    for t in range(120):
        frames[t, 10:22, t // 3 + 4 : t // 3 + 16] = 220, 60, 60
        if t % 24 < 5:
            left = 8 * (t // 24) + 4
            frames[t, 40:50, left : left + 10] = 60, 200, 90
    np.save(tmp_path / "clip.npy", frames)
    segmentation = segment(tmp_path / "clip.npy", neural_em.pretrained("sprites"), SegmentConfig(5))
    watch = Watch(segmentation)
    for frame in segmentation:
        watch.add(frame)
    assert watch.warnings("clip.npy")[0].startswith("5 of the objects are seen in less than a quarter of the frames")


def test_a_loss_above_the_usual_one(tmp_path: Path) -> None:
    known = watched(tmp_path, np.stack([BARS] * 12))
    loss = float(next(segment(tmp_path / "clip.npy", known_model(), SegmentConfig(2))).step.loss) / 24
    same = watched(tmp_path, np.stack([BARS] * 12), usual=Usual(loss, 1.0))
    assert same.summary()["loss_against_usual"] == pytest.approx(1, abs=0.01)
    high = watched(tmp_path, np.stack([BARS] * 12), usual=Usual(loss / 6, 1.0))
    assert "the loss is 6.0 times its usual" in high.warnings("x")[-1]
    assert "usual" not in known.line()


def test_the_usual_loss_is_that_of_the_models_own_data(tmp_path: Path) -> None:
    """On other sequences of the same kind the shipped model's loss is about its usual one."""
    model = neural_em.pretrained("flying-shapes")
    (run,) = find_runs(["flying-shapes"]).runs
    known = usual(run, model, 5, "cpu")
    assert known is not None
    assert known.explained > 0.9
    np.save(tmp_path / "clip.npy", flying_shapes(1, frames=25, seed=3, split="test")[0][:, 0, 0].numpy())
    segmentation = segment(tmp_path / "clip.npy", model, SegmentConfig(5, starts=1))
    watch = Watch(segmentation, known)
    for frame in segmentation:
        watch.add(frame)
    assert 0.3 < watch.summary()["loss_against_usual"] < 3
    assert watch.warnings("x") == []


def test_a_model_whose_data_would_have_to_be_fetched_has_no_usual_loss() -> None:
    (run,) = find_runs(["flying-mnist"]).runs
    assert usual(run, neural_em.pretrained("flying-mnist"), 2, "cpu") is None
