"""``nem figure``: the right sequences, the exact colours, every format, and one line for what cannot be drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from neural_em.report.colours import palette

Run = Callable[..., Any]


def picture(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def counts(pixels: np.ndarray) -> dict[tuple[int, ...], int]:
    colours, number = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(map(int, colour)): int(n) for colour, n in zip(colours, number, strict=True)}


def test_a_known_assignment_has_exactly_the_palettes_colours(run_nem: Run, hand_made: Run) -> None:
    """Two objects of 12 pixels, one component each, in 3 steps; on the ground both predict the same: an even blend."""
    run = hand_made()
    ended = run_nem("figure", run.folder, "--pick", 0, "--device", "cpu")
    assert ended.status == 0, ended.errors
    found = counts(picture(run.folder / "figures" / "sequence-0.png"))
    blue, red = (tuple(map(int, colour)) for colour in palette(2))
    ground = tuple(int(value) for value in np.rint(palette(2).mean(axis=0)))
    zoom = round(112 / 6) ** 2  # screen pixels of a pixel
    frame = (6 * round(112 / 6) + 8) ** 2 - (6 * round(112 / 6)) ** 2  # around a component's panel
    assert found[ground] == 3 * 12 * zoom
    # in the assignment and in its own prediction, each object in its component's colour; and the frame around it
    assert found[blue] == found[red] == 3 * (12 * zoom + 12 * zoom + frame)


def test_pictures_documents_and_animations(run_nem: Run, trained: Path) -> None:
    ended = run_nem("figure", trained / "seed-0", "--gif", "--pick", "best", "--pick", 3, "--device", "cpu")
    assert ended.status == 0, ended.errors
    folder = trained / "seed-0" / "figures"
    names = [f"sequence-{pick}.{kind}" for pick in ("best", "3") for kind in ("png", "pdf", "gif")]
    assert ended.out.split() == [str(folder / name) for name in names]
    assert (folder / "sequence-3.pdf").read_bytes().startswith(b"%PDF-")
    with Image.open(folder / "sequence-3.gif") as animation:
        assert getattr(animation, "n_frames", 1) == 4  # steps
    height, width, _ = picture(folder / "sequence-3.png").shape
    assert width > height  # four steps beside each other, assignment, two components and the input below each other


def test_a_rollout_shows_what_was_read_what_happened_and_what_was_predicted(run_nem: Run, hand_made: Run) -> None:
    """Two bars that stand still, without noise: the three rows of 1 + 2 steps are the same."""
    run = hand_made()
    ended = run_nem("figure", run.folder, "--kind", "rollout", "--rollout", 2, "--pick", 0, "--gif", "--device", "cpu")
    assert ended.status == 0, ended.errors
    names = [f"rollout-0-test-rollout2.{kind}" for kind in ("png", "pdf", "gif")]
    assert ended.out.split() == [str(run.folder / "figures" / name) for name in names]
    zoom = round(112 / 6)
    found = picture(run.folder / "figures" / names[0])
    bars = np.zeros((6, 6, 3), np.uint8)
    bars[:2], bars[-2:] = 255, 255
    panel = bars.repeat(zoom, axis=0).repeat(zoom, axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(found, panel.shape)[:, :, 0]
    rows = np.argwhere((windows[:, :, 0] == panel[0]).all(axis=(-2, -1)))
    assert sum(np.array_equal(windows[y, x], panel) for y, x in rows) == 3 * 3
    with Image.open(run.folder / "figures" / names[2]) as animation:
        assert getattr(animation, "n_frames", 1) == 3


def test_a_rollout_of_ten_steps_where_nobody_says_how_many(run_nem: Run, trained: Path) -> None:
    ended = run_nem("figure", trained / "seed-0", "--kind", "rollout", "--pick", 1, "--gif", "--device", "cpu")
    assert ended.status == 0, ended.errors
    with Image.open(trained / "seed-0" / "figures" / "rollout-1.gif") as animation:
        assert getattr(animation, "n_frames", 1) == 4 + 10


def test_best_and_worst_are_those_of_the_evaluation(run_nem: Run, trained: Path) -> None:
    run = trained / "seed-0"
    assert run_nem("evaluate", run, "--device", "cpu").status == 0
    scores = json.loads((run / "evaluations" / "test.json").read_text())["per_sequence"]["ami_max"]
    known = [(score, index) for index, score in enumerate(scores) if score is not None]
    for name, (_, index) in (("best", max(known)), ("worst", min(known))):
        for pick in (name, index):
            assert run_nem("figure", run, "--pick", pick, "--out", f"{pick}.png", "--device", "cpu").status == 0
        assert np.array_equal(picture(Path(f"{name}.png")), picture(Path(f"{index}.png")))


def test_all_kinds_of_several_runs(run_nem: Run, trained: Path) -> None:
    kinds = [word for kind in ("curve", "bce", "learning", "static", "sequence") for word in ("--kind", kind)]
    ended = run_nem("figure", trained, *kinds, "--steps", 6, "--device", "cpu")
    assert ended.status == 0, ended.errors
    written = {path.stem for path in (trained / "figures").glob("*.png")}
    assert {"curve", "bce", "learning", "static-tiny-seed-0-test-steps6"} <= written
    assert {path.stem for path in (trained / "figures").glob("*.pdf")} == written
    assert len(written) == 7
    # the scores behind the pictures are kept
    assert (trained / "seed-0" / "evaluations" / "test-steps6.json").is_file()


def test_images_and_sequences_are_each_drawn_in_their_way(run_nem: Run, tmp_path: Path) -> None:
    models = ("static-shapes", "flying-shapes", "static-shapes-plus")
    ended = run_nem("figure", *models, "--out", tmp_path / "figures", "--size", 4, "--pick", 0, "--device", "cpu")
    assert ended.status == 0, ended.errors
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {"static-static-shapes", "static-static-shapes-plus", "sequence-0"}


def test_a_curve_is_fifty_steps_long_unless_told_otherwise(run_nem: Run, trained: Path) -> None:
    assert run_nem("figure", trained / "seed-0", "--kind", "curve", "--device", "cpu").status == 0
    result = json.loads((trained / "seed-0" / "evaluations" / "test-steps50.json").read_text())
    assert len(result["curves"]["ami_max"]["mean"]) == 50


def test_one_file(run_nem: Run, refused: Run, trained: Path) -> None:
    assert run_nem("figure", trained / "seed-0", "--pick", 0, "--out", "a/one.gif", "--device", "cpu").status == 0
    assert [path.name for path in Path("a").iterdir()] == ["one.gif"]
    assert "for 2 figures" in refused("figure", trained, "--pick", 0, "--out", "two.png", "--device", "cpu")
    assert "expected one of png, pdf, gif, mp4" in refused(
        "figure", trained / "seed-0", "--pick", 0, "--out", "x.svg", "--device", "cpu"
    )
    assert not Path("two.png").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "sequnce"], "did you mean 'sequence'?"),
        (["--pick", "12"], "pick: expected a sequence from 0 to 11, got 12"),
        (["--pick", "finest"], "pick: expected one of best, typical, worst, an index"),
        (["--kind", "learning", "--out", "curve.gif"], "shows no sequence"),
        (["--gif", "--out", "one.png"], "--gif writes more files; give --out a folder, not the file one.png"),
        (["--mp4", "--out", "one.mp4"], "--mp4 writes more files; give --out a folder, not the file one.mp4"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(refused: Run, trained: Path, options: list[str], words: str) -> None:
    assert words in refused("figure", trained / "seed-0", *options, "--device", "cpu")


def test_figures_and_pages_of_other_data_than_the_runs_own(
    run_nem: Run, refused: Run, trained: Path, tmp_path: Path
) -> None:
    """Shapes that stand still make another picture than those that fly. A field that cannot be changed is named."""
    still = ["--set", "data.velocities=[0]", "--device", "cpu"]
    page = tmp_path / "page.html"
    assert run_nem("report", trained / "seed-0", *still, "--size", 4, "--out", page).status == 0
    assert page.stat().st_size > 10_000
    ended = run_nem("figure", trained / "seed-0", *still, "--pick", 0, "--out", tmp_path)
    assert ended.status == 0, ended.errors
    usual = run_nem("figure", trained / "seed-0", "--pick", 0, "--out", tmp_path, "--device", "cpu")
    assert usual.status == 0, usual.errors
    first, second = (picture(Path(each.out.split()[0])) for each in (ended, usual))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)
    assert "data.kind" in refused("figure", trained / "seed-0", "--set", "data.kind=sprites", "--device", "cpu")


def test_curves_need_groups_and_errors_need_objects(run_nem: Run, refused: Run, hand_made: Run) -> None:
    run = hand_made(groups="none")
    assert "true groups" in refused("figure", run.folder, "--kind", "curve", "--steps", 3, "--device", "cpu")
    assert "black-and-white shapes" in refused("figure", run.folder, "--kind", "bce", "--device", "cpu")
    assert "metrics.csv" in refused("figure", run.folder, "--kind", "learning", "--device", "cpu")
    # without groups the loss tells which is best
    assert run_nem("figure", run.folder, "--pick", "best", "--device", "cpu").status == 0
