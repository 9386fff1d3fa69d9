"""What the model's callers may get wrong: sizes, types, shapes and values, each refused by its name."""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any

from torch import Tensor

from neural_em.errors import refuse

LARGEST = sys.float_info.max


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int, if it is a whole number in the range; True and 2.0 are not."""
    # a NumPy integer will do: it is what counting the groups of an array gives
    expected = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        refuse(name, expected, repr(value))
    number = int(value)
    if number < least or (most is not None and number > most):
        refuse(name, expected, repr(value))
    return number


def check_number(name: str, value: Any, expected: str, least: float = -LARGEST, most: float = LARGEST) -> None:
    """Refuses what is not a finite number in the range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        refuse(name, expected, repr(value))


def check_flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        refuse(name, "True or False", repr(value))


def describe(array: Any) -> str:
    """What came instead of an array that was expected."""
    return f"shape {tuple(array.shape)}" if isinstance(array, Tensor) else type(array).__name__


def check_array(name: str, array: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuses an array of another shape, or of another type or device than the model's weights."""
    if not isinstance(array, Tensor) or tuple(array.shape) != shape:
        refuse(name, f"a tensor of shape {shape}", describe(array))
    if array.dtype != like.dtype or array.device != like.device:
        refuse(name, f"{like.dtype} on {like.device}, as the weights", f"{array.dtype} on {array.device}")


def check_values(name: str, array: Tensor, slack: float = 0.0) -> None:
    """Refuses numbers further than the slack outside [0, 1], and what is not one; waits for the array's device."""
    if not bool(((array >= -slack) & (array <= 1 + slack)).all()):
        got = f"values from {float(array.min()):g} to {float(array.max()):g}"
        refuse(name, "numbers between 0 and 1", "not-a-number" if bool(array.isnan().any()) else got)
