"""The project's one error class and its two forms of message."""

from __future__ import annotations

import sys

import pytest

import neural_em
from neural_em import cli
from neural_em.errors import NeuralEMError, refuse, unknown


def test_the_error_class_is_on_the_face_of_the_package() -> None:
    assert neural_em.NeuralEMError is NeuralEMError


def test_refuse_names_the_thing_what_was_expected_and_what_came() -> None:
    with pytest.raises(NeuralEMError) as caught:
        refuse("components", "an integer >= 1", 0)
    assert str(caught.value) == "components: expected an integer >= 1, got 0"


def test_unknown_lists_the_choices_and_suggests_the_nearest() -> None:
    with pytest.raises(NeuralEMError) as caught:
        unknown("preset", "flying-shape", ["static-shapes", "flying-shapes"])
    expected = "preset: expected one of static-shapes, flying-shapes, got 'flying-shape'; did you mean 'flying-shapes'?"
    assert str(caught.value) == expected


def test_unknown_suggests_nothing_where_nothing_is_near() -> None:
    with pytest.raises(NeuralEMError) as caught:
        unknown("preset", "xyz", iter(["static-shapes", "flying-shapes"]))
    assert str(caught.value) == "preset: expected one of static-shapes, flying-shapes, got 'xyz'"


@pytest.mark.parametrize("name", [None, 3, 2.5, ("a",), "", "line\nbreak"])
def test_unknown_takes_any_name_and_stays_on_one_line(name: object) -> None:
    with pytest.raises(NeuralEMError) as caught:
        unknown("preset", name, ["a", "b"])
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nnem: all is well", "a\\nnem: all is well"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # turns the direction of writing around
        ("\udcff.png", "\\udcff.png"),  # a byte that is no text: it could not be printed at all
        ("ordinary – Größe 3 µm", "ordinary – Größe 3 µm"),
    ],
)
def test_names_of_files_cannot_command_the_terminal(name: str, shown: str) -> None:
    with pytest.raises(NeuralEMError) as caught:
        refuse(name, "an image", "something else")
    assert str(caught.value) == f"{shown}: expected an image, got something else"


def test_a_traceback_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["nem", "presets", "no-such"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("nem: preset")
    monkeypatch.setattr(sys, "argv", ["nem", "--debug", "presets", "no-such"])
    with pytest.raises(NeuralEMError):  # which Python prints with its traceback
        cli.main()
