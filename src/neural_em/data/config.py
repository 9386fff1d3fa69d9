"""What data to use. Each kind of data has a config of its own, in the file that makes it, and a line in `KINDS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

import torch

from neural_em.data.dataset import Dataset, memory_budget
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, Checked, flag, integer, optional

Split = Literal["training", "validation", "test"]
Part = Literal["training", "validation", "test", "all"]  # "all": the user's own data, undivided
SPLITS: tuple[Split, ...] = get_args(Split)

MAX_OBJECTS = 127  # labels have seven bits while painting
MAX_SIDE = 4096
MAX_FRAMES = 1_000_000

KINDS: dict[str, type[DataConfig]] = {}  # by the name of the kind; see `kind`
_USUAL = "flying-shapes"


@dataclass(frozen=True)
class DataConfig(Checked):
    """Where the sequences come from and how many of them make the three splits.

    ``DataConfig("flying-mnist", objects=3)`` is a config of the class that belongs to the kind, with its fields.

    Attributes:
        kind: one of `KINDS`.
        frames: of a sequence: one more than the model's steps; static data has 1.
        height: of a frame, in pixels.
        width: likewise.
        train_size: training sequences.
        validation_size: the paper has 10,000 and validates on the first 1,000.
        test_size: test sequences.
        fresh: never train on a sequence twice: every epoch draws new ones.
    """

    kind: str = _USUAL
    _: dataclasses.KW_ONLY
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    train_size: int = 50_000
    validation_size: int = 1_000
    test_size: int = 10_000
    fresh: bool = False

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "frames": optional(integer(1, MAX_FRAMES)),
        **dict.fromkeys(("height", "width"), optional(integer(1, MAX_SIDE))),
        **dict.fromkeys(("train_size", "validation_size", "test_size"), integer(1, 10**12)),
        "fresh": flag,
    }

    if TYPE_CHECKING:  # the fields of the kinds

        def __init__(self, kind: str = _USUAL, **fields: Any) -> None: ...

    def __new__(cls, kind: str = _USUAL, **fields: Any) -> DataConfig:
        """An object of the kind's class."""
        made = cls.class_for({"kind": kind})
        if not issubclass(made, cls):
            names = " or ".join(repr(name) for name, each in KINDS.items() if issubclass(each, cls))
            raise NeuralEMError(f"kind: {cls.__name__} is for {names}, not for {kind!r}")
        _refuse_others(made, kind, fields)
        for name in fields:
            if name not in _fields(made):
                unknown("field of the data", name, _fields(made))
        return object.__new__(made)

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        """So that copies are of the same kind."""
        return (self.kind,), {}

    @classmethod
    def class_for(cls, values: Mapping[str, Any]) -> type[DataConfig]:
        """The class whose fields these are."""
        kind = values.get("kind", _USUAL)
        if not isinstance(kind, str) or kind not in KINDS:
            unknown("kind", kind, KINDS)
        return KINDS[kind]

    @classmethod
    def from_older(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a file; one from before kinds had their own config names those of all."""
        return cls.from_other(values)

    @classmethod
    def from_other(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of any kind without those of others, where these are as they usually are."""
        left = {}
        for name, value in values.items():
            usual = list(_kinds_with(name).values())  # a field that is not set, or as it usually is, says nothing
            plain = tuple(value) if isinstance(value, list) else value
            if name in _fields(cls) or not usual or (value is not None and plain not in usual):
                left[name] = value
        _refuse_others(cls, values.get("kind", _USUAL), left)
        return left

    @property
    def shape(self) -> tuple[int, int, int, int] | None:
        """(T,C,H,W) of a sequence; None where only the data tell."""
        raise NotImplementedError

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """So many sequences of a split, held in memory if they need at most ``budget`` bytes."""
        raise NotImplementedError

    def note(self) -> str:
        """What a reader of scores on this data has to know; usually nothing."""
        return ""

    def without_paths(self) -> DataConfig:
        """The same without what is nobody else's business: where things lie on this machine."""
        return self

    def sizes(self) -> dict[str, int]:
        """Sequences in each part, at most."""
        return {"training": self.train_size, "validation": self.validation_size, "test": self.test_size}

    def size(self, split: Part) -> int:
        sizes = self.sizes()
        if split not in sizes:
            unknown("split", split, sizes)
        return sizes[split]


Config = TypeVar("Config", bound=type[DataConfig])


def kind(name: str) -> Callable[[Config], Config]:
    """Makes a config class that of a kind of data."""

    def register(cls: Config) -> Config:
        KINDS[name] = cls
        return cls

    return register


def _fields(cls: type[DataConfig]) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}


def _kinds_with(name: str) -> dict[str, Any]:
    """The kinds that have a field, and what it usually is there."""
    return {kind: _fields(cls)[name] for kind, cls in KINDS.items() if name in _fields(cls)}


def _refuse_others(cls: type[DataConfig], kind: str, given: Mapping[str, Any]) -> None:
    """Refuses fields that belong to other kinds."""
    for name in given:
        if name not in _fields(cls) and (kinds := _kinds_with(name)):
            raise NeuralEMError(f"{name} is for kind {' or '.join(map(repr, kinds))}, not for {kind!r}")


def load_split(
    config: DataConfig, split: Part, seed: int, device: torch.device | str = "cpu", size: int | None = None,
    max_bytes: int | None = None,
) -> Dataset:  # fmt: skip
    """The sequences of one split, ready to be asked for batches.

    Args:
        config: What data.
        split: "training", "validation" or "test"; "all" for the user's own data, where it is not divided into these.
        seed: Names the generated data; files do not depend on it.
        device: Where the batches are wanted.
        size: How many sequences; ``None``: as the config says. Files give what they have, at most.
        max_bytes: Hold the data on the device if it needs no more than this, else make or read each batch when it is
            asked for; the batches are the same. ``None``: a half of the device's free memory.
    """
    most = config.size(split)  # refuses a part that it does not have
    count = most if size is None else size
    if count < 1:
        refuse("size", "an integer >= 1", count)
    return config.load(split, seed, device, count, memory_budget(device) if max_bytes is None else max_bytes)
