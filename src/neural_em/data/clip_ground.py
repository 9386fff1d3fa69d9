"""The ground of a clip from a fixed camera, learned from the clip itself, and what stands out from it.

Frames are looked at a few times larger than the model sees them, however large they are and however many: that bounds
memory and still gives sharp edges. Shapes: frames (C,H,W), samples (N,C,H,W), in [0, 1].
"""

import colorsys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from neural_em.data.fitting import Fitting
from neural_em.data.images import read_image
from neural_em.data.sources import Source
from neural_em.errors import refuse
from neural_em.files import existing

Picture = NDArray[np.float32]
Mask = NDArray[np.bool_]
LARGEST_SIDE = 128  # of the frames that are looked at, unless the model's are larger
SAMPLES, LOOKED_AT = 50, 4000  # frames that the ground is learned from; frames to choose them from
FEW = 8  # frames that say too little
_LEAST = 0.05  # a difference that no camera makes visible
_FLAT, _MOVING, _STILL = 0.8, 0.6, 0.001  # shares of pixels, see `choose`
# of a ground of one colour: the share of frames in which a pixel shows it, and of all pixels that show it, at least
_OFTEN, _COMMON = 0.15, 0.4
_EDGE = 0.4  # of the contrast around a pixel
# compression: its block; what differs so clearly that it leaves something around it; the share that says how much
_BLOCK, _CLEAR, _MOST = 8, 0.3, 0.9
_SWEEPS = 4  # through the samples: what is left of a ghost is smaller each time
_SMALL, _LARGE, _MUCH = 0.002, 0.25, 0.4  # of the picture: objects that are looked for in the ground; all of them
# what `choose` says of clips whose ground is not taken away
CLEAR = "none: the frames are black and white already"
FEWER = f"none: it takes {FEW} frames to learn it"
STILL = "none: nothing moves in front of it"
_SHAPE = 0.01  # that a picture of the empty scene may be wider or higher than the clip
_HUES = ("red", "orange", "yellow", "green", "green", "green", "cyan", "blue", "blue", "purple", "pink", "pink")
_SHADE = (0.4, 1.6)  # how bright a shadow leaves the ground, at least; how bright it is without, at most


@dataclass(frozen=True)
class Ground:
    """What the scene is without its objects.

    Attributes:
        kind: ``median``, ``flat`` or ``file``.
        picture: (C,H,W), in colour where the clip is.
        tolerance: (H,W): what differs by no more is noise.
        ringing: what differs by no more near something that differs much more is what compression leaves around it.
    """

    kind: str
    picture: Picture
    tolerance: Picture
    ringing: float = 0.0

    def foreground(self, frame: Picture) -> tuple[Mask, Mask]:
        """Where (H,W) a frame shows something else than the ground, and where only a shadow lies on it."""
        distance = np.abs(frame - self.picture).max(axis=0)
        # an edge is where half of the contrast is reached, however large that is
        other = distance > np.maximum(self.tolerance, _EDGE * ndimage.maximum_filter(distance, 3))
        if self.ringing:
            other &= (distance > self.ringing) | ~_rings(distance, 2 * self.ringing, 2)
        shadow = other & self._shaded(frame)
        patches, count = ndimage.label(other & ~shadow, np.ones((3, 3)))
        sizes = np.bincount(patches.ravel(), minlength=count + 1)
        fewest = _SMALL * patches.size if self.ringing else max(1, patches.size // 2000)
        return (patches > 0) & (sizes[patches] > fewest), shadow

    def _shaded(self, frame: Picture) -> Mask:
        """Where a frame has the ground's own colour, only darker, or brighter where a shadow was learned with it.

        A grey frame cannot tell a shadow from an object, whether it has one channel or three.
        """
        bright = (self.picture**2).sum(axis=0)
        if np.ptp(frame, axis=0).max() <= _LEAST:
            return np.zeros(frame.shape[1:], np.bool_)
        share = (frame * self.picture).sum(axis=0) / np.maximum(bright, 1e-6)
        rest = np.abs(frame - share * self.picture).max(axis=0)
        return (bright > 0.03) & (share > _SHADE[0]) & (share < _SHADE[1]) & (rest <= self.tolerance)

    def removed(self, frame: Picture, fitting: Fitting, prior: float | str, there: Mask | None = None) -> Picture:
        """What a model sees of a frame: its foreground, on what the model takes for nothing.

        Binary: the mask itself. A model with the image's own prior: the foreground as it is, on the ground's most
        common colour. Others: how far the foreground is from the ground, on the prior. ``there`` is the foreground,
        where it is known.
        """
        there = self.foreground(frame)[0] if there is None else there
        size = (fitting.height, fitting.width)
        if fitting.channels == "binary":
            return (_reduced(there[None].astype(np.float32), size) >= 0.5).astype(np.float32)
        if isinstance(prior, str):
            common = np.median(self.picture, axis=(1, 2), keepdims=True)
            return _depth(_reduced(np.where(there, frame, common), size), fitting.depth)
        difference = np.where(there, np.abs(frame - self.picture), 0)
        return np.clip(prior + _depth(_reduced(difference, size), fitting.depth), 0, 1).astype(np.float32)


def looked_at(fitting: Fitting, colour: bool, size: tuple[int, int]) -> Fitting:
    """How to look at frames of a size (H',W'): in colour where they are, a whole number of times larger than fitted."""
    H, W = fitting.height, fitting.width
    factor = max(1, min(size[0] // H, size[1] // W, LARGEST_SIDE // max(H, W)))
    factor = 1 if fitting.fit in ("none", "crop") else factor
    return Fitting(H * factor, W * factor, "colour" if colour else "grey", fitting.fit)


def _reduced(frame: Picture, size: tuple[int, int]) -> Picture:
    """A frame (C,H,W) whose size is a whole number of times this one, as the means of blocks."""
    C, H, W = frame.shape
    return frame.reshape(C, size[0], H // size[0], size[1], W // size[1]).mean(axis=(2, 4))


def _depth(frame: NDArray[Any], depth: int) -> Picture:
    """A frame with so many channels: grey by its strongest one, colour by repetition."""
    if len(frame) == depth:
        return frame.astype(np.float32)
    return (frame.max(axis=0, keepdims=True) if depth == 1 else np.repeat(frame, depth, axis=0)).astype(np.float32)


def sampled(frames: Iterable[Picture]) -> Picture:
    """At most `SAMPLES` of the first `LOOKED_AT` frames, evenly spaced, in one pass: (N,C,H,W)."""
    kept: list[Picture] = []
    every = 1
    for position, frame in enumerate(frames):
        if position >= LOOKED_AT:
            break
        if position % every == 0:
            kept.append(frame)
        if len(kept) > SAMPLES:  # only every second one of those so far
            kept, every = kept[::2], every * 2
    return np.stack(kept)


def of_clip(kind: str, clip: Source, fitting: Fitting) -> tuple[Ground, Fitting]:
    """The ``median`` or ``flat`` ground of a whole clip, and how to look at its frames for it."""
    samples, look = seen_samples(clip, fitting)
    learned = learn(samples)
    return learned if kind == "median" else flat(samples, learned)[0], look


def seen_samples(clip: Source, fitting: Fitting) -> tuple[Picture, Fitting]:
    """Samples of a whole clip, and how they are looked at."""
    (first,) = clip.take([0])
    look = looked_at(fitting, clip.colour, (first.shape[0], first.shape[1]))
    return sampled(look.unit_frame(frame, clip.frame_name(i)) for i, frame in enumerate(clip)), look


def learn(samples: Picture) -> Ground:
    """The ground as what each pixel is most often, however much moves in front of it, without ghosts."""
    noise = min(_noise(samples), _LEAST)  # more is motion
    near, least = max(_LEAST, 4 * noise), max(_LEAST, 5 * noise)
    picture = _most_common(samples, near)
    _take_ghosts_away(samples, picture, near, least)
    difference = np.abs(samples - picture).max(axis=1)
    own = np.where(difference <= near, difference, np.nan)  # the ground alone, without what passes
    with np.errstate(all="ignore"):
        spread = np.nan_to_num(1.4826 * np.nanmedian(own, axis=0))
    tolerance = np.maximum(least, 4 * spread).astype(np.float32)
    return Ground("median", picture, tolerance, _ringing(difference))


def _ringing(difference: Picture) -> float:
    """How far compressed pixels near objects are from the ground (N,H,W); 0 where they are hardly farther than others.

    Objects are left out as far as they can be: what differs visibly, and as many pixels as `_MOST` leaves.
    """
    near = np.stack([_rings(each, _CLEAR) for each in difference])
    far = ~np.stack([_rings(each, _CLEAR, 2) for each in difference])
    faint = difference <= 2 * _LEAST
    usual, noise = (
        float(np.quantile(difference[where], _MOST)) if where.any() else 0.0 for where in (near & faint, far & faint)
    )
    most = 2.5 * usual
    return min(most, 3 * _LEAST) if most > _LEAST and usual > 2 * noise else 0.0


def _rings(distance: Picture, clear: float, blocks: int = 1) -> Mask:
    """Where (H,W) compression shows: at most so many of its blocks from what is clearly not ground."""
    return ndimage.maximum_filter(distance, 2 * blocks * _BLOCK + 1) > clear


def _take_ghosts_away(samples: Picture, picture: Picture, near: float, tolerance: float) -> None:
    """Mends a ground (C,H,W) in place where an object stood for most of the clip, but not all of it.

    While such an object is away, some samples in a row all differ from the ground there; the ground has an outline
    around that place, and they have none. Where much of the picture differs, the light changes or the camera moves.
    """
    few = max(3, len(samples) // 8)
    for _ in range(_SWEEPS):
        mended = False
        for first in range(len(samples) - few + 1):
            part = samples[first : first + few]
            patches, _ = ndimage.label((np.abs(part - picture).max(axis=1) > tolerance).all(axis=0))
            sizes = np.bincount(patches.ravel()) / patches.size
            if 1 - sizes[0] > _MUCH:
                continue
            places = ndimage.find_objects(patches)
            for patch in np.flatnonzero((sizes > _SMALL) & (sizes < _LARGE)).tolist():
                box = tuple(slice(max(0, side.start - 4), side.stop + 4) for side in places[patch - 1])
                inside = patches[box] == patch
                now = picture[:, *box]
                outline, seen = _outline(now, inside), part[:, :, *box]
                if outline > 2 * _LEAST and outline > 3 * _outline(np.median(seen, axis=0), inside):
                    now[:, inside], mended = _most_common(seen, near)[:, inside], True  # a view: in the picture
        if not mended:
            break


def _outline(picture: Picture, inside: Mask) -> float:
    """How much a picture (C,H,W) changes at the rim of a patch (H,W); 0 for a patch that fills it."""
    inner = inside & ~ndimage.binary_erosion(inside, iterations=2)
    outer = ndimage.binary_dilation(inside, iterations=3) & ~ndimage.binary_dilation(inside)
    if not outer.any():
        return 0.0
    return float(np.abs(picture[:, inner].mean(axis=1) - picture[:, outer].mean(axis=1)).max())


def flat(samples: Picture, ground: Ground) -> tuple[Ground, float]:
    """The ground as one colour, the clip's most common one; and how many of the pixels have it now and then."""
    few = samples[:: -(-len(samples) // 10)]
    pixels = few.transpose(0, 2, 3, 1).reshape(-1, few.shape[1], 1, 1)  # (P,C,1,1): pixels as samples
    colour = _most_common(pixels[:: -(-len(pixels) // 2048)], _LEAST)
    shown = (np.abs(samples - colour).max(axis=1) <= _LEAST).mean(axis=0)
    often = (shown >= _OFTEN) & (shown.mean() >= _COMMON)
    even = np.ascontiguousarray(np.broadcast_to(colour, ground.picture.shape), np.float32)
    tolerance = np.clip(ground.tolerance, 1.5 * _LEAST, 3 * _LEAST)
    return Ground("flat", even, tolerance, ground.ringing), float(often.mean())


def from_file(path: str, fitting: Fitting, size: tuple[int, int]) -> tuple[Ground, str]:
    """The ground as a picture of the empty scene, for frames of a size (H',W'), and what to say of it."""
    file, (H, W) = existing(path), size
    picture, said = read_image(Path(file)), path
    height, width = picture.shape[:2]
    if abs(height * W / (width * H) - 1) > _SHAPE:
        refuse(str(file), f"{H} x {W} pixels like the clip, or the same shape", f"{height} x {width}")
    if (height, width) != size:
        said += f", resized from {height} x {width} pixels"
        if fitting.fit in ("none", "crop"):  # which do not resize
            picture = Fitting(H, W, "colour", "resize").frame(picture, str(file)).transpose(1, 2, 0)
    seen = fitting.unit_frame(picture, str(file))
    return Ground("file", seen, np.full(seen.shape[1:], 2 * _LEAST, np.float32)), said


def colour_of(ground: Ground) -> str:
    """The colour of a flat ground, in words."""
    r, g, b = np.resize(ground.picture[:, 0, 0], 3).tolist()
    hue, _, value = colorsys.rgb_to_hsv(r, g, b)
    code = "#" + "".join(f"{round(255 * each):02x}" for each in (r, g, b))
    if value - min(r, g, b) < 0.1:  # hardly any colour
        return f"{('black', 'dark grey', 'grey', 'light grey', 'white')[round(4 * value)]} ({code})"
    return f"{'dark ' if value < 0.5 else ''}{_HUES[round(hue * len(_HUES)) % len(_HUES)]} ({code})"


def choose(samples: Picture, binary: bool = True) -> tuple[Ground | None, str]:
    """The ground that a clip asks for, if any, and why in a few words; ``binary`` is for a model of binary pixels."""
    if len(samples) < FEW:
        return None, FEWER
    black, white = float((samples < 0.05).mean()), float((samples > 0.95).mean())
    clear = binary and 1 - black - white < 0.5 * min(black, white) and white < 0.75
    ground = learn(samples)
    even, share = flat(samples, ground)
    changed = _changed(ground, samples)
    moves = changed >= _STILL or not clear  # the model may tell black and white figures apart that stand still
    if moves and share >= _FLAT and _changed(even, samples) <= _MOVING and not _camera_moves(samples, even):
        return even, f"flat: objects move on one colour, {colour_of(even)}"
    if clear:
        return None, CLEAR
    if changed > _MOVING or _camera_moves(samples):
        return None, "none: the camera moves, so the clip does not tell its ground"
    if changed < _STILL:
        return None, STILL
    return ground, f"median: the camera stands still ({changed:.0%} of the pixels are in front of the ground)"


def _changed(ground: Ground, samples: Picture) -> float:
    """The usual share of the pixels that are not ground."""
    return float(np.median([ground.foreground(frame)[0].mean() for frame in samples]))


def _camera_moves(samples: Picture, ground: Ground | None = None) -> bool:
    """Whether most samples fit the one before much better shifted as a whole; what is known to be in front left out."""
    grey = samples.mean(axis=1)
    grey = grey - ndimage.uniform_filter(grey, (0, 9, 9))  # where light comes from does not matter
    if ground is not None:
        front = [ndimage.binary_dilation(ground.foreground(frame)[0], iterations=5) for frame in samples]
        grey = np.where(front, 0, grey)
    moved = 0
    for before, after in pairwise(grey):
        match = np.fft.irfft2(np.fft.rfft2(before) * np.conj(np.fft.rfft2(after)), before.shape)
        shifted = np.roll(after, np.unravel_index(match.argmax(), match.shape), axis=(0, 1))
        change = np.abs(after - before).mean()
        moved += change > 0.002 and np.abs(shifted - before).mean() < 0.7 * change
    return moved > 0.5 * (len(grey) - 1)


def _noise(samples: Picture) -> float:
    """The deviation of a pixel that shows the same thing, from what changes between samples; most pixels count."""
    if len(samples) < 2:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(samples, axis=0))) / np.sqrt(2))


def _most_common(samples: Picture, near: float) -> Picture:
    """What each pixel (C,H,W) is most often: the median of the samples near to the one with most neighbours."""
    N, C, H, W = samples.shape
    pixels = samples.reshape(N, C, H * W).transpose(1, 0, 2)
    found = np.empty((C, H * W), np.float32)
    for first in range(0, H * W, 256):  # a block of pixels at a time bounds memory
        part = np.ascontiguousarray(pixels[:, :, first : first + 256])  # channels first: long rows are fast
        close = np.zeros((N, part.shape[2]), np.int64)
        for each in range(N):
            close[each] = (np.abs(part - part[:, each, None]).max(axis=0) <= near).sum(axis=0)
        centre = np.take_along_axis(part, close.argmax(axis=0)[None, None, :], axis=1)
        member = np.abs(part - centre).max(axis=0) <= near
        found[:, first : first + 256] = np.nanmedian(np.where(member, part, np.nan), axis=1)
    return found.reshape(C, H, W)
