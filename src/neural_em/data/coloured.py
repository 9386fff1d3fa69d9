"""Kinds of data in colour: upright pictures that fly, and geometric figures of any size and angle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.colour import ColourConfig
from neural_em.data.config import Split, kind
from neural_em.data.digits import LEVELS, OfDigits, digit_sprites, digits_of
from neural_em.data.grounds import SHADED, TEXTURED, surfaces
from neural_em.data.motion import HEADINGS, UNIT, directions, launch, reflect, wander
from neural_em.data.scenes import VELOCITIES
from neural_em.data.shapes import BITMAPS, bitmap
from neural_em.data.silhouettes import FAMILIES, GRID, ONE, Pictures, blocks, family_pictures, from_bitmaps
from neural_em.errors import NeuralEMError, refuse
from neural_em.fields import TINY, Check, choice, number, several

SURFACES = ("flat", "shaded", "textured", "mixed")
_SMALLEST = 3  # pixels
_MANY = ("ellipse", "polygon", "star", "letter", "blob", "ring")
_TILE = 5  # pixels along a tile of a tetromino
_TETROMINOES = ("####", "## ##", "### .#.", ".## ##.", "##. .##", "### #..", "### ..#")  # each turned all ways
_SIX = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))


@dataclass(frozen=True, kw_only=True)
class FlyingColoursConfig(ColourConfig):
    """Upright pictures that fly in straight lines and bounce off the walls."""

    velocities: tuple[int, ...] = (-1, 0, 1)  # pixels per frame, drawn for each axis; ``[0]``: everything stands

    CHECKS: ClassVar[Mapping[str, Check]] = {"velocities": VELOCITIES}

    def draw(self, key: Tensor, pictures: Pictures) -> dict[str, Tensor]:
        """Each picture equally likely, its corner uniform over all places where it fits, as in flying shapes."""
        device = key.device
        picture = 1 + randomness.integers(key, self.most, len(pictures.box) - 1, stream=0)  # (N,K)
        box = pictures.box[picture]  # (N,K,2)
        room = torch.tensor([self.height, self.width], device=device) - box
        corner, velocity = launch(key, room, torch.tensor(self.velocities, device=device))
        place = reflect(corner, velocity, room, self.frames) * UNIT + (box * (UNIT // 2))[..., None]
        upright = ONE * torch.eye(2, dtype=torch.int64, device=device)
        return {"picture": picture, "turn": upright.expand(*picture.shape, 2, 2), "place": place}


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
        turned = [torch.rot90(bitmap(figure), turns) for figure in _TETROMINOES for turns in range(4)]
        different = {str(figure.tolist()): figure for figure in turned}.values()
        return from_bitmaps([blocks(figure, _TILE) for figure in different])

    def draw(self, key: Tensor, pictures: Pictures) -> dict[str, Tensor]:
        """As flying pictures, in colours of their own."""
        table = torch.tensor(_SIX, dtype=torch.uint8, device=key.device)
        order = randomness.uniform(key, len(_SIX), stream=5).argsort(dim=1, stable=True)  # (N,6)
        colour = table[order[:, torch.arange(self.most, device=key.device) % len(_SIX)]]
        return {**super().draw(key, pictures), "colour": colour}


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


@kind("sprites")
@dataclass(frozen=True, kw_only=True)
class SpritesConfig(ColourConfig):
    """Ellipses, squares and hearts of any colour, size and angle."""

    objects: int = 1
    most_objects: int | None = 4
    height: int = 64
    width: int = 64
    shapes: tuple[str, ...] = ("ellipse", "square", "heart")  # the objects' families, equally likely: see `FAMILIES`
    smallest: float = 0.2  # object, measured across, in parts of the frame's shorter side
    largest: float = 0.4  # likewise
    speed: float = 2.0  # an object's, at most, in pixels a frame; any up to it, in any direction, is equally likely
    motion: str = "straight"  # or ``varied``: some stand, some fly straight, in curves, ever faster or ever slower
    surface: str = "flat"  # all in one colour; ``shaded``, lit from a side; ``textured``; or ``mixed``
    grey: float = 0.0  # the share of sequences without colour
    noise: float = 0.0  # the camera's: the largest deviation of a sequence's pixels, whose values go from 0 to 1

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "shapes": several(choice(FAMILIES), f"a list of {', '.join(FAMILIES)}"),
        **dict.fromkeys(("smallest", "largest"), number("a number above 0, at most 1", TINY, 1)),
        "speed": number("a number from 0 to 100", 0, 100),
        "motion": choice(("straight", "varied")),
        "surface": choice(SURFACES),
        **dict.fromkeys(("grey", "noise"), number("a number from 0 to 1", 0, 1)),
    }

    def check_together(self) -> None:
        super().check_together()
        if self.largest < self.smallest:
            raise NeuralEMError(f"largest={self.largest:g} is below smallest={self.smallest:g}")
        pixels = self.smallest * min(self.height, self.width)
        if pixels < _SMALLEST:
            refuse("smallest", f"{_SMALLEST} pixels or more, or nothing is seen", f"{pixels:g} pixels")
        if len(set(self.shapes)) != len(self.shapes):
            refuse("shapes", "each family once", list(self.shapes))

    @property
    def reach(self) -> int:
        return math.ceil(self.largest * min(self.height, self.width)) + 3

    def pictures(self, split: Split) -> Pictures:
        return family_pictures(self.shapes)

    def draw(self, key: Tensor, pictures: Pictures) -> dict[str, Tensor]:
        """The family, then one of its pictures; any size and angle; wholly inside the frame."""
        N, K, device = len(key), self.most, key.device
        _, counts = torch.unique_consecutive(pictures.sort[1:], return_counts=True)
        family = randomness.integers(key, K, len(counts), stream=0)  # (N,K)
        picture = 1 + (counts.cumsum(0) - counts)[family] + randomness.integers(key, K, counts[family], stream=1)
        side = min(self.height, self.width) * UNIT
        small, large = (int(part * side) for part in (self.smallest, self.largest))
        size = small + randomness.integers(key, K, large - small + 1, stream=2)
        sine, cosine = directions(device)[randomness.integers(key, K, HEADINGS, stream=3)].unbind(dim=-1)
        turn = torch.stack([cosine, sine, -sine, cosine], dim=-1).view(N, K, 2, 2) * (GRID * UNIT)
        turn = turn // size[..., None, None]
        room = torch.tensor([self.height, self.width], device=device) * UNIT - size[..., None]  # (N,K,2)
        start = torch.stack([randomness.integers(key, K, room[..., i] + 1, stream=4 + i) for i in (0, 1)], dim=-1)
        path = wander(key, start, room, self.frames, int(self.speed * UNIT), self.motion == "varied")
        return {"picture": picture, "turn": turn, "place": path + (size // 2)[..., None, None], "size": size}

    @property
    def plain(self) -> bool:  # type: ignore[override]
        return self.surface == "flat" and self.noise == 0

    def look(self, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A third of mixed surfaces is flat, a third shaded, a third textured."""
        grey = randomness.uniform(key, 1, stream=6)[:, 0] < self.grey
        sort = torch.full((len(key), self.most), SURFACES.index(self.surface), device=key.device)
        if self.surface == "mixed":
            sort = randomness.integers(key, self.most, 3, stream=7)
        shaded = SHADED + randomness.integers(key, self.most, TEXTURED - SHADED, stream=8)
        textured = TEXTURED + randomness.integers(key, self.most, len(surfaces()) - TEXTURED, stream=8)
        surface = torch.where(sort == 0, 0, torch.where(sort == 1, shaded, textured))
        noise = randomness.integers(key, 1, int(self.noise * 255 * 16) + 1, stream=9)[:, 0]
        return grey, surface, noise


@kind("objects")
@dataclass(frozen=True, kw_only=True)
class ObjectsConfig(SpritesConfig):
    """Objects of great variety, to learn from what an object is.

    To test on kinds of objects that were never seen, name some ``shapes`` in training and others in the test.
    """

    most_objects: int | None = 6
    ground: str = "mixed"
    shapes: tuple[str, ...] = _MANY
    smallest: float = 1 / 12
    largest: float = 1 / 2
    speed: float = 4.0
    motion: str = "varied"
    surface: str = "mixed"
    grey: float = 0.25
    noise: float = 0.05
