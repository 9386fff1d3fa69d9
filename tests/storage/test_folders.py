"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neural_em import NeuralEMError
from neural_em.storage.folders import new_folder


def test_nothing_is_there_before_the_end_and_only_the_folder_after(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "b") as partial:
        (partial / "file").write_text("text")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "file").read_text() == "text"
    assert os.listdir(tmp_path / "a") == ["b"]


def test_an_empty_folder_is_taken_and_relative_names_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with new_folder("empty") as partial:
        (partial / "file").touch()
    assert os.listdir("empty") == ["file"]


@pytest.mark.parametrize(("place", "message"), [
    ("file", "file: expected the name of a folder to write, got a file"),
    ("full", "full: expected a new or empty folder, got one that holds kept"),
    ("file/inside", "inside: cannot be written: Not a directory"),
])  # fmt: skip
def test_what_is_in_the_way_is_named_and_kept(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    with pytest.raises(NeuralEMError) as error, new_folder(tmp_path / place):
        pytest.fail("begun")
    assert str(error.value).endswith(message)
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]
    assert os.listdir(tmp_path / "full") == ["kept"]


def test_an_earlier_result_is_replaced_only_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mark").write_text("old")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out", ["mark"]):
        raise ZeroDivisionError
    assert (tmp_path / "out" / "mark").read_text() == "old"
    with new_folder(tmp_path / "out", ["mark"]) as partial:
        (partial / "mark").write_text("new")
    assert (tmp_path / "out" / "mark").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("held", "other"),
    [
        (["mark", "thesis.txt"], "thesis.txt"),
        (["mark", "parts/1.png", "parts/thesis.txt"], "parts/thesis.txt"),
        (["mark", ".git/config"], ".git"),
        (["parts/1.png"], "parts"),  # no result without its mark
        (["mark", "parts/1.png", "movie.gif"], None),
    ],
)
def test_a_folder_with_anything_but_an_earlier_result_is_kept(
    tmp_path: Path, held: list[str], other: str | None
) -> None:
    for name in held:
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("old")
    usual = (["mark"], ["parts/*.png", "movie.*"])
    if other is None:
        with new_folder(tmp_path / "out", *usual):
            pass
        assert os.listdir(tmp_path / "out") == []
        return
    with pytest.raises(NeuralEMError) as error, new_folder(tmp_path / "out", *usual):
        pytest.fail("begun")
    expected = "out: expected a new or empty folder, or an earlier result with nothing else in it, got one that holds "
    assert str(error.value).endswith(expected + other)
    assert all((tmp_path / "out" / name).read_text() == "old" for name in held)


@pytest.mark.parametrize("there", [False, True])
def test_what_is_put_there_in_the_meantime_is_kept(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "out"

    def add(name: str) -> None:
        out.mkdir(exist_ok=True)
        (out / name).write_text("years")

    def work() -> None:
        with new_folder(out, ["mark"]):
            add("mark")
            add("thesis.txt")

    if there:
        add("mark")
    with pytest.raises(NeuralEMError, match=r"got one that holds thesis\.txt"):
        work()
    assert (out / "thesis.txt").read_text() == "years"
    assert os.listdir(tmp_path) == ["out"]
