"""Static and flying shapes: squares, triangles and upside-down triangles on black."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neural_em.data.config import Split, kind
from neural_em.data.generated import generate
from neural_em.data.scenes import FlyingConfig, Scenes, Sprites
from neural_em.errors import NeuralEMError
from neural_em.fields import Check, choice, integer


def bitmap(picture: str) -> Tensor:
    """Rows of # and ., separated by spaces or line ends, as ones and zeros (height, width) uint8."""
    return torch.tensor([[pixel == "#" for pixel in row] for row in picture.split()], dtype=torch.uint8)


SQUARE = bitmap("""
#######
#######
##...##
##...##
##...##
#######
#######
""")
TRIANGLE = bitmap("""
.....##.....
....####....
...######...
..###..###..
.###....###.
############
############
""")
BITMAPS: tuple[Tensor, ...] = (SQUARE, TRIANGLE, TRIANGLE.flip(0))


@kind("flying-shapes")
@dataclass(frozen=True, kw_only=True)
class FlyingShapesConfig(FlyingConfig):
    """Three shapes on black, white on white where they overlap."""

    BOX: ClassVar[tuple[int, int]] = (7, 12)
    PIXELS: ClassVar[int] = 40
    CHECKS: ClassVar[Mapping[str, Check]] = {"overlap": choice(("maximum", "hide"))}

    @property
    def background(self) -> bool:  # type: ignore[override]
        return self.overlap == "hide"

    def scenes(self, split: Split, seed: int, device: torch.device | str = "cpu") -> Scenes:
        lists = [bitmap.nonzero() for bitmap in BITMAPS]
        most = max(len(pixels) for pixels in lists)
        rows, columns = torch.stack([torch.cat([p, p[:1].expand(most - len(p), 2)]) for p in lists]).unbind(dim=2)
        height, width = torch.tensor([bitmap.shape for bitmap in BITMAPS]).unbind(dim=1)
        values = torch.ones(len(BITMAPS), most, dtype=torch.int16)
        sprites = Sprites(rows, columns, values, height, width, levels=1, threshold=0, overlap_above=0)
        return Scenes(self, sprites, split, seed, device)


@kind("static-shapes")
@dataclass(frozen=True, kw_only=True)
class StaticShapesConfig(FlyingShapesConfig):
    """Single images: the first frames of flying shapes."""

    frames: int = 1

    CHECKS: ClassVar[Mapping[str, Check]] = {"frames": integer(1, 1)}

    def check_together(self) -> None:
        super().check_together()
        if self.velocities != FlyingConfig.velocities:
            raise NeuralEMError(f"velocities is for a kind that moves, not for {self.kind!r}")


def flying_shapes(
    num: int, objects: int = 3, frames: int = 21, seed: int = 0, split: Split = "training",
    device: torch.device | str = "cpu", start: int = 0, dtype: torch.dtype = torch.float32, **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of shapes that fly in straight lines and bounce off the walls.

    Each shape is drawn uniformly of three, with replacement; its corner uniformly over all places where it fits; its
    velocity uniformly, for each axis. The image is the union of the shapes: none hides another.

    Args:
        num: How many sequences.
        objects: Shapes in each.
        frames: Frames in each.
        seed: Together with the split and its index, names a sequence, the same on every device.
        split: "training", "validation" or "test"; they share no sequence, even under different seeds, unless there
            is one shape only.
        device: Where to make them.
        start: Index of the first sequence.
        dtype: Of the frames, whose values are 0 and 1; uint8 needs a quarter of the memory.
        fields: ``height`` and ``width`` of a frame, 28 pixels; ``velocities``, what each axis's velocity is drawn from,
            in pixels per frame; ``overlap="hide"`` lets later shapes hide earlier ones.

    Returns:
        Frames (T,N,1,H,W), and groups (T,N,H,W) uint8: 1 .. objects, 0 where no shape or more than one is.
    """
    return generate("flying-shapes", num, seed, split, device, start, dtype, objects=objects, frames=frames, **fields)


def static_shapes(
    num: int, objects: int = 3, seed: int = 0, split: Split = "training", device: torch.device | str = "cpu",
    start: int = 0, dtype: torch.dtype = torch.float32, **fields: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Images of shapes: the first frames of :func:`flying_shapes`, with the same arguments and T = 1."""
    return generate("static-shapes", num, seed, split, device, start, dtype, objects=objects, **fields)
