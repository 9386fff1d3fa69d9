"""Reads, overrides, compares and writes any config dataclass strictly; knows none of them.

A config is a frozen dataclass whose fields are numbers, strings, booleans, ``None``, tuples of these, literals, other
config dataclasses, or dictionaries of these by name. Every unknown key and every value of the wrong kind is refused by
name. A class may say more of itself: ``class_for`` which of its subclasses a file means, ``from_older`` and
``from_other`` what values of older files and of other classes mean, and ``changeable`` which of its fields may differ
between two starts of one run.
"""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union

import yaml

from neural_em.errors import NeuralEMError, first_line, printable, refuse, show, unknown

C = TypeVar("C")
MAX_BYTES = 1 << 20  # a config file larger than this is not one of ours
LeaveOut = Literal["nothing", "unknown", "unfit"]
_MAX_COUNT, _MAX_NUMBER = 1 << 62, 1e30  # of what a stranger's file says
# what PyYAML raises: its own class, and whatever its conversions of tagged or odd scalars raise
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError)


class _How(NamedTuple):
    """How to read."""

    leave_out: LeaveOut
    stored: bool


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain dictionaries and lists, ready for YAML or JSON."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_dict(
    cls: type[C], values: Mapping[str, Any], where: str = "", leave_out: LeaveOut = "nothing", stored: bool = True
) -> C:
    """A config of class ``cls`` with these values, which errors call ``where``; other fields keep their defaults.

    A class may have three methods for it: ``class_for`` chooses one of its subclasses by the values; ``from_older``
    says what the values of an older file mean, if they were ``stored``; else ``from_other`` says what those of another
    subclass mean. What to ``leave_out`` is passed over instead of refused: ``unknown`` fields, or also what is
    ``unfit``. Such values are a record, not a wish: texts are made printable, numbers beyond all reason do not fit.
    """
    if not isinstance(values, Mapping):
        refuse(where or cls.__name__, "a mapping of fields", show(values))
    cls = class_for(cls, values)
    hints = typing.get_type_hints(cls)
    values = getattr(cls, "from_older" if stored else "from_other", dict)(values)
    if leave_out == "nothing":
        for name in values:
            _check_name(cls, name, where)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name in values}  # type: ignore[arg-type]
    given = _convert_each(kinds, values, f"{where}." if where else "", _How(leave_out, stored))
    try:
        return cls(**given)
    except TypeError as error:  # a required field is missing
        raise NeuralEMError(f"{where or cls.__name__}: {error}") from None


def class_for(cls: type[C], values: Mapping[str, Any]) -> type[C]:
    """The class that the values are for, where there are several."""
    choose: Any = getattr(cls, "class_for", None)
    return cls if choose is None else choose(values)


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """All values of a config, or of nested mappings, by dotted names."""
    values: dict[str, Any] = {}
    for name, value in (config if isinstance(config, Mapping) else to_dict(config)).items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def field_of(assignment: str) -> str:
    """The dotted name in ``name=value``."""
    return assignment.partition("=")[0].strip()


def without(lists: Iterable[Iterable[str]], fields: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Lists of ``name=value`` without what they say of some fields."""
    left_out = frozenset(fields)
    return tuple(tuple(each for each in one if field_of(each) not in left_out) for one in lists)


def changeable(config: Any) -> frozenset[str]:
    """The fields, by dotted names, that may differ between two starts of one run, as each part of the config says."""
    names = set(getattr(config, "changeable", ()))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        names |= {f"{field.name}.{name}" for name in changeable(value)} if dataclasses.is_dataclass(value) else set()
    return frozenset(names)


def override(config: C, assignments: Iterable[str]) -> C:
    """A copy with dotted fields replaced: ``override(config, ["training.learning_rate=0.0005"])``."""
    values = to_dict(config)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            refuse("override", "name=value", show(assignment))
        target, cls = values, type(config)
        *path, last = key.strip().split(".")
        for depth, name in enumerate(path):
            cls = _nested(cls, name, ".".join(path[:depth]))
            target = target.setdefault(name, {})
            if not isinstance(target, dict):  # an earlier assignment put a single value here
                refuse(".".join(path[: depth + 1]), "a group of fields", show(target))
            cls = class_for(cls, target)
        _check_name(cls, last, ".".join(path))
        try:
            target[last] = yaml.safe_load(text)
        except _YAML_ERRORS:
            refuse(key.strip(), "a value in YAML notation", show(text))
    return from_dict(type(config), values, stored=False)


def dump(config: Any) -> str:
    """The whole config as YAML text."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, default_flow_style=None)


def read(cls: type[C], path: str | os.PathLike[str]) -> C:
    """Reads a config of class ``cls`` from a YAML file."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            refuse(str(path), f"a config file of at most {MAX_BYTES} bytes", f"{path.stat().st_size} bytes")
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NeuralEMError(f"{path}: cannot be read: {error.strerror}") from None
    except _YAML_ERRORS as error:
        raise NeuralEMError(f"{path}: not a config in YAML: {first_line(error)}") from None
    try:
        return from_dict(cls, values, "")
    except NeuralEMError as error:
        raise NeuralEMError(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _check_name(cls: type[Any], name: str, where: str) -> None:
    known = [field.name for field in dataclasses.fields(cls)]
    if name not in known:
        unknown(f"{where or cls.__name__}: unknown field", name, known)


def _nested(cls: type[Any], name: str, where: str) -> type[Any]:
    _check_name(cls, name, where)
    inner = typing.get_type_hints(cls)[name]
    if not dataclasses.is_dataclass(inner):
        refuse(f"{where}.{name}".lstrip("."), "a group of fields", "a single value")
    return typing.cast(type[Any], inner)


def _convert_each(kinds: Mapping[Any, Any], values: Mapping[Any, Any], where: str, how: _How) -> dict[Any, Any]:
    """Each value as its kind, by the same names."""
    found = {}
    for name, kind in kinds.items():
        try:
            found[name] = _convert(kind, values[name], f"{where}{name}", how)
        except NeuralEMError:
            if how.leave_out != "unfit":
                raise
    return found


def _convert(kind: Any, value: Any, where: str, how: _How) -> Any:
    """The value as the field's type, or the project's error."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where, how)
    if origin is Literal:
        # of the same type, for True is not 1: a choice is taken only as it is written
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            unknown(where, value, [str(choice) for choice in arguments])
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            refuse(where, "a list", show(value))
        items = {f"[{i}]": item for i, item in enumerate(value)}
        return tuple(_convert_each(dict.fromkeys(items, arguments[0]), items, where, how).values())
    if kind is Any:
        return value
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            refuse(where, "a mapping", show(value))
        found = _convert_each(dict.fromkeys(value, arguments[1]), value, f"{where}.", how)
        return {printable(str(name)): item for name, item in found.items()}
    if dataclasses.is_dataclass(kind):
        return from_dict(typing.cast(type[Any], kind), value, where, *how)
    return _convert_scalar(kind, value, where, how)


def _convert_union(kinds: tuple[Any, ...], value: Any, where: str, how: _How) -> Any:
    if value is None and type(None) in kinds:
        return None
    problems = []
    for kind in (kind for kind in kinds if kind is not type(None)):
        try:
            return _convert(kind, value, where, how)
        except NeuralEMError as problem:
            problems.append(str(problem))
    raise NeuralEMError(problems[0] if len(problems) == 1 else f"{where}: no form fits: {'; '.join(problems)}")


def _convert_scalar(kind: Any, value: Any, where: str, how: _How) -> Any:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        if how.leave_out != "nothing" and not 0 <= value < _MAX_COUNT:
            refuse(where, "a count", show(value))
        return value
    if kind is float and not isinstance(value, bool):
        try:  # YAML reads 1e-3 as a string
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            refuse(where, "a number", show(value))
        if not math.isfinite(number) or (how.leave_out != "nothing" and abs(number) > _MAX_NUMBER):
            refuse(where, "a finite number", show(value))
        return number
    if kind is str and isinstance(value, str):
        return value if how.leave_out == "nothing" else printable(value)
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    refuse(where, names.get(kind, str(kind)), show(value))
