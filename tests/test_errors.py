"""The project's one error class, its two forms of message, and the checks of single values."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import neural_em
from neural_em import cli
from neural_em.errors import NeuralEMError, check_integer, check_number, refuse, show, unknown


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


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), 3])
def test_whole_numbers_become_python_s_own(value: Any) -> None:
    assert type(check_integer("size", value, 1, 3)) is int
    assert type(check_number("rate", value, "a number")) is float


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.float16(0.5), 0.5, Fraction(1, 2)])
def test_numbers_become_python_s_own(value: Any) -> None:
    assert check_number("rate", value, "a number from 0 to 1", 0, 1) == 0.5
    assert type(check_number("rate", value, "a number")) is float
    with pytest.raises(NeuralEMError, match="size: expected an integer >= 1, got "):
        check_integer("size", value, 1)


@pytest.mark.parametrize("value", [True, np.True_, "1", None, np.nan, np.float32(np.inf), 10**400, 10**5000], ids=show)
def test_what_is_no_finite_number_is_refused_in_a_short_line(value: Any) -> None:
    with pytest.raises(NeuralEMError, match="rate: expected a number, got ") as caught:
        check_number("rate", value, "a number")
    assert len(str(caught.value)) < 120


def test_a_traceback_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["nem", "presets", "no-such"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("nem: preset")
    monkeypatch.setattr(sys, "argv", ["nem", "--debug", "presets", "no-such"])
    with pytest.raises(NeuralEMError):  # which Python prints with its traceback
        cli.main()
