"""The one error class that users of the package have to know."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn


class NeuralEMError(Exception):
    """Something the user can put right. The message names the thing, what was expected and what came."""


def refuse(thing: str, expected: str, got: object) -> NoReturn:
    """Raises the project's error in its one form: ``thing: expected ..., got ...``."""
    raise NeuralEMError(f"{thing}: expected {expected}, got {got}")


def unknown(thing: str, name: object, choices: Iterable[str]) -> NoReturn:
    """Refuses a name that is not among the choices, suggesting the nearest one."""
    choices = list(choices)
    nearest = difflib.get_close_matches(str(name), choices, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise NeuralEMError(f"{thing}: expected one of {', '.join(choices)}, got {name!r}{hint}")
