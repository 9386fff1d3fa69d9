"""Objects in colour that hide each other: what all such kinds of data share, and how they are painted.

A sequence is a pure function of (seed, split, index), in whole numbers throughout: the same bits on every device. What
is drawn for a scene is held; frames are painted when they are asked for. An object shows a picture's cells at its
place, size and angle; later objects hide earlier ones. On a GPU nothing waits for the host, so that painting can be a
part of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data import grounds
from neural_em.data.config import Split
from neural_em.data.generated import DrawnConfig, DrawnScenes, Painted, lots, select
from neural_em.data.motion import UNIT, directions
from neural_em.data.silhouettes import Pictures, looked_up
from neural_em.errors import refuse
from neural_em.fields import Check, choice, number

_SCENE = 0xC0104  # keeps these numbers apart from every other use of a seed
_ATTEMPTS = 200  # at whole scenes, before the frame is called too small
_COLOURS = 256  # stream of the first object's colour
_PAINTED = {"cpu": 1 << 19, "cuda": 1 << 25}  # pixels at a time


class Objects(NamedTuple):
    """All that has to be known of N scenes of at most K objects; later objects hide earlier ones."""

    ground: grounds.Ground
    key: Tensor  # (N,)
    picture: Tensor  # (N,K) int64; 0 for an object that is not there
    turn: Tensor  # (N,K,2,2) int32: the picture's cells a pixel, down and across; 4096 is one
    place: Tensor  # (N,K,2,T) int32: the centre, in 1/256 pixels
    size: Tensor  # (N,K) int32, in 1/256 pixels; 0 where it is not told
    colour: Tensor  # (N,K,3) uint8
    surface: Tensor  # (N,K) int64
    noise: Tensor  # (N,) int32: the camera's deviation, in 1/16 levels


@dataclass(frozen=True, kw_only=True)
class ColourConfig(DrawnConfig):
    """Objects in colour that hide each other."""

    # behind the objects: ``black``, one ``grey`` or ``colour`` a sequence, a ``gradient``, a ``texture``, or ``mixed``,
    # one of these a sequence
    ground: str = "black"
    visible: float = 0.25  # the share of each object that is seen in the first frame, at least; 1: none hides another

    CHANNELS: ClassVar[int] = 3
    NAMED_SHAPES: ClassVar[bool] = True  # whether it is known which shape an object has
    background: ClassVar[bool] = True
    plain: ClassVar[bool] = True  # whether objects are of one colour each, and the camera without noise
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "ground": choice(grounds.GROUNDS),
        "visible": number("a number from 0 to 1", 0, 1),
    }

    @property
    def reach(self) -> int:
        """Side of a square, in pixels, that holds any object wherever its centre is."""
        return max(self.BOX)

    def pictures(self, split: Split) -> Pictures:
        """What objects may look like."""
        raise NotImplementedError

    def draw(self, key: Tensor, pictures: Pictures) -> dict[str, Tensor]:
        """Fields of `Objects` by name, of the scenes (N,): picture, turn, place; size and colour where it has them."""
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
    most_painted = _PAINTED
    config: ColourConfig

    def __init__(self, config: ColourConfig, split: Split, seed: int, device: torch.device | str) -> None:
        super().__init__(config, split, seed, device)
        self.pictures = config.pictures(split).to(self.device)
        # what painting looks up, on the device it paints on
        self._tables = directions(self.device), grounds.textures().to(self.device)
        self._surfaces, self._noise = grounds.surfaces().to(self.device), grounds.noise_table().to(self.device)

    def draw(self, indices: Tensor) -> Objects:
        """Scenes (N,), drawn until enough is seen of every object; their number and their ground are drawn once."""
        config, T, (N, K) = self.config, self.shape[0], (len(indices), self.config.most)
        key = randomness.keys(self.seed, _SCENE, self.split, indices, device=self.device)
        there = config.there(key, stream=128)
        grey, surface, noise = config.look(key)
        ground = grounds.draw_ground(key, config.ground, grey)
        colour = grounds.distinct_colours(key, K, ground, grey, _COLOURS)
        picture = key.new_zeros(N, K)
        turn, place, size = (key.new_zeros((N, K, *rest), dtype=torch.int32) for rest in ((2, 2), (2, T), ()))
        objects = Objects(ground, key, picture, turn, place, size, colour, surface, noise.to(torch.int32))
        pending = torch.arange(N, device=self.device)
        for attempt in range(_ATTEMPTS):
            drawn = config.draw(randomness.fold(key[pending], attempt), self.pictures)
            for name, new in drawn.items():
                part = getattr(objects, name)
                part[pending] = new.to(part.dtype)
            picture.mul_(there)
            if not config.visible:
                return objects
            pending = pending[~self.enough_is_seen(select(objects, pending), there[pending], config.visible)]
            if len(pending) == 0:
                return objects
        room = f"{config.height} x {config.width} pixels"
        return refuse("objects", f"few enough that {config.visible:g} of each is seen in {room}", config.most)

    def described(self, drawn: Objects) -> dict[str, Tensor]:
        """Position in pixels, colour from 0 to 1, sort of shape, and size in pixels where it is told."""
        T = self.shape[0]
        constant: dict[str, Tensor] = {"colour": drawn.colour.to(torch.float32) / 255}
        if self.config.NAMED_SHAPES:
            constant["shape"] = self.pictures.sort[drawn.picture]
        if bool((drawn.size > 0).any()):
            constant["size"] = drawn.size.to(torch.float32) / UNIT
        position = drawn.place.permute(3, 0, 1, 2).to(torch.float32) / UNIT  # (T,N,K,2)
        return {"position": position, **{name: part.expand(T, *part.shape) for name, part in constant.items()}}

    def paint(self, drawn: Objects) -> Painted:
        groups, shade = self.overlaid(drawn)
        return Painted(self.colours(drawn, groups, shade), groups, torch.zeros_like(groups))

    def overlaid(self, objects: Objects) -> tuple[Tensor, Tensor | None]:
        """Groups and shades (N,T,H,W) uint8, each object on top of those before it; no shades where all is plain."""
        (T, _, H, W), N = self.shape, len(objects.key)
        groups = torch.zeros(N, T * H * W, dtype=torch.uint8, device=self.device)
        shade = None if self.config.plain else torch.zeros_like(groups)
        for group, pixel, cell, inside in self._layers(objects, T):
            _overlay(groups, pixel, inside, group)
            if shade is not None:
                _overlay(shade, pixel, inside, looked_up(self._surfaces, objects.surface[:, group - 1], cell))
        return groups.view(N, T, H, W), None if shade is None else shade.view(N, T, H, W)

    def enough_is_seen(self, objects: Objects, there: Tensor, share: float) -> Tensor:
        """Whether (N,) the first frame shows at least that share of each object that is there (N,K)."""
        H, W = self.shape[2:]
        enough = torch.ones_like(there)
        for rows in lots(len(there), H * W, _PAINTED[self.device.type]):
            some = select(objects, rows)
            top = torch.zeros(len(some.key), H * W, dtype=torch.uint8, device=self.device)
            areas = []
            for group, pixel, _, inside in self._layers(some, 1):
                areas.append(inside.sum(dim=1))
                _overlay(top, pixel, inside, group)
            seen = torch.stack([(top == k + 1).sum(dim=1) for k in range(there.shape[1])], dim=1)
            wanted = torch.stack(areas, dim=1).to(torch.float64) * share
            enough[rows] = seen >= wanted.ceil().clamp(min=1)
        return (enough | ~there).all(dim=1)

    def _layers(self, objects: Objects, frames: int) -> Iterator[tuple[int, Tensor, list[Tensor], Tensor]]:
        """Of each object its group, pixels and cells as `Pictures.patch` has them, and where it is (N,P)."""
        for k, which in enumerate(objects.picture.unbind(dim=1)):
            place, turn = objects.place[:, k, :, :frames], objects.turn[:, k]
            pixel, cell = self.pictures.patch(which, place, turn, self.shape[2:], self.config.reach)
            yield k + 1, pixel, cell, looked_up(self.pictures.cells, which, cell, rim=1).bool()

    def colours(self, objects: Objects, groups: Tensor, shade: Tensor | None) -> Tensor:
        """Frames (N,T,3,H,W) uint8 of what is seen at each pixel: an object in its colour and shade, or the ground."""
        (T, C, H, W), N, K = self.shape, len(objects.key), objects.picture.shape[1]
        planes = torch.empty(C, N, T, H, W, dtype=torch.uint8, device=self.device)
        first = torch.arange(N, device=self.device, dtype=torch.int32) * (K + 1)  # of a scene's colours
        pixel = groups.to(torch.int32).add_(first[:, None, None, None])
        one_colour = self.config.plain and self.config.ground in grounds.ONE_COLOUR
        behind = None if one_colour else grounds.paint_ground(objects.ground, H, W, *self._tables)  # (N,3,H,W)
        empty = None if behind is None else groups == 0
        bright = None if shade is None else shade.to(torch.int32)
        for channel in range(C):
            ground = objects.ground.colours[:, :1, channel].to(torch.uint8)
            palette = torch.cat([ground, objects.colour[:, :, channel]], dim=1).view(-1)
            seen = torch.index_select(palette, 0, pixel.view(-1), out=planes[channel].view(-1)).view(N, T, H, W)
            if bright is not None:
                seen.copy_(seen.to(torch.int32).mul_(bright).add_(128).mul_(257).bitwise_right_shift_(16))  # / 255
            if behind is not None and empty is not None:
                seen.copy_(torch.where(empty, behind[:, None, channel], seen))
        if shade is not None:
            planes = grounds.add_noise(planes, objects.key, objects.noise, self._noise)
        return planes.permute(1, 2, 0, 3, 4)


def _overlay(image: Tensor, pixel: Tensor, inside: Tensor, value: Tensor | int) -> None:
    """Paints a value or values (N,P) over images (N,Q) at the pixels (N,P) that are inside."""
    image.scatter_(1, pixel, torch.where(inside, value, image.gather(1, pixel)))
