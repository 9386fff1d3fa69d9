"""Scenes that are drawn first and painted when their frames, a hundred times as large, are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_OBJECTS, SPLITS, Part, Split
from neural_em.data.dataset import Dataset, StreamingDataset
from neural_em.data.generated import Painted, SceneConfig, gathered
from neural_em.errors import NeuralEMError, unknown
from neural_em.fields import Check, integer, optional

Drawn = TypeVar("Drawn")  # a named tuple of tensors (N,...), of other such tuples, or of None


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
        if self.fresh and split == "training":
            return super().load(split, seed, device, count, budget)
        return PaintedDataset(cast(DrawnScenes[Any], self.scenes(cast(Split, split), seed, device)), count)


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
        return None

    def drawn(self, indices: Tensor) -> Drawn:
        """What is in the scenes at the given indices (N,)."""
        several = [self.draw(some.to(self.device)) for some in indices.split(self.most_drawn)]
        return cast(Drawn, _each(lambda *parts: torch.cat(parts), *several))

    def painted(self, drawn: Drawn, count: int) -> Iterator[tuple[slice, Painted]]:
        """Paints so many scenes a few at a time."""
        T, _, H, W = self.shape
        for rows in lots(count, T * H * W, self.most_painted[self.device.type]):
            yield rows, self.paint(select(drawn, rows))

    def sequences(self, indices: Tensor) -> Iterator[tuple[slice, Painted]]:
        for some in lots(len(indices), 1, self.most_drawn):
            drawn = self.draw(indices[some].to(self.device))
            for rows, painted in self.painted(drawn, some.stop - some.start):
                yield slice(some.start + rows.start, some.start + rows.stop), painted

    def properties(self, indices: Tensor) -> dict[str, Tensor]:
        return self.described(self.drawn(indices))


class PaintedDataset(StreamingDataset, Generic[Drawn]):
    """Holds what is in the scenes, and paints a batch when it is asked for; on a GPU without the host."""

    resident = True

    def __init__(self, scenes: DrawnScenes[Drawn], count: int) -> None:
        def read(indices: Tensor) -> tuple[Tensor, Tensor]:
            return gathered(scenes, len(indices), scenes.painted(self._select(indices), len(indices)))

        super().__init__(read, count, scenes.shape, True, scenes.device, scenes.levels, note=scenes.config.note())
        self._scenes, self._drawn = scenes, scenes.drawn(torch.arange(count))
        self.background = scenes.config.background
        self.truth = lambda indices: scenes.described(self._select(indices))

    def collisions(self, indices: Tensor) -> Tensor | None:
        met = self._scenes.collisions(self._select(indices))
        return None if met is None else met.transpose(0, 1)

    def _select(self, indices: Tensor) -> Drawn:
        return select(self._drawn, self.checked(indices).to(self.device, non_blocking=True))


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
