"""What is common to all generated data: their config, what a generator gives, and how it becomes a data set.

Scenes are drawn first, and painted when their frames, a hundred times as large, are asked for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_FRAMES, MAX_OBJECTS, MAX_SIDE, SPLITS, DataConfig, Part, Split
from neural_em.data.dataset import Dataset, MemoryDataset, StreamingDataset
from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.fields import Check, integer, optional

Drawn = TypeVar("Drawn")  # a named tuple of tensors (N,...), of other such tuples, or of None


class Painted(NamedTuple):
    """N painted sequences, sample axis first."""

    frames: Tensor  # (N,T,C,H,W) uint8 or int16 in [0, levels]
    groups: Tensor  # (N,T,H,W) uint8: 1 .. K where an object is and is scored, else 0
    overlaps: Tensor  # (N,T,H,W) uint8: 1 where two objects or more are, else 0


class Generator(Protocol):
    """All sequences of one split under one seed: a pure function of the index, the same bits on every device."""

    shape: tuple[int, int, int, int]  # (T,C,H,W)
    levels: int  # the value that stands for 1.0
    dtype: torch.dtype  # of the frames
    device: torch.device

    def sequences(self, indices: Tensor) -> Iterator[tuple[slice, Painted]]:
        """Paints the sequences at the given indices (N,) a few at a time, each lot with its place in 0 .. N."""


@dataclass(frozen=True, kw_only=True)
class SceneConfig(DataConfig):
    """Generated sequences of objects."""

    objects: int = 3  # in a sequence
    frames: int = 21
    height: int = 28
    width: int = 28

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "objects": integer(1, MAX_OBJECTS), "frames": integer(1, MAX_FRAMES),
        **dict.fromkeys(("height", "width"), integer(1, MAX_SIDE)),
    }  # fmt: skip
    CHANNELS: ClassVar[int] = 1
    BOX: ClassVar[tuple[int, int]] = (1, 1)  # every object fits into it
    PIXELS: ClassVar[int] = 1  # about as many has a small object
    background: ClassVar[bool] = False  # whether group 0 is the background and nothing else

    def check_together(self) -> None:
        (rows, columns), size = self.BOX, f"{self.height} x {self.width}"
        if self.height < rows or self.width < columns:
            refuse("height x width", f"at least {rows} x {columns} for an object to fit", size)
        if self.most > self.room:
            name = "objects" if self.most == self.objects else "most_objects"
            refuse(name, f"at most {self.room}, which fit into {size} pixels", self.most)

    @property
    def most(self) -> int:
        """Objects in a sequence, at most."""
        return self.objects

    @property
    def room(self) -> int:
        """Objects that fit into a frame."""
        return self.height * self.width // self.PIXELS

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.frames, self.CHANNELS, self.height, self.width

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Generator:
        """All sequences of a split."""
        raise NotImplementedError

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """Held in memory, or painted batch by batch where they do not fit or never end."""
        scenes = self.scenes(cast(Split, split), seed, device)
        T, C, H, W = self.shape
        endless = self.fresh and split == "training"

        def read(indices: Tensor) -> tuple[Tensor, Tensor]:
            return gathered(scenes, len(indices), scenes.sequences(indices))

        data: Dataset
        if endless or count * T * H * W * (C * scenes.dtype.itemsize + 1) > budget:
            data = StreamingDataset(read, count, self.shape, True, device, scenes.levels, endless, self.note())
        else:
            data = MemoryDataset(*read(torch.arange(count)), scenes.levels, self.note())
        data.background, data.truth = self.background, getattr(scenes, "properties", None)
        return data

    def note(self) -> str:
        """Of few objects there are few scenes."""
        few = "scenes of one object are too few to differ between training, validation and test"
        return few if self.objects == 1 else ""


def gathered(scenes: Generator, count: int, lots: Iterator[tuple[slice, Painted]]) -> tuple[Tensor, Tensor]:
    """Frames (N,T,C,H,W), in the smallest exact type, and groups (N,T,H,W) uint8 of sequences painted in lots."""
    T, C, H, W = scenes.shape
    frames = torch.empty(count, T, C, H, W, dtype=scenes.dtype, device=scenes.device)
    groups = torch.empty(count, T, H, W, dtype=torch.uint8, device=scenes.device)
    for lot, some in lots:
        frames[lot] = some.frames
        groups[lot] = some.groups
    return frames, groups


@dataclass(frozen=True, kw_only=True)
class DrawnConfig(SceneConfig):
    """Scenes whose number of objects may vary."""

    # sequences have from ``objects`` to this many objects, all equally likely; ``None``: ``objects``
    most_objects: int | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {"most_objects": optional(integer(1, MAX_OBJECTS))}

    def check_together(self) -> None:
        super().check_together()
        if self.most < self.objects:
            raise NeuralEMError(f"most_objects={self.most} is below objects={self.objects}; set both")

    @property
    def most(self) -> int:
        return self.most_objects or self.objects

    def there(self, key: Tensor, stream: int) -> Tensor:
        """Which of the most objects the scenes (N,) have: (N,K) bool."""
        number = self.objects + randomness.integers(key, 1, self.most - self.objects + 1, stream=stream)  # (N,1)
        return torch.arange(self.most, device=key.device) < number

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """Held as what is in the scenes, and painted when a batch is asked for; on a GPU without the host."""
        if self.fresh and split == "training":
            return super().load(split, seed, device, count, budget)
        scenes = cast(DrawnScenes[Any], self.scenes(cast(Split, split), seed, device))
        drawn = scenes.drawn(torch.arange(count))

        def some(indices: Tensor) -> Any:
            return select(drawn, data.checked(indices).to(data.device, non_blocking=True))

        def read(indices: Tensor) -> tuple[Tensor, Tensor]:
            return gathered(scenes, len(indices), scenes.painted(some(indices), len(indices)))

        data = StreamingDataset(read, count, self.shape, True, device, scenes.levels, note=self.note())
        data.resident, data.background = True, self.background
        data.truth, data.met = (lambda i: scenes.described(some(i))), (lambda i: scenes.collisions(some(i)))
        return data


class DrawnScenes(ABC, Generic[Drawn]):
    """All sequences of one split under one seed, on one device, drawn and painted in two steps."""

    levels = 1
    dtype = torch.uint8
    most_drawn: int  # scenes drawn at a time
    most_painted: ClassVar[Mapping[str, int]]  # pixels painted at a time, by the kind of device

    def __init__(self, config: SceneConfig, split: Split, seed: int, device: torch.device | str) -> None:
        if split not in SPLITS:
            unknown("split", split, SPLITS)
        self.config, self.shape, self.device = config, config.shape, torch.device(device)
        self.seed, self.split = seed, SPLITS.index(split)

    @abstractmethod
    def draw(self, indices: Tensor) -> Drawn:
        """What is in the scenes at a few indices (N,) on the device."""

    @abstractmethod
    def paint(self, drawn: Drawn) -> Painted:
        """Paints a few scenes."""

    @abstractmethod
    def described(self, drawn: Drawn) -> dict[str, Tensor]:
        """What is true of the objects; see `Dataset.properties`."""

    def collisions(self, drawn: Drawn) -> Tensor | None:
        """See `Dataset.collisions`."""
        return None

    def drawn(self, indices: Tensor) -> Drawn:
        """What is in the scenes at the given indices (N,)."""
        several = [self.draw(some.to(self.device)) for some in indices.split(self.most_drawn)]
        return cast(Drawn, _each(lambda *parts: torch.cat(parts), *several))

    def painted(self, drawn: Drawn, count: int) -> Iterator[tuple[slice, Painted]]:
        """Paints so many scenes a few at a time."""
        T, _, H, W = self.shape
        most = self.most_painted.get(self.device.type, self.most_painted["cpu"])
        for rows in lots(count, T * H * W, most):
            yield rows, self.paint(select(drawn, rows))

    def sequences(self, indices: Tensor) -> Iterator[tuple[slice, Painted]]:
        for some in lots(len(indices), 1, self.most_drawn):
            drawn = self.draw(indices[some].to(self.device))
            for rows, painted in self.painted(drawn, some.stop - some.start):
                yield slice(some.start + rows.start, some.start + rows.stop), painted

    def properties(self, indices: Tensor) -> dict[str, Tensor]:
        return self.described(self.drawn(indices))


def lots(count: int, pixels: int, most: int) -> Iterator[slice]:
    """So many scenes of so many pixels each, in parts of at most that many pixels."""
    lot = max(1, most // pixels)
    for first in range(0, count, lot):
        yield slice(first, min(first + lot, count))


def select(drawn: Drawn, rows: Tensor | slice) -> Drawn:
    """Some of the scenes."""
    return cast(Drawn, _each(lambda part: part[rows], drawn))


def _each(change: Callable[..., Tensor], *drawn: Any) -> Any:
    """What a function makes of each tensor of a drawn lot, or of the same ones of several lots."""
    if drawn[0] is None or isinstance(drawn[0], Tensor):
        return None if drawn[0] is None else change(*drawn)
    return type(drawn[0])(*(_each(change, *parts) for parts in zip(*drawn, strict=True)))


def generate(
    kind: str, num: int, seed: int = 0, split: Split = "training", device: torch.device | str = "cpu", start: int = 0,
    dtype: torch.dtype = torch.float32, **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of any generated kind: one of `neural_em.data.KINDS`, such as "sprites".

    The fields are those of the kind's config: objects, frames, height, width, ground ... The other arguments are those
    of ``flying_shapes``. Gives frames (T,N,C,H,W) in [0, 1], and groups (T,N,H,W) uint8: 1 .. objects, 0 = not scored.
    """
    config = DataConfig(kind, **fields)
    if not isinstance(config, SceneConfig):
        refuse("kind", "one that is generated", repr(kind))
    scenes = config.scenes(split, seed, device)
    if num < 0 or start < 0:
        refuse("num and start", "integers >= 0", f"{num} and {start}")
    if not dtype.is_floating_point and scenes.levels > 1:
        raise NeuralEMError(f"dtype: {dtype} cannot hold grey values; use a floating-point type")
    T, C, H, W = scenes.shape
    frames = torch.empty(T, num, C, H, W, dtype=dtype, device=scenes.device)
    groups = torch.empty(T, num, H, W, dtype=torch.uint8, device=scenes.device)
    scale = torch.tensor(float(scenes.levels), device=scenes.device)  # a tensor: a plain number may be multiplied by
    for lot, some in scenes.sequences(torch.arange(start, start + num)):
        values = some.frames if scenes.levels == 1 else some.frames.to(torch.float32) / scale
        frames[:, lot].copy_(values.transpose(0, 1))
        groups[:, lot].copy_(some.groups.transpose(0, 1))
    return frames, groups
