"""Pictures in colour that fly: the paper's shapes, tetrominoes, handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.colour import ColourConfig, Drawn
from neural_em.data.config import Split, kind
from neural_em.data.digits import LEVELS, OfDigits, digit_sprites, digits_of
from neural_em.data.motion import UNIT, launch, reflect
from neural_em.data.painting import ONE
from neural_em.data.scenes import VELOCITIES
from neural_em.data.shapes import BITMAPS, bitmap
from neural_em.data.silhouettes import Pictures, blocks, from_bitmaps
from neural_em.fields import Check, choice

_TILE = 5  # pixels along a tile of a tetromino
_TETROMINOES = ("####", "## ##", "### .#.", ".## ##.", "##. .##", "### #..", "### ..#")  # each turned all ways
_SIX = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))


@dataclass(frozen=True, kw_only=True)
class FlyingColoursConfig(ColourConfig):
    """Upright pictures that fly in straight lines and bounce off the walls."""

    velocities: tuple[int, ...] = (-1, 0, 1)  # pixels per frame, drawn for each axis; ``[0]``: everything stands

    CHECKS: ClassVar[Mapping[str, Check]] = {"velocities": VELOCITIES}

    def draw(self, key: Tensor, pictures: Pictures) -> Drawn:
        """Each picture equally likely, its corner uniform over all places where it fits, as in flying shapes."""
        device = key.device
        picture = 1 + randomness.integers(key, self.most, len(pictures.box) - 1, stream=0)  # (N,K)
        box = pictures.box[picture]  # (N,K,2)
        room = torch.tensor([self.height, self.width], device=device) - box
        corner, velocity = launch(key, room, torch.tensor(self.velocities, device=device))
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
        return from_bitmaps([blocks(figure, _TILE) for figure in _tetrominoes()])

    def own_colours(self, key: Tensor) -> Tensor:
        table = torch.tensor(_SIX, dtype=torch.uint8, device=key.device)
        order = randomness.uniform(key, len(_SIX), stream=5).argsort(dim=1, stable=True)  # (N,6)
        return table[order[:, torch.arange(self.most, device=key.device) % len(_SIX)]]


@kind("coloured-digits")
@dataclass(frozen=True, kw_only=True)
class ColouredDigitsConfig(OfDigits, FlyingColoursConfig):
    """Handwritten digits, halved and cropped as in flying MNIST, of one random colour where the ink is above 0.25."""

    objects: int = 2
    height: int = 24
    width: int = 24
    digits: int | None = None  # as of flying MNIST
    mnist: str | None = None  # likewise

    NAMED_SHAPES: ClassVar[bool] = False

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


def _tetrominoes() -> Iterator[Tensor]:
    """Bitmaps of all ways in which the figures can lie."""
    for figure in _TETROMINOES:
        turned = [torch.rot90(bitmap(figure), turns) for turns in range(4)]
        yield from {str(each.tolist()): each for each in turned}.values()
