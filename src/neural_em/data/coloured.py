"""Pictures in colour that fly: the paper's shapes, tetrominoes, handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.colour import ColourConfig, Drawn
from neural_em.data.config import MAX_SIDE, Split, kind
from neural_em.data.digits import LEVELS, digit_sprites, digits_of
from neural_em.data.motion import UNIT, reflect
from neural_em.data.painting import ONE
from neural_em.data.shapes import BITMAPS
from neural_em.data.silhouettes import Pictures, blocks, from_bitmaps
from neural_em.fields import Check, choice, integer, optional, several, text

_TILE = 5  # pixels along a tile of a tetromino
_TETROMINOES = ("####", "##/##", "###/.#.", ".##/##.", "##./.##", "###/#..", "###/..#")  # each turned all ways
_SIX = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))


@dataclass(frozen=True, kw_only=True)
class FlyingColoursConfig(ColourConfig):
    """Upright pictures that fly in straight lines and bounce off the walls.

    Attributes:
        velocities: pixels per frame, drawn for each axis; all are equally likely. ``[0]``: everything stands.
    """

    velocities: tuple[int, ...] = (-1, 0, 1)

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "velocities": several(integer(-MAX_SIDE, MAX_SIDE), f"a list of integers from -{MAX_SIDE} to {MAX_SIDE}"),
    }

    def draw(self, key: Tensor, pictures: Pictures) -> Drawn:
        """Each picture equally likely, its corner uniform over all places where it fits, as in flying shapes."""
        K, device = self.most, key.device
        picture = 1 + randomness.integers(key, K, len(pictures.box) - 1, stream=0)  # (N,K)
        box = pictures.box[picture]  # (N,K,2)
        room = torch.tensor([self.height, self.width], device=device) - box
        table = torch.tensor(self.velocities, device=device)
        corner, velocity = (torch.stack(pair, dim=-1) for pair in zip(*(
            (randomness.integers(key, K, room[..., axis] + 1, stream=1 + axis),
             table[randomness.integers(key, K, len(table), stream=3 + axis)])
            for axis in (0, 1)
        ), strict=True))  # fmt: skip
        place = reflect(corner, velocity, room, self.frames) * UNIT + (box * (UNIT // 2))[..., None]
        upright = ONE * torch.eye(2, dtype=torch.int64, device=device)
        return Drawn(picture, upright.expand(*picture.shape, 2, 2), place, colour=self.own_colours(key))

    def own_colours(self, key: Tensor) -> Tensor | None:
        """Colours (N,K,3) of the objects where the kind chooses them; None: any that differ from the ground's."""
        return None


@kind("coloured-shapes")
@dataclass(frozen=True, kw_only=True)
class ColouredShapesConfig(FlyingColoursConfig):
    """The paper's three shapes, each of a random colour."""

    BOX: ClassVar[tuple[int, int]] = (7, 12)
    PIXELS: ClassVar[int] = 40

    def pictures(self, split: Split) -> Pictures:
        """Square, triangle, triangle upside down."""
        return from_bitmaps(BITMAPS)


@kind("tetrominoes")
@dataclass(frozen=True, kw_only=True)
class TetrominoesConfig(FlyingColoursConfig):
    """Figures of four tiles of 5 x 5 pixels in one of six colours on black, which do not hide each other.

    All 19 ways in which the seven figures can lie are equally likely. Up to six objects have different colours.
    """

    frames: int = 1
    height: int = 35
    width: int = 35
    visible: float = 1.0

    BOX: ClassVar[tuple[int, int]] = (20, 20)
    PIXELS: ClassVar[int] = 4 * _TILE * _TILE
    CHECKS: ClassVar[Mapping[str, Check]] = {"ground": choice(("black",))}

    def pictures(self, split: Split) -> Pictures:
        """The 19."""
        return from_bitmaps([blocks(bitmap, _TILE) for bitmap in _tetrominoes()])

    def own_colours(self, key: Tensor) -> Tensor:
        """The six in random order."""
        table = torch.tensor(_SIX, dtype=torch.uint8, device=key.device)
        order = randomness.uniform(key, len(_SIX), stream=5).argsort(dim=1, stable=True)  # (N,6)
        return table[order[:, torch.arange(self.most, device=key.device) % len(_SIX)]]


@kind("coloured-digits")
@dataclass(frozen=True, kw_only=True)
class ColouredDigitsConfig(FlyingColoursConfig):
    """Handwritten digits, halved and cropped as in flying MNIST, each of one random colour where its ink is above 0.25.

    Attributes:
        digits: draw only on the first so many training digits, in every split; ``None``: all digits.
        mnist: folder of MNIST's IDX files; ``None``: ``$NEM_MNIST``, the cache, or a download.
    """

    objects: int = 2
    height: int = 24
    width: int = 24
    digits: int | None = None
    mnist: str | None = None

    BOX: ClassVar[tuple[int, int]] = (14, 14)
    PIXELS: ClassVar[int] = 49
    NAMED_SHAPES: ClassVar[bool] = False
    CHECKS: ClassVar[Mapping[str, Check]] = {"digits": optional(integer(1, 10**6)), "mnist": optional(text)}

    def pictures(self, split: Split) -> Pictures:
        """The digits of the split that have any ink."""
        digits = digits_of(split, self.digits, self.mnist, "before")
        sprites = digit_sprites(digits, True, 0.5, 0.5)
        inked = torch.from_numpy(digits > LEVELS // 4)  # at 0.5 thin strokes fall to pieces
        kept = inked.flatten(1).any(dim=1)
        cells = torch.nn.functional.pad(inked[kept].to(torch.uint8), (1, 1, 1, 1))
        box = torch.stack([sprites.height, sprites.width], dim=1)[kept]
        cells, box = (torch.cat([torch.zeros_like(part[:1]), part]) for part in (cells, box))  # the empty one first
        return Pictures(cells, box, torch.zeros(len(cells), dtype=torch.int64))

    def note(self) -> str:
        """Where the splits share their digits."""
        if self.digits is None:
            return ""
        return f"validation and test draw on the same {self.digits} digits as training"

    def without_paths(self) -> ColouredDigitsConfig:
        """Without the folder of MNIST."""
        return replace(self, mnist=None)


def _tetrominoes() -> Iterator[Tensor]:
    """Bitmaps of all ways in which the figures can lie."""
    for figure in _TETROMINOES:
        bitmap = torch.tensor([[tile == "#" for tile in row] for row in figure.split("/")], dtype=torch.uint8)
        seen: list[Tensor] = []
        for turns in range(4):
            turned = torch.rot90(bitmap, turns)
            if not any(torch.equal(turned, other) for other in seen):
                seen.append(turned)
        yield from seen
