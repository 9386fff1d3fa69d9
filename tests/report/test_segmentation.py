"""A segmented clip as a folder: everything in it can be read back, and it is there whole or not at all."""

from __future__ import annotations

import csv
import gc
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from neural_em import NeuralEMError
from neural_em.data.images import read_labels
from neural_em.report import segmentation_page
from neural_em.report.colours import palette
from neural_em.report.segmentation import overlay, write_segmentation
from neural_em.segment import SCORES, Segmented, Step

OTHERS = {"ami_arithmetic": 0.5, "ari": 0.25, "iou": 1.0, "ami_max_visible": 0.75, "ari_visible": 0.5, "covered": 0.9}


def made(count: int, size: tuple[int, int] = (20, 30), scores: bool = False) -> Iterator[Segmented]:
    """Frames with arbitrary but valid contents: K = 3, C = 1, 4 x 5 pixels inside, theta of 7 numbers."""
    rng = np.random.default_rng(0)
    for number in range(count):
        gamma = torch.from_numpy(rng.dirichlet([1, 1, 1], (4, 5)).astype(np.float32)).permute(2, 0, 1)
        psi = torch.from_numpy(rng.random((3, 1, 4, 5)).astype(np.float32))
        step = Step(torch.from_numpy(rng.random((3, 7)).astype(np.float32)), psi, gamma, float(number))
        frame = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        given = {**OTHERS, "ami_max": number / 10} if scores else None
        x = rng.random((1, 4, 5)).astype(np.float32)
        yield Segmented(f"frame-{number:05d}", frame, x, rng.integers(0, 4, size).astype(np.uint8), step, given)


@pytest.mark.parametrize("movie", ["gif", "mp4"])
def test_everything_can_be_read_back(tmp_path: Path, movie: str) -> None:
    written = write_segmentation(tmp_path / "out", made(5), {"model": "some"}, fps=20, movie=movie)
    given = list(made(5))
    for segmented in given:
        assert np.array_equal(read_labels(tmp_path / "out" / "labels" / f"{segmented.name}.png"), segmented.labels)
    with np.load(tmp_path / "out" / "segmentation.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].shape for name in arrays} == {
            "frames": (5, 1, 4, 5), "gamma": (5, 3, 4, 5), "psi": (5, 3, 1, 4, 5), "theta": (5, 3, 7), "loss": (5,),
        }  # fmt: skip
        for t, segmented in enumerate(given):
            for name in ("gamma", "psi", "theta"):
                assert np.array_equal(arrays[name][t], getattr(segmented.step, name).numpy())
            assert np.array_equal(arrays["frames"][t], segmented.x)
            assert arrays["loss"][t] == segmented.step.loss
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert summary == written.summary
    assert (summary["frames"], summary["height"], summary["width"], summary["model"]) == (5, 20, 30, "some")
    assert summary["loss"] == {"first": 0.0, "last": 4.0}
    assert set(written.files.values()) | {"segmentation.json"} == {path.name for path in (tmp_path / "out").iterdir()}
    assert written.files["overlay"] == f"overlay.{movie}"


def test_a_gif_shows_every_frame_for_the_given_time(tmp_path: Path) -> None:
    write_segmentation(tmp_path / "out", made(5), fps=20, movie="gif")
    with Image.open(tmp_path / "out" / "overlay.gif") as gif:
        assert (gif.n_frames, gif.info["loop"]) == (5, 0)
        for t, segmented in enumerate(made(5)):
            gif.seek(t)
            assert gif.info["duration"] == 50
            shown = np.asarray(gif.convert("RGB")).astype(int)
            wanted = overlay(segmented.frame, segmented.labels, (20, 30), 480).astype(int)
            assert shown.shape == wanted.shape
            assert np.abs(shown - wanted).mean() < 12  # 256 colours for 600 random ones


def test_an_mp4_shows_every_frame(tmp_path: Path) -> None:
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write_segmentation(tmp_path / "out", made(5), fps=20, movie="mp4")
    reader = imageio_ffmpeg.read_frames(str(tmp_path / "out" / "overlay.mp4"))
    about = next(reader)
    assert about["fps"] == 20
    frames = [np.frombuffer(data, np.uint8).reshape(about["size"][1], about["size"][0], 3) for data in reader]
    assert len(frames) == 5
    for shown, segmented in zip(frames, made(5), strict=True):
        wanted = overlay(segmented.frame, segmented.labels, (20, 30), 960)
        correlation = np.corrcoef(shown.ravel(), wanted.ravel())[0, 1]
        assert correlation > 0.8  # coded with half the resolution for colours


def test_one_frame_gives_pictures(tmp_path: Path) -> None:
    written = write_segmentation(tmp_path / "out", made(1))
    (only,) = made(1)
    assert written.files["overlay"] == "overlay.png"
    picture = np.asarray(Image.open(tmp_path / "out" / "overlay.png"))
    assert np.array_equal(picture, overlay(only.frame, only.labels, (20, 30), 960))
    assert (tmp_path / "out" / "components.png").is_file()


def test_the_overlay_mixes_the_components_colours_in() -> None:
    frame = np.full((2, 2, 1), 100, np.uint8)
    labels = np.array([[0, 1], [2, 0]], np.uint8)
    picture = overlay(frame, labels, (2, 2), 960)
    side = picture.shape[0] // 2
    assert picture.shape == (2 * side, 2 * side, 3)
    assert side * 2 >= 100  # enlarged by a whole number
    assert np.array_equal(picture[0, 0], [100, 100, 100])
    assert np.array_equal(picture[0, -1], np.rint(0.4 * 100 + 0.6 * palette(1)[0].astype(float)))
    assert np.array_equal(picture[-1, 0], np.rint(0.4 * 100 + 0.6 * palette(2)[1].astype(float)))


def test_frames_of_another_size_than_the_first_are_brought_to_it(tmp_path: Path) -> None:
    frames = [*made(2, (20, 30)), *(frame._replace(name=f"x{frame.name}") for frame in made(2, (10, 50)))]
    write_segmentation(tmp_path / "out", frames, movie="gif")
    with Image.open(tmp_path / "out" / "overlay.gif") as gif:
        assert gif.n_frames == 4
    assert read_labels(tmp_path / "out" / "labels" / "xframe-00000.png").shape == (10, 50)


def test_large_frames_are_shown_smaller() -> None:
    picture = overlay(np.zeros((1080, 1920, 3), np.uint8), np.zeros((1080, 1920), np.uint8), (1080, 1920), 480)
    assert picture.shape == (270, 480, 3)


def test_scores_are_listed_and_averaged(tmp_path: Path) -> None:
    frames = list(made(3, scores=True))
    frames[1] = frames[1]._replace(scores=dict.fromkeys(SCORES, float("nan")))
    written = write_segmentation(tmp_path / "out", frames)
    assert written.summary["scores"] == {
        "scored_frames": 2,
        "mean_over_frames": {**OTHERS, "ami_max": 0.1},
        "last_scored_frame": {**OTHERS, "ami_max": 0.2},
    }
    with open(tmp_path / "out" / "scores.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["ami_max"] for row in rows] == ["0.000000", "", "0.200000"]
    assert rows[2]["frame"] == "frame-00002"


def test_an_earlier_result_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    write_segmentation(tmp_path / "out", made(4))
    write_segmentation(tmp_path / "out", made(2))
    assert len(list((tmp_path / "out" / "labels").iterdir())) == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(NeuralEMError, match=r"mine: expected a new or empty folder, .* got one that holds thesis.txt"):
        write_segmentation(tmp_path / "mine", made(2))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]
    for name in ("notes.txt", "labels/notes.txt"):  # somebody's own, put beside a result
        (tmp_path / "out" / name).write_text("years")
        with pytest.raises(NeuralEMError, match=f"got one that holds {name}"):
            write_segmentation(tmp_path / "out", made(2))
        assert (tmp_path / "out" / name).read_text() == "years"
        (tmp_path / "out" / name).unlink()


@pytest.mark.parametrize("problem", [NeuralEMError("frame 3: bad"), OSError(28, "No space left"), KeyboardInterrupt()])
def test_what_fails_half_way_leaves_nothing(tmp_path: Path, problem: BaseException) -> None:
    def broken() -> Iterator[Segmented]:
        yield from made(3)
        raise problem

    kind = KeyboardInterrupt if isinstance(problem, KeyboardInterrupt) else NeuralEMError
    with pytest.raises(kind):
        write_segmentation(tmp_path / "out", broken(), movie="gif")
    assert list(tmp_path.iterdir()) == []
    write_segmentation(tmp_path / "out", made(2))
    with pytest.raises(kind):
        write_segmentation(tmp_path / "out", broken(), movie="gif")
    assert len(list((tmp_path / "out" / "labels").iterdir())) == 2  # the earlier one is still there
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_no_frames_and_names_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NeuralEMError, match="frames: expected at least one, got none"):
        write_segmentation(tmp_path / "out", [])
    with pytest.raises(NeuralEMError, match="frame frame-00000: two frames have this name"):
        write_segmentation(tmp_path / "out", [*made(1), *made(1)])
    with pytest.raises(NeuralEMError, match="movie: expected one of mp4, gif, auto, got 'avi'"):
        write_segmentation(tmp_path / "out", made(1), movie="avi")
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_length_of_the_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty more frames of 60 KB would be 1.8 MB, if they were held; the page shows some of them only."""
    monkeypatch.setattr(segmentation_page, "MOST_FRAMES", 4)

    def peak(count: int) -> int:
        tracemalloc.start()
        frames = (frame._replace(frame=np.zeros_like(frame.frame)) for frame in made(count, (100, 200)))
        collected = lambda done: gc.collect() and None  # noqa: E731 (Pillow makes a class a picture, which is garbage)
        write_segmentation(tmp_path / f"out{count}", frames, movie="gif", progress=collected)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(3)  # what is loaded once
    gc.freeze()  # what is there already need not be looked through for every frame
    try:
        assert peak(38) < peak(8) + 300_000
    finally:
        gc.unfreeze()
