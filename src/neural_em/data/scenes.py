"""Scenes of moving objects: where the objects of a sequence are, and painting them.

A sequence is a pure function of (seed, split, index), in integer arithmetic throughout: the same on every device, in
any chunk, in any process. No sequence is in two splits, whatever the seeds: the image of the first frame decides which
split a scene belongs to, and a split draws again until the scene is its own. Scenes of a single object are the
exception: there are so few (1,232 images of one shape) that dividing them would leave places where no object ever is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from neural_em import randomness
from neural_em.data.config import MAX_OBJECTS, MAX_SIDE, SPLITS, Split
from neural_em.data.generated import DrawnScenes, Painted, SceneConfig
from neural_em.data.motion import launch, reflect
from neural_em.errors import refuse
from neural_em.fields import Check, choice, integer, several

_SCENE, _PARTITION = 0x5CE9E, 0x0A371  # keep these numbers apart from every other use of a seed
_ATTEMPTS = 256  # a split owns a quarter of the scenes or more: failing this often by chance has odds of 1e-32
_SHARED = 128  # stands for "two objects or more" among the labels while painting; one bit, above all labels
_CODE_BITS = 18  # 4096 x 4096 pixels of 1,020 levels still add up to less than 2^53
# pixels painted at a time, of first frames while placing and of whole sequences: on a CPU they stay in its cache
_PLACED = {"cpu": 2048 * 28 * 28, "cuda": 16_384 * 28 * 28}
_PAINTED = {"cpu": 256 * 21 * 28 * 28, "cuda": 4096 * 21 * 28 * 28}


Overlap = Literal["maximum", "sum", "hide"]
VELOCITIES = several(integer(-MAX_SIDE, MAX_SIDE), f"a list of integers from -{MAX_SIDE} to {MAX_SIDE}")


@dataclass(frozen=True, kw_only=True)
class FlyingConfig(SceneConfig):
    """Pictures that fly in straight lines and bounce off the walls."""

    velocities: tuple[int, ...] = (-1, 0, 1)  # pixels per frame, drawn for each axis; all are equally likely
    # how values combine where objects overlap: the ``maximum``, their ``sum`` cut at 1, or the later one ``hide``s the
    # earlier; hidden pixels count as the later one's, otherwise shared ones are not scored
    overlap: Overlap = "maximum"

    CHECKS: ClassVar[Mapping[str, Check]] = {"velocities": VELOCITIES, "overlap": choice(("maximum", "sum", "hide"))}


@dataclass(frozen=True)
class Sprites:
    """S pictures that can be painted, each a list of P pixels; the lists are padded by repeating a pixel."""

    rows: Tensor  # (S,P) int32 or int64, counted from the picture's top left corner
    columns: Tensor
    values: Tensor  # (S,P) int16 in [0, levels]
    height: Tensor  # (S,) int64
    width: Tensor
    levels: int  # the value that stands for 1.0
    threshold: int  # a pixel belongs to the object where its value is above this,
    overlap_above: int  # and no other object's is above this, which is at most the threshold

    def to(self, device: torch.device | str) -> Sprites:
        parts = ("rows", "columns", "values", "height", "width")
        return replace(self, **{name: getattr(self, name).to(device) for name in parts})


class Placement(NamedTuple):
    """N scenes of K objects: which sprite, its corner at frame 0, its velocity and its room, as (row, column)."""

    sprite: Tensor  # (N,K)
    corner: Tensor  # (N,K,2)
    velocity: Tensor  # (N,K,2)
    room: Tensor  # (N,K,2)


class Scenes(DrawnScenes[Placement]):
    """All sequences of one split under one seed; ``sprites`` are those that the split may draw on."""

    most_painted = _PAINTED

    def __init__(
        self, config: FlyingConfig, sprites: Sprites, split: Split, seed: int, device: torch.device | str
    ) -> None:
        super().__init__(config, split, seed, device)
        self.objects, self.overlap = config.objects, config.overlap
        self.frames, _, self.height, self.width = self.shape
        self.most_drawn = max(1, _PLACED.get(self.device.type, _PLACED["cpu"]) // (self.height * self.width))
        self.sprites = sprites.to(self.device)
        self._offsets = self.sprites.rows * self.width + self.sprites.columns  # (S,P)
        self.levels = sprites.levels
        self.dtype = torch.uint8 if self.levels < 256 else torch.int16
        self.velocities = torch.tensor(config.velocities, device=self.device)
        pixels = torch.arange(self.height * self.width, device=self.device)
        codes = randomness.keys(_PARTITION, pixels, device=self.device) & ((1 << _CODE_BITS) - 1)
        self._pixel_codes = codes.to(torch.float64)  # (H*W,)

    def draw(self, indices: Tensor) -> Placement:
        """The scenes at a few indices (N,), drawn until each belongs to the split."""
        placed = self._draw(indices, torch.zeros(1, dtype=torch.int64, device=self.device))
        if self.objects == 1:
            return placed
        pending = (~self._is_mine(placed)).nonzero()[:, 0]
        attempt, most = 1, min(self.most_drawn, max(256, len(indices)))
        while len(pending) and attempt < _ATTEMPTS:
            # the fewer are left, the more attempts at once; the first that succeeds counts
            attempts = torch.arange(attempt, attempt + max(1, most // len(pending)), device=self.device)
            draft = self._draw(indices[pending], attempts)
            mine = self._is_mine(draft).view(len(pending), len(attempts))
            first = torch.where(mine, attempts - attempt, len(attempts)).amin(dim=1)
            found = (first < len(attempts)).nonzero()[:, 0]
            rows = found * len(attempts) + first[found]
            for done, new in zip(placed, draft, strict=True):
                done[pending[found]] = new[rows]
            pending = pending[first == len(attempts)]
            attempt += len(attempts)
        if len(pending):
            wanted = f"room for scenes that differ between {', '.join(SPLITS)}"
            refuse("height x width", wanted, f"{self.height} x {self.width}")
        return placed

    def described(self, drawn: Placement) -> dict[str, Tensor]:
        """Position of the objects' centres, in pixels, and which of the few pictures they are."""
        sprite, corner, velocity, room = drawn
        box = torch.tensor([self.height, self.width], device=self.device) - room  # (N,K,2)
        path = reflect(corner, velocity, room, self.frames).permute(3, 0, 1, 2)  # (T,N,K,2)
        known = {"position": path + box / 2}
        few = len(self.sprites.values) <= MAX_OBJECTS  # of many digits, nobody can tell which one it is
        return {**known, "shape": sprite.expand(self.frames, *sprite.shape)} if few else known

    def _draw(self, indices: Tensor, attempts: Tensor) -> Placement:
        """Each of the attempts (A,) at each of the scenes (N,): N * A placements."""
        key = randomness.keys(self.seed, _SCENE, self.split, indices[:, None], attempts, device=self.device).flatten()
        count, sprites = self.objects, self.sprites
        sprite = randomness.integers(key, count, len(sprites.values), stream=0)  # (N,K)
        frame = torch.tensor([self.height, self.width], device=self.device)
        box = torch.stack([sprites.height[sprite], sprites.width[sprite]], dim=-1)
        room = frame - box  # (N,K,2)
        return Placement(sprite, *launch(key, room, self.velocities), room)

    def _is_mine(self, placement: Placement) -> Tensor:
        """Which scenes belong to the split (N,): a half of all to training, a quarter each to validation and test."""
        first = self.paint(placement, 1).frames.flatten(1)  # (N, H*W)
        code = (first.to(torch.float64) @ self._pixel_codes).to(torch.int64)  # exact: all sums are below 2^53
        quarter = randomness.keys(_PARTITION, code, device=self.device) & 3
        owner = (quarter - 1).clamp(min=0)
        return owner == self.split

    def paint(self, drawn: Placement, frames: int | None = None) -> Painted:
        """Paints a few scenes, or their first so many frames."""
        sprite, corner, velocity, room = drawn
        (N, K), frames = sprite.shape, frames or self.frames
        shape = (N, frames, self.height, self.width)
        path = reflect(corner, velocity, room, frames)  # (N,K,2,T)
        origin = path[:, :, 0] * self.width + path[:, :, 1]
        origin += torch.arange(frames, device=self.device) * (self.height * self.width)
        label = torch.zeros(N, frames * self.height * self.width, dtype=torch.uint8, device=self.device)
        image = torch.zeros_like(label, dtype=torch.int16) if self.levels > 1 else None
        # what is above overlap_above is painted; of that only what is above the threshold too belongs to an object
        inside = torch.zeros_like(label) if self.sprites.overlap_above < self.sprites.threshold else None
        top = torch.zeros_like(label) if self.overlap == "hide" else None  # the last object painted
        for k in range(K):
            offset, value = self._offsets[sprite[:, k]], self.sprites.values[sprite[:, k]]  # (N,P)
            where = (origin[:, k, :, None] + offset[:, None]).flatten(1)  # (N, T*P)
            # a list's repeated pixels read and write the same, so their order does not matter
            below = label.gather(1, where)
            above = below.clamp(max=1).mul_(_SHARED - (k + 1)).add_(k + 1)  # k + 1 on nothing, else _SHARED
            if image is not None or top is not None:
                value = value[:, None].expand(-1, frames, -1).flatten(1)  # (N, T*P)
            if image is not None:
                above = torch.where(value > self.sprites.overlap_above, above, below)
                if inside is not None:
                    is_inside = (value > self.sprites.threshold).to(torch.uint8)
                    inside.scatter_(1, where, inside.gather(1, where).bitwise_or_(is_inside))
                self._blend(image, where, value)
            if top is not None:
                top.scatter_(1, where, torch.where(value > self.sprites.threshold, k + 1, top.gather(1, where)))
            label.scatter_(1, where, above)
        # clamp and bit operations: comparing bytes with a number is some twenty times slower on a CPU
        frame = label.clamp(max=1) if image is None else image
        overlaps = label.bitwise_right_shift(_SHARED.bit_length() - 1)
        groups = label.bitwise_and_(_SHARED - 1) if top is None else top
        groups = groups if inside is None else groups.mul_(inside)
        return Painted(frame.view(shape).unsqueeze(2), groups.view(shape), overlaps.view(shape))

    def _blend(self, image: Tensor, where: Tensor, value: Tensor) -> None:
        """Paints values (N,P) over an image (N,Q) at the pixels ``where`` (N,P)."""
        below = image.gather(1, where)
        if self.overlap == "sum":
            blended = (below + value).clamp_(max=self.levels)
        elif self.overlap == "hide":  # the grey rim lets through what is brighter
            blended = torch.where(value > self.sprites.threshold, value, torch.maximum(below, value))
        else:
            blended = torch.maximum(below, value)
        image.scatter_(1, where, blended)
