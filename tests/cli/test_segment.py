"""``nem segment``: every kind of input, labels out, one line of error and nothing half-done."""

from __future__ import annotations

import csv
import html
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import neural_em
from neural_em import config
from neural_em.data import DataConfig
from neural_em.data.images import read_labels
from neural_em.experiments import Experiment
from tests.known import BARS, GROUPS, known_model


def inputs(folder: Path) -> dict[str, Path]:
    """The bars as every kind of input, each but the image with four frames."""
    pixels = np.kron(BARS, np.full((4, 4), 255)).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.save(folder / "image.png")
    (folder / "frames").mkdir()
    for name in ("f1", "f2", "f9", "f10"):
        image.save(folder / "frames" / f"{name}.png")
    # frames that do not differ would be written as one
    steps = [Image.fromarray(np.where(pixels > 0, pixels, t).astype(np.uint8)) for t in range(4)]
    steps[0].save(folder / "clip.gif", save_all=True, append_images=steps[1:], duration=200)
    np.save(folder / "clip.npy", np.stack([pixels] * 4))
    return {name: folder / name for name in ("image.png", "frames", "clip.gif", "clip.npy")}


@pytest.mark.parametrize("kind", ["image.png", "frames", "clip.gif", "clip.npy", "clip.mp4"])
def test_every_kind_of_input(kind: str, run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    found = inputs(tmp_path)
    if kind == "clip.mp4":
        imageio = pytest.importorskip("imageio.v2")
        pytest.importorskip("imageio_ffmpeg")
        pixels = np.kron(BARS, np.full((16, 16), 255)).astype(np.uint8)
        imageio.mimsave(tmp_path / kind, [np.repeat(pixels[..., None], 3, axis=2)] * 4, fps=5)
    source = found.get(kind, tmp_path / kind)
    ended = run_nem("segment", source, "--model", weights, "--out", "out")
    assert ended.status == 0, ended.errors
    count = 1 if kind == "image.png" else 4
    assert f"out: {'1 frame' if count == 1 else f'{count} frames'} of " in ended.out
    labels = [read_labels(path) for path in sorted((tmp_path / "out" / "labels").iterdir())]
    assert len(labels) == count
    side = 96 if kind == "clip.mp4" else 24
    for label in labels:
        assert label.shape == (side, side)
        assert np.array_equal(label > 0, np.kron(BARS, np.ones((side // 6, side // 6))) > 0)
        assert {int(label[0, 0]), int(label[-1, 0])} == {1, 2}
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert (summary["components"], summary["model"], summary["frames"]) == (2, weights, count)
    assert "look at: out/index.html" in ended.out
    assert all((tmp_path / "out" / name).exists() for name in summary["files"].values())
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count('class="photo"') == 3  # found objects, tracks and the clip
    assert html.unescape(page).count("2 objects") >= count


def test_a_clip_without_options(run_nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """White shapes on black, three times as large as the shipped model sees them."""
    shapes = neural_em.data.flying_shapes(1, frames=3, seed=3, split="test")[0][:, 0, 0].numpy()
    np.save(tmp_path / "clip.npy", np.kron(shapes, np.ones((1, 3, 3))))
    ended = run_nem("segment", "clip.npy")
    assert ended.status == 0, ended.errors
    assert "model: flying-shapes: white figures on black, drawn on 28 x 28 pixels or fewer" in ended.out
    assert "segmented-clip: 3 frames of 84 x 84 pixels, 5 components" in ended.out
    assert json.loads((tmp_path / "segmented-clip" / "segmentation.json").read_text())["starts"] == 8
    assert run_nem("segment", "clip.npy").status == 0  # its own result is replaced
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "other" / "clip.npy", shapes)
    ended = run_nem("segment", "other/clip.npy")
    assert ended.status != 0
    assert "segmented-clip was not made from other/clip.npy: name a folder with --out" in ended.errors


def test_masks_inside_the_folder_of_frames(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    frames = inputs(tmp_path)["frames"]
    (frames / "masks").mkdir()
    for name in ("f1", "f2", "f9", "f10"):
        Image.fromarray(np.kron(GROUPS, np.ones((4, 4), np.uint8))).save(frames / "masks" / f"{name}.png")
    ended = run_nem("segment", frames, "--masks", frames / "masks", "--model", weights, "--out", "out")
    assert ended.status == 0, ended.errors
    assert "AMI 1.000 on the last scored frame, 1.000 on average over 4 frames" in ended.out


@pytest.mark.parametrize("kind", ["frames", "clip.npy"])
def test_the_labels_of_each_frame_are_its_own(kind: str, run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    """Each frame lacks other pixels of the bars, which are background then; the others are upper or lower."""
    pictures = np.stack([BARS] * 4).astype(np.uint8)
    for t, picture in enumerate(pictures):
        picture[0, t] = picture[4, : t + 1] = picture[5, 5 - t] = 0
    factors = [4] * 4 if kind == "clip.npy" else [4, 2, 5, 3]  # images may differ in size
    frames = [np.kron(each, np.ones((n, n + 1), np.uint8)) for each, n in zip(pictures, factors, strict=True)]
    names = [f"frame-{t:05d}" for t in range(4)]
    if kind == "clip.npy":
        np.save(tmp_path / kind, np.stack(frames))
    else:
        names = ["f1", "f2", "f9", "f10"]
        (tmp_path / kind).mkdir()
        for name, frame in zip(names, frames, strict=True):
            Image.fromarray(255 * frame).save(tmp_path / kind / f"{name}.png")
    assert run_nem("segment", tmp_path / kind, "--model", weights, "--out", "out").status == 0
    labels = [read_labels(tmp_path / "out" / "labels" / f"{name}.png") for name in names]
    upper, lower = labels[0].max(axis=1)[[4, -1]].tolist()  # of the second row of pixels and of the last
    assert {upper, lower} == {1, 2}
    with np.load(tmp_path / "out" / "segmentation.npz") as arrays:
        found, assigned = arrays["frames"][:, 0], arrays["gamma"].argmax(axis=1) + 1
    for t, picture in enumerate(pictures):
        expected = picture * np.where(GROUPS == 1, upper, lower)
        assert np.array_equal(labels[t], np.kron(expected, np.ones((factors[t], factors[t] + 1), np.uint8)))
        assert np.array_equal(found[t], picture)
        assert np.array_equal(assigned[t] * picture, expected)


def test_frames_of_a_folder_keep_their_names(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    run_nem("segment", inputs(tmp_path)["frames"], "--model", weights, "--out", "out", "--movie", "gif")
    names = {path.name for path in (tmp_path / "out" / "labels").iterdir()}
    assert names == {"f1.png", "f2.png", "f9.png", "f10.png"}
    assert (tmp_path / "out" / "overlay.gif").is_file()


def test_scores_with_masks(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "masks.npy", np.stack([np.kron(GROUPS, np.ones((4, 4), np.uint8))] * 4))
    clip = inputs(tmp_path)["clip.npy"]
    ended = run_nem("segment", clip, "--model", weights, "--out", "out", "--masks", "masks.npy")
    assert "AMI 1.000 on the last scored frame, 1.000 on average over 4 frames" in ended.out
    assert (tmp_path / "out" / "scores.csv").read_text().count("\n") == 5


def test_a_run_folder_is_a_model_and_options_reach_it(run_nem, tmp_path: Path, hand_made) -> None:  # type: ignore[no-untyped-def]
    options = ["--components", 4, "--steps", 2, "--starts", 3, "--separate", "--fit", "crop-resize", "--channels"]
    options += ["grey", "--invert", "--seed", 5, "--fps", 7, "--device", "cpu"]
    ended = run_nem("segment", inputs(tmp_path)["clip.npy"], "--model", hand_made().folder, "--out", "out", *options)
    assert ended.status == 0, ended.errors
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    expected = {
        "components": 4, "steps": 2, "starts": 3, "separate": True, "fit": "crop-resize", "channels": "grey",
        "invert": True, "seed": 5, "fps": 7.0,
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    with np.load(tmp_path / "out" / "segmentation.npz") as arrays:
        assert arrays["gamma"].shape == (4, 4, 6, 6)


def test_a_run_s_own_way_of_reading_frames(run_nem, tmp_path: Path, hand_made) -> None:  # type: ignore[no-untyped-def]
    """A run that was trained on files as grey, cropped and resized reads frames like that, unless told otherwise."""
    folder = hand_made().folder
    settings = config.read(Experiment, folder / "config.yaml")
    given = {"path": str(tmp_path / "clip.npy"), "channels": "grey", "fit": "crop-resize", "threshold": 0.25}
    files = DataConfig("file", height=6, width=6, **given)
    (folder / "config.yaml").write_text(config.dump(replace(settings, data=files)), encoding="utf-8")
    np.save(tmp_path / "clip.npy", np.stack([np.pad(np.kron(BARS, np.full((4, 4), 153)), ((0, 0), (8, 8)))] * 3)
            .astype(np.uint8))  # fmt: skip
    ended = run_nem("segment", "clip.npy", "--model", folder, "--out", "out")
    assert ended.status == 0, ended.errors
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert [summary[name] for name in ("fit", "channels", "threshold")] == ["crop-resize", "grey", 0.25]
    with np.load(tmp_path / "out" / "segmentation.npz") as arrays:
        seen = arrays["frames"][0, 0]  # smoothed where the bars end
    assert np.array_equal(seen > 0.3, BARS > 0)
    assert seen.max() == pytest.approx(0.6)
    run_nem("segment", "clip.npy", "--model", folder, "--out", "out", "--channels", "binary", "--fit", "resize")
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert [summary[name] for name in ("fit", "channels")] == ["resize", "binary"]


def test_tracks_and_the_ground_are_written(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    """The bars in front of a grey wall, of which there is a picture."""
    frames = np.where(np.stack([BARS] * 4) > 0, 230, 90).astype(np.uint8)
    Image.fromarray(np.full((6, 6), 90, np.uint8)).save(tmp_path / "wall.png")
    np.savez(tmp_path / "clip.npz", frames=frames, groups=np.stack([GROUPS] * 4))
    ended = run_nem("segment", "clip.npz", "--model", weights, "--out", "out", "--background", "wall.png")
    assert ended.status == 0, ended.errors
    assert "background: wall.png\n" in ended.out
    assert "tracks: MOTA 1.000, IDF1 1.000" in ended.out
    out = tmp_path / "out"
    assert set(np.unique(np.asarray(Image.open(out / "ground.png")))) == {90}
    with open(out / "tracks.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lower = [row for row in rows if row["y"] == "4"]
    assert (len(rows), [int(row["frame"]) for row in lower]) == (8, [0, 1, 2, 3])
    assert len({row["object"] for row in lower}) == 1
    assert (lower[0]["width"], lower[0]["height"], lower[0]["area"]) == ("6", "2", "12")
    assert (lower[3]["centroid_x"], lower[3]["centroid_y"], lower[3]["velocity_x"]) == ("2.50", "4.50", "0.00")
    coco = json.loads((out / "tracks.json").read_text())
    assert [image["objects"] for image in coco["images"]] == [2] * 4
    masks = [each["segmentation"]["counts"] for each in coco["annotations"] if each["bbox"] == [0, 4, 6, 2]]
    assert masks == [[4, *[2, 4] * 5, 2]] * 4
    assert json.loads((out / "segmentation.json").read_text())["objects"]["tracks"] == 2


def test_as_many_components_as_there_are_objects(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    ended = run_nem("segment", inputs(tmp_path)["clip.npy"], "--model", weights, "--out", "out", "--components", "auto")
    assert ended.status == 0, ended.errors
    assert "2.0 objects a frame" in ended.out
    summary = json.loads((tmp_path / "out" / "segmentation.json").read_text())
    assert summary["objects"]["most"] == 2


def test_it_says_what_separate_images_cost(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    clip = inputs(tmp_path)["clip.npy"]
    ended = run_nem("segment", clip, "--model", weights, "--separate", "--steps", "3", "--starts", "2", "--out", "out")
    assert ended.status == 0, ended.errors
    assert "separate: 2 starts of 3 steps for every frame" in ended.out


def test_it_says_when_it_sees_nothing_and_ends_well(run_nem, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "dark.npy", np.stack([BARS * 0.3] * 3))
    ended = run_nem("segment", "dark.npy", "--model", weights, "--out", "out")
    assert ended.status == 0
    assert "nem: frames are 0 % white: use --invert or --threshold\n" in ended.errors


WRONG: dict[str, tuple[list[str], str]] = {
    "no such input": (["nowhere.png"], "nowhere.png"),
    "not an input": (["known.safetensors"], "known.safetensors: expected an image"),
    "no such model": (["clip.npy", "--model", "nowhere"], "model: expected a shipped model"),
    "not a model": (["clip.npy", "--model", "clip.npy"], "clip.npy: "),
    "components in words": (["clip.npy", "--components", "many"], "components: expected a whole number or auto"),
    "no such ground": (["clip.npy", "--background", "nowhere.png"], "nowhere.png"),
    "a ground of another shape": (
        ["clip.npy", "--background", "wide.png"],
        "wide.png: expected 24 x 24 pixels like the clip, or the same shape, got 24 x 48",
    ),
    "every 0th": (["clip.npy", "--every", "0"], "every: expected an integer from 1 to 1048576, got 0"),
    "a size of a file": (["clip.npy", "--size", "6x6"], "--size is for frames from standard input"),
    "no components": (["clip.npy", "--components", "0"], "components: expected an integer from 1 to 64, got 0"),
    "fit": (["clip.npy", "--fit", "squeeze"], "fit: expected one of none, resize, crop, crop-resize"),
    "movie": (["clip.npy", "--movie", "avi"], "movie: expected one of mp4, gif, auto"),
    "frames a second": (["clip.npy", "--fps", "0.01"], "fps: expected a number from 0.1 to 1000, got 0.01"),
    "no frames a second": (["clip.npy", "--fps", "0"], "fps: expected a number from 0.1 to 1000, got 0.0"),
    "device": (["clip.npy", "--device", "tpu"], "device: expected auto, cpu, cuda"),
    "masks": (["clip.npy", "--masks", "nowhere"], "nowhere"),
    "a number for frames": (["number.npy"], "number.npy: expected frames of shape (T,H,W)"),
    "a number for masks": (["clip.npy", "--masks", "number.npy"], "number.npy: expected labels of shape (T,H,W)"),
    "too few masks": (["clip.npy", "--masks", "one.npy"], "one.npy: expected labels for each frame"),
    "a broken frame in the middle": (["broken"], "f2.png: not a readable image"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refusals_leave_nothing(case: str, refused, tmp_path: Path, weights: str) -> None:  # type: ignore[no-untyped-def]
    arguments, message = WRONG[case]
    inputs(tmp_path)
    np.save(tmp_path / "one.npy", GROUPS[None])
    np.save(tmp_path / "number.npy", np.uint8(1))
    Image.new("L", (48, 24)).save(tmp_path / "wide.png")
    (tmp_path / "frames").rename(tmp_path / "broken")
    (tmp_path / "broken" / "f2.png").write_bytes((tmp_path / "broken" / "f1.png").read_bytes()[:60])
    before = sorted(path.name for path in tmp_path.iterdir())
    error = refused("segment", "--model", weights, *arguments, "--out", "out")
    assert message in error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_model_that_tells_no_number_of_components(refused, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    neural_em.save(known_model(), tmp_path / "silent")
    np.save(tmp_path / "clip.npy", BARS)
    assert "--components is needed" in refused("segment", "clip.npy", "--model", "silent", "--out", "out")


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
from neural_em.cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, weights: str) -> None:
    clip = inputs(tmp_path)["clip.npy"]
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments = ["segment", str(clip), "--model", weights, "--out", "out", "--movie", "gif", "--device", "cpu"]
    done = subprocess.run([sys.executable, "-c", FULL, *arguments], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr == "nem: out: cannot be written: File too large\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
