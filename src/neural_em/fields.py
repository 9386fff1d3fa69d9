"""What the fields of a config may be, as a table: each check takes a field's name and value, and gives the value kept.

Numbers come out as Python's own, whatever came in: they can be written, and equal configs are equal.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from neural_em.errors import LARGEST, check_integer, check_number, refuse, show, unknown

Check = Callable[[str, Any], Any]
TINY = sys.float_info.min  # the smallest number above 0


class Checked:
    """A frozen dataclass whose fields pass the checks of its table, and of those of the classes it is made from."""

    CHECKS: ClassVar[Mapping[str, Check]] = {}
    GROUP: ClassVar[str] = ""  # what stands before the field in messages: "training."

    def __post_init__(self) -> None:
        """Checks the fields one by one, then what several say together."""
        tables = [vars(each).get("CHECKS", {}) for each in reversed(type(self).__mro__)]
        for name, check in {name: check for table in tables for name, check in table.items()}.items():
            object.__setattr__(self, name, check(f"{self.GROUP}{name}", getattr(self, name)))
        self.check_together()

    def check_together(self) -> None:
        """Refuses fields that are at odds with each other."""


def integer(least: int, most: int | None = None) -> Check:
    """A whole number in a range."""
    return lambda name, value: check_integer(name, value, least, most)


def number(expected: str, least: float = -LARGEST, most: float = LARGEST) -> Check:
    """A finite number in a range, which the message says in words."""
    return lambda name, value: check_number(name, value, expected, least, most)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    return value if isinstance(value, bool) else refuse(name, "True or False", repr(value))


def text(name: str, value: Any) -> str:
    """Text, or the path of something."""
    return os.fspath(value) if isinstance(value, str | os.PathLike) else refuse(name, "text", show(value))


def choice(choices: Iterable[str]) -> Check:
    """One of some names; a registry may be given, and what is added to it later counts."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            unknown(name, value, choices)
        return value

    return check


def optional(check: Check) -> Check:
    """None, or what passes the check."""
    return lambda name, value: None if value is None else check(name, value)


def several(check: Check, expected: str) -> Check:
    """A list, not empty, whose items pass the check; in words for the message."""

    def checked(name: str, value: Any) -> tuple[Any, ...]:
        items = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
        if not items:
            refuse(name, expected, show(value))
        return tuple(check(f"{name}[{i}]", item) for i, item in enumerate(items))

    return checked
