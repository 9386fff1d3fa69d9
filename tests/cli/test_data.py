"""``nem data``: files and pictures out, one line of error and exit status 2, nothing half-done."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from neural_em import cli
from neural_em.data import flying_shapes

SAMPLE = str(Path(__file__).parents[1] / "data" / "mnist")
SMALL = ["--train-size", "6", "--validation-size", "3", "--test-size", "2"]


@pytest.fixture
def nem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs the command in an empty folder; gives the exit status, the output and the errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nem", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        written = capsys.readouterr()
        return int(end.value.code or 0), written.out, written.err

    return run


def test_a_file_in_the_authors_layout(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = nem("data", "flying-shapes", "--objects", "5", "--seed", "4", *SMALL, "--out", "shapes5.h5")
    assert status == 0
    assert "6 training, 3 validation, 2 test" in out
    frames, groups = flying_shapes(6, objects=5, seed=4)
    with h5py.File(tmp_path / "shapes5.h5") as file:
        assert np.array_equal(file["training/features"][:], frames.permute(0, 1, 3, 4, 2))
        assert np.array_equal(file["training/groups"][..., 0], groups)
        assert file["validation/features"].shape == (21, 3, 28, 28, 1)
        assert file["test/overlaps"].shape == (21, 2, 28, 28, 1)


def test_the_same_seed_gives_the_same_data(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert nem("data", "static-shapes", "--seed", seed, *SMALL, "--out", f"{name}.h5")[0] == 0
    values = [h5py.File(tmp_path / f"{name}.h5")["test/features"][:] for name in "abc"]
    assert np.array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])


def test_a_preview_alone(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert nem("data", "flying-shapes", "--preview", "preview.png")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["preview.png"]
    picture = np.asarray(Image.open(tmp_path / "preview.png"))
    assert picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) >= 6  # black, edges, white and three groups


def test_digits_and_every_option(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = ["--objects", "3", "--frames", "4", "--height", "30", "--width", "40", "--overlap", "sum"]
    options += ["--threshold", "0.5", "--digits", "20", "--mnist", SAMPLE, "--velocity", "2", "--velocity", "-2"]
    status, out, _ = nem("data", "flying-mnist", *options, *SMALL, "--out", "m.h5", "--preview", "m.png")
    assert status == 0
    assert "same 20 digits" in out
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["training/features"].shape == (4, 6, 30, 40, 1)
        assert "20 digits" in file.attrs["note"]


def test_digits_that_only_touch_can_count_as_overlap(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Fewer pixels are then scored, more are overlaps, and the frames are the same."""
    parts = []
    for name, options in (("usual.h5", []), ("touching.h5", ["--overlap-above", "0.1"])):
        assert nem("data", "flying-mnist", "--mnist", SAMPLE, *options, *SMALL, "--out", name)[0] == 0
        with h5py.File(tmp_path / name) as file:
            parts.append({part: file[f"training/{part}"][:] for part in ("features", "groups", "overlaps")})
    usual, touching = parts
    assert np.array_equal(usual["features"], touching["features"])
    kept = touching["groups"] > 0
    assert np.array_equal(touching["groups"][kept], usual["groups"][kept])
    assert 0 < kept.sum() < (usual["groups"] > 0).sum()
    assert (touching["overlaps"] >= usual["overlaps"]).all()
    assert touching["overlaps"].sum() > usual["overlaps"].sum()


def test_digits_keep_to_their_boxes_where_asked(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Cropped ones come to the edge of the frame; the ink of one in a box of 14 x 14 pixels hardly ever does."""
    options = ["--mnist", SAMPLE, "--objects", "1", "--train-size", "60", "--validation-size", "1", "--test-size", "1"]
    reached = []
    for name, crop in (("usual.h5", []), ("boxes.h5", ["--crop", "none"])):
        assert nem("data", "flying-mnist", *options, *crop, "--out", name)[0] == 0
        with h5py.File(tmp_path / name) as file:
            features = file["training/features"][:]
        edges = (features[:, :, 0], features[:, :, -1], features[:, :, :, 0], features[:, :, :, -1])
        reached.append(sum(int((edge > 0).any(axis=(2, 3)).sum()) for edge in edges))
    assert reached[0] > 10 * reached[1]


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "kind": (["data", "flying-shape", "--out", "a.h5"], ["did you mean 'flying-shapes'"]),
    "nothing to write": (["data", "flying-shapes"], ["--out"]),
    "more objects than fit": (["data", "flying-shapes", "--objects", "99", "--out", "a.h5"], ["objects", "99"]),
    "no objects": (["data", "flying-shapes", "--objects", "0", "--out", "a.h5"], ["objects", "0"]),
    "no sequences": (["data", "flying-shapes", "--train-size", "0", "--out", "a.h5"], ["train_size"]),
    "no such folder": (["data", "flying-shapes", "--out", "b/a.h5", "--preview", "p.png"], ["b/a.h5"]),
    "no such folder for the preview": (["data", "static-shapes", "--out", "a.h5", "--preview", "b/p.png"], ["b/p.png"]),
    "preview without a kind": (["data", "flying-shapes", "--preview", "preview"], ["preview"]),
    "no digits": (["data", "flying-mnist", "--mnist", "nowhere", "--out", "a.h5", "--preview", "p.png"], ["nowhere"]),
    "overlap": (["data", "flying-mnist", "--overlap", "min", "--out", "a.h5"], ["overlap", "maximum"]),
    "too many digits": (
        ["data", "flying-mnist", "--mnist", SAMPLE, "--digits", "99", "--out", "a.h5"],
        ["digits", "99"],
    ),
    "overlap of shapes": (
        ["data", "flying-shapes", "--overlap", "sum", "--out", "a.h5"],
        ["overlap", "maximum, hide"],
    ),
    "crop": (["data", "flying-mnist", "--crop", "yes", "--out", "a.h5"], ["crop", "before, after, none"]),
    "crop of shapes": (["data", "flying-shapes", "--crop", "none", "--out", "a.h5"], ["crop", "flying-mnist"]),
    "digits of shapes": (["data", "static-shapes", "--digits", "20", "--out", "a.h5"], ["digits", "flying-mnist"]),
    "velocity of what stands": (["data", "static-shapes", "--velocity", "1", "--out", "a.h5"], ["velocities", "moves"]),
    "threshold of shapes": (["data", "flying-shapes", "--threshold", "0.3", "--out", "a.h5"], ["threshold", "mnist"]),
    "curtain of shapes": (["data", "flying-shapes", "--curtain", "--out", "a.h5"], ["--curtain", "bouncing-balls"]),
    "another kind": (["data", "flying-shapes", "--set", "kind=file", "--out", "a.h5"], ["--set kind", "argument"]),
    "frames of static data": (["data", "static-shapes", "--frames", "2", "--out", "a.h5"], ["frames"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_refusals_are_one_line_and_leave_nothing(case: str, nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    arguments, words = WRONG[case]
    status, out, err = nem(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("nem: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
from neural_em.cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, "data", "flying-shapes", "--train-size", "400", "--out", "a.h5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("nem: a.h5: cannot be written: File too large")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_curtain_takes_other_numbers_of_balls(nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = ["--frames", "1", "--train-size", "2", "--validation-size", "1", "--test-size", "1"]
    status, _, errors = nem("data", "bouncing-balls", "--curtain", "--objects", "2", *options, "--out", "balls.h5")
    assert status == 0, errors
    with h5py.File(tmp_path / "balls.h5") as file:
        config = file.attrs["config"]
    assert "objects: 2\n" in config
    assert "curtain: 28\n" in config


@pytest.mark.parametrize("kind", ["coloured-shapes", "tetrominoes", "sprites", "objects"])
def test_data_in_colour_have_three_channels_in_the_file(kind: str, nem, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The authors' layout, (T, N, H, W, C); what is not of one object's group is the ground, so nothing overlaps."""
    options = [
        "--frames",
        "2",
        "--train-size",
        "3",
        "--validation-size",
        "1",
        "--test-size",
        "1",
        "--set",
        "visible=0.5",
    ]
    status, _, errors = nem("data", kind, *options, "--out", "colour.h5", "--preview", "colour.png")
    assert status == 0, errors
    with h5py.File(tmp_path / "colour.h5") as file:
        features, groups, overlaps = (file["training"][name][()] for name in ("features", "groups", "overlaps"))
    side = {"coloured-shapes": 28, "tetrominoes": 35}.get(kind, 64)
    assert features.shape == (2, 3, side, side, 3)
    assert groups.shape == overlaps.shape == (2, 3, side, side, 1)
    assert features.dtype == "float32"
    assert 0 <= features.min() < features.max() <= 1
    assert not overlaps.any()
    assert groups.max() >= 1
    assert (tmp_path / "colour.png").stat().st_size > 500
