"""The one error class that users of the package have to know."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import NoReturn

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
