"""Objects in colour that hide each other: what all such kinds of data share.

A sequence is a pure function of (seed, split, index), in whole numbers throughout: the same bits on every device. What
is drawn for a scene is held; frames are painted when they are asked for, on a GPU without the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import Split
from neural_em.data.generated import DrawnConfig, DrawnScenes, Painted, select
from neural_em.data.grounds import GROUNDS, distinct_colours, draw_ground
from neural_em.data.motion import UNIT
from neural_em.data.painting import PAINTED, Objects, Painter
from neural_em.data.silhouettes import Pictures
from neural_em.errors import refuse
from neural_em.fields import Check, choice, number

_SCENE = 0xC0104  # keeps these numbers apart from every other use of a seed
_ATTEMPTS = 200  # at whole scenes, before the frame is called too small
_COLOURS = 256  # stream of the first object's colour


class Drawn(NamedTuple):
    """What a kind draws for the K objects of N scenes."""

    picture: Tensor  # (N,K) int64
    turn: Tensor  # (N,K,2,2) int64: the picture's cells a pixel, down and across; 4096 is one
    place: Tensor  # (N,K,2,T) int64: the centre, in 1/256 pixels
    size: Tensor | None = None  # (N,K) int64, in 1/256 pixels, where objects differ in it
    colour: Tensor | None = None  # (N,K,3) uint8, where the kind chooses it


@dataclass(frozen=True, kw_only=True)
class ColourConfig(DrawnConfig):
    """Objects in colour that hide each other."""

    # behind the objects: ``black``, one ``grey`` or ``colour`` a sequence, a ``gradient``, a ``texture``, or ``mixed``,
    # one of these a sequence
    ground: str = "black"
    visible: float = 0.25  # the share of each object that is seen in the first frame, at least; 1: none hides another

    CHANNELS: ClassVar[int] = 3
    NAMED_SHAPES: ClassVar[bool] = True  # whether it is known which shape an object has
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "ground": choice(GROUNDS),
        "visible": number("a number from 0 to 1", 0, 1),
    }

    @property
    def background(self) -> bool:
        return True

    @property
    def plain(self) -> bool:
        """Whether objects are of one colour each, and the camera without noise."""
        return True

    @property
    def reach(self) -> int:
        """Side of a square, in pixels, that holds any object wherever its centre is."""
        return max(self.BOX)

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
        return ColourScenes(self, split, seed, device)

    def note(self) -> str:
        """Colours differ: even scenes of one object do."""
        return ""


class ColourScenes(DrawnScenes[Objects]):
    """All sequences of one split under one seed."""

    levels = 255
    most_drawn = 4096
    most_painted = PAINTED
    config: ColourConfig

    def __init__(self, config: ColourConfig, split: Split, seed: int, device: torch.device | str) -> None:
        super().__init__(config, split, seed, device)
        pictures = config.pictures(split)
        self.painter = Painter(pictures, self.shape, config.reach, config.ground, config.plain, self.device)

    def paint(self, drawn: Objects) -> Painted:
        groups, shade = self.painter.overlaid(drawn)
        return Painted(self.painter.colours(drawn, groups, shade), groups, torch.zeros_like(groups))

    def described(self, drawn: Objects) -> dict[str, Tensor]:
        """Position in pixels, colour from 0 to 1, sort of shape, and size in pixels where it is told."""
        T = self.shape[0]
        constant: dict[str, Tensor] = {"colour": drawn.colour.to(torch.float32) / 255}
        if self.config.NAMED_SHAPES:
            constant["shape"] = self.painter.pictures.sort[drawn.picture]
        if bool((drawn.size > 0).any()):
            constant["size"] = drawn.size.to(torch.float32) / UNIT
        position = drawn.place.permute(3, 0, 1, 2).to(torch.float32) / UNIT  # (T,N,K,2)
        return {"position": position, **{name: part.expand(T, *part.shape) for name, part in constant.items()}}

    def draw(self, indices: Tensor) -> Objects:
        """Scenes (N,), drawn until enough is seen of every object; their number and their ground are drawn once."""
        config = self.config
        key = randomness.keys(self.seed, _SCENE, self.split, indices, device=self.device)
        there = config.there(key, stream=128)
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
            pending = pending[~self.painter.enough_is_seen(select(objects, pending), there[pending], config.visible)]
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
