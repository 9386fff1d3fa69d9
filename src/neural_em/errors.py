"""The one error class that users of the package have to know, and the checks of single values that raise it."""

import difflib
import math
import reprlib
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, NoReturn

LARGEST = sys.float_info.max

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 4
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


class NeuralEMError(Exception):
    """Something the user can put right. The message names the thing, what was expected and what came."""

    def __str__(self) -> str:
        """The message in one line, whatever the names of files in it are."""
        return printable(super().__str__())


def refuse(thing: str, expected: str, got: object) -> NoReturn:
    """Raises the project's error in its one form: ``thing: expected ..., got ...``."""
    raise NeuralEMError(f"{thing}: expected {expected}, got {got}")


def unknown(thing: str, name: object, choices: Iterable[str]) -> NoReturn:
    """Refuses a name that is not among the choices, suggesting the nearest one."""
    choices = list(choices)
    nearest = difflib.get_close_matches(name, choices, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise NeuralEMError(f"{thing}: expected one of {', '.join(choices)}, got {show(name)}{hint}")


def check_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value as an int, if it is a whole number in the range; True and 2.0 are not."""
    # a NumPy integer will do: it is what counting the groups of an array gives
    expected = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or number < least or (most is not None and number > most):
        refuse(name, expected, show(value))
    return number


def check_number(name: str, value: Any, expected: str, least: float = -LARGEST, most: float = LARGEST) -> float:
    """The value as a float, if it is a finite number in the range; NumPy's will do, True will not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        refuse(name, expected, show(value))
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not least <= number <= most:
        refuse(name, expected, show(value))
    return number


def first_line(error: BaseException) -> str:
    """What an error says of itself, in one line; one that says nothing, by its kind."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def printable(text: str) -> str:
    """The text without what would break its line or command a terminal: such characters as Python writes them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def show(value: object) -> str:
    """What came, in one short line, however long, deep or circular it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to write out very long integers
        return "an integer of thousands of digits"
