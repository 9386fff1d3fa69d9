"""Objects in colour that hide each other: what all such kinds of data share.

A sequence is a pure function of (seed, split, index), in whole numbers throughout: the same bits on every device. What
is drawn for a scene is held; frames are painted when they are asked for, on a GPU without the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_OBJECTS, SPLITS, Part, Split
from neural_em.data.dataset import Batch, Dataset, StreamingDataset
from neural_em.data.generated import Painted, SceneConfig, SceneReader
from neural_em.data.grounds import GROUNDS, Ground, distinct_colours, draw_ground
from neural_em.data.motion import UNIT
from neural_em.data.painting import Objects, Painter
from neural_em.data.silhouettes import Pictures
from neural_em.errors import refuse, unknown
from neural_em.fields import Check, choice, integer, number, optional

_SCENE = 0xC0104  # keeps these numbers apart from every other use of a seed
_ATTEMPTS = 200  # at whole scenes, before the frame is called too small
_DRAWN = 4096  # scenes drawn at a time
_COLOURS = 256  # stream of the first object's colour


class Drawn(NamedTuple):
    """What a kind draws for the K objects of N scenes."""

    picture: Tensor  # (N,K) int64
    turn: Tensor  # (N,K,2,2) int64: the picture's cells a pixel, down and across; 4096 is one
    place: Tensor  # (N,K,2,T) int64: the centre, in 1/256 pixels
    size: Tensor | None = None  # (N,K) int64, in 1/256 pixels, where objects differ in it
    colour: Tensor | None = None  # (N,K,3) uint8, where the kind chooses it


@dataclass(frozen=True, kw_only=True)
class ColourConfig(SceneConfig):
    """Objects in colour that hide each other.

    Attributes:
        most_objects: sequences have from ``objects`` to this many objects, all equally likely; ``None``: ``objects``.
        ground: behind the objects: ``black``, one ``grey`` or ``colour`` a sequence, a ``gradient``, a ``texture``, or
            ``mixed``, one of these a sequence.
        visible: the share of each object that is to be seen in the first frame, at least; 1: none hides another there.
    """

    most_objects: int | None = None
    ground: str = "black"
    visible: float = 0.25

    CHANNELS: ClassVar[int] = 3
    NAMED_SHAPES: ClassVar[bool] = True  # whether it is known which shape an object has
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "most_objects": optional(integer(1, MAX_OBJECTS)),
        "ground": choice(GROUNDS),
        "visible": number("a number from 0 to 1", 0, 1),
    }

    def check_together(self) -> None:
        """Refuses frames without room for the objects."""
        super().check_together()
        if self.most_objects is not None and self.most_objects < self.objects:
            refuse("most_objects", f"at least {self.objects}, as objects is; set both", self.most_objects)
        room = self.height * self.width // self.PIXELS
        if self.most > room:
            refuse("most_objects", f"at most {room}, which fit into {self.height} x {self.width} pixels", self.most)

    @property
    def plain(self) -> bool:
        """Whether objects are of one colour each, and the camera without noise."""
        return True

    @property
    def reach(self) -> int:
        """Side of a square, in pixels, that holds any object wherever its centre is."""
        return max(self.BOX)

    @property
    def most(self) -> int:
        """Objects in a sequence, at most."""
        return self.most_objects or self.objects

    def pictures(self, split: Split) -> Pictures:
        """What objects may look like."""
        raise NotImplementedError

    def draw(self, key: Tensor, pictures: Pictures) -> Drawn:
        """Objects of the scenes (N,): which pictures, where, how they move."""
        raise NotImplementedError

    def look(self, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which scenes (N,) are grey, the objects' surfaces (N,K), the camera's deviation (N,) in 1/16 levels."""
        still = torch.zeros(len(key), dtype=torch.int64, device=key.device)
        return still.bool(), still[:, None].expand(-1, self.most), still

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> ColourScenes:
        """All sequences of a split."""
        return ColourScenes(self, split, seed, device)

    def load(self, split: Part, seed: int, device: torch.device | str, count: int, budget: int) -> Dataset:
        """What was drawn for the scenes is held in memory; frames, a hundred times as large, are painted."""
        scenes = self.scenes(cast(Split, split), seed, device)
        if self.fresh and split == "training":
            data: Dataset = StreamingDataset(SceneReader(scenes), count, self.shape, True, device, True, self.note())
            data.background, data.truth = True, scenes.properties
            return data
        return ColourDataset(scenes, count)

    def note(self) -> str:
        """Colours differ: even scenes of one object do."""
        return ""


class ColourScenes:
    """All sequences of one split under one seed."""

    levels = 255
    dtype = torch.uint8

    def __init__(self, config: ColourConfig, split: Split, seed: int, device: torch.device | str) -> None:
        """The config's numbers have been checked by itself."""
        if split not in SPLITS:
            unknown("split", split, SPLITS)
        self.config, self.shape, self.device = config, config.shape, torch.device(device)
        self._seed, self._split = seed, SPLITS.index(split)
        pictures = config.pictures(split)
        self.painter = Painter(pictures, self.shape, config.reach, config.ground, config.plain, self.device)

    def objects(self, indices: Tensor) -> Objects:
        """What is in the scenes at the given indices (N,)."""
        parts = [self._draw(some.to(self.device)) for some in indices.split(_DRAWN)]
        ground = Ground(*map(torch.cat, zip(*(part.ground for part in parts), strict=True)))
        return Objects(ground, *map(torch.cat, zip(*(part[1:] for part in parts), strict=True)))

    def sequences(self, indices: Tensor) -> Iterator[tuple[slice, Painted]]:
        """Paints the sequences at the given indices (N,) a few at a time, each lot with its place in 0 .. N."""
        for first in range(0, len(indices), _DRAWN):
            objects = self.objects(indices[first : first + _DRAWN])
            for rows in self.painter.lots(len(objects.key), self.shape[0]):
                frames, groups = self.painter.paint(objects.select(rows))
                yield slice(first + rows.start, first + rows.stop), Painted(frames, groups, torch.zeros_like(groups))

    def properties(self, indices: Tensor) -> dict[str, Tensor]:
        """What is true of the objects; see `Dataset.properties`."""
        return self.described(self.objects(indices.to(self.device)))

    def described(self, objects: Objects) -> dict[str, Tensor]:
        """Position in pixels, colour from 0 to 1, sort of shape, and size in pixels where it is told."""
        T = self.shape[0]
        constant: dict[str, Tensor] = {"colour": objects.colour.to(torch.float32) / 255}
        if self.config.NAMED_SHAPES:
            constant["shape"] = self.painter.pictures.sort[objects.picture]
        if bool((objects.size > 0).any()):
            constant["size"] = objects.size.to(torch.float32) / UNIT
        position = objects.place.permute(3, 0, 1, 2).to(torch.float32) / UNIT  # (T,N,K,2)
        return {"position": position, **{name: part.expand(T, *part.shape) for name, part in constant.items()}}

    def _draw(self, indices: Tensor) -> Objects:
        """Scenes (N,), drawn until enough is seen of every object; their number and their ground are drawn once."""
        config = self.config
        key = randomness.keys(self._seed, _SCENE, self._split, indices, device=self.device)
        number = config.objects + randomness.integers(key, 1, config.most - config.objects + 1, stream=128)  # (N,1)
        there = torch.arange(config.most, device=self.device) < number
        grey, surface, noise = config.look(key)
        ground = draw_ground(key, config.ground, grey)
        colour = distinct_colours(key, config.most, ground, grey, _COLOURS)
        drawn = config.draw(randomness.fold(key, 0), self.painter.pictures)
        size = torch.zeros_like(drawn.picture) if drawn.size is None else drawn.size
        turn, place, size, noise = (part.to(torch.int32) for part in (drawn.turn, drawn.place, size, noise))
        colour = colour if drawn.colour is None else drawn.colour
        objects = Objects(ground, key, drawn.picture * there, turn, place, size, colour, surface, noise)
        pending = torch.arange(len(indices) if config.visible else 0, device=self.device)
        for attempt in range(1, _ATTEMPTS + 1):
            pending = pending[~self.painter.enough_is_seen(objects.select(pending), there[pending], config.visible)]
            if len(pending) == 0:
                return objects
            again = config.draw(randomness.fold(key[pending], attempt), self.painter.pictures)
            objects.picture[pending] = again.picture * there[pending]
            for name in ("turn", "place", "size", "colour"):
                if (new := getattr(again, name)) is not None:
                    part = getattr(objects, name)
                    part[pending] = new.to(part.dtype)
        room = f"{config.height} x {config.width} pixels"
        return refuse("objects", f"few enough that {config.visible:g} of each is seen in {room}", config.most)


class ColourDataset(Dataset):
    """Holds what is in the scenes, and paints a batch when it is asked for."""

    resident = True
    has_groups = True
    background = True

    def __init__(self, scenes: ColourScenes, count: int) -> None:
        """Draws the first so many scenes."""
        self.shape, self.device, self.note = scenes.shape, scenes.device, scenes.config.note()
        self._scenes, self._objects = scenes, scenes.objects(torch.arange(count))
        self._levels = torch.tensor(float(scenes.levels), device=self.device)
        self.truth = lambda indices: scenes.described(self._select(indices))

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._objects.key)

    def batch(self, indices: Tensor) -> Batch:
        """See the base."""
        objects, (T, C, H, W) = self._select(indices), self.shape
        N = len(objects.key)
        frames = torch.empty(T, N, C, H, W, device=self.device)
        groups = torch.empty(T, N, H, W, dtype=torch.uint8, device=self.device)
        for rows in self._scenes.painter.lots(N, T):
            painted, labels = self._scenes.painter.paint(objects.select(rows))
            frames[:, rows] = painted.transpose(0, 1)
            groups[:, rows] = labels.transpose(0, 1)
        return Batch(frames.div_(self._levels), groups)

    def _select(self, indices: Tensor) -> Objects:
        if not indices.is_cuda and len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            refuse("indices", f"numbers from 0 to {len(self) - 1}", f"{int(indices.min())} to {int(indices.max())}")
        return self._objects.select(indices.to(self.device, non_blocking=True))
