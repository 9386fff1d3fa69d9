"""A sequence as a moving picture: the input, the assignment and each component side by side, as GIF or MP4."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.spatial import cKDTree

from neural_em.errors import refuse, unknown
from neural_em.files import replacing
from neural_em.report.attention import attention_rgb
from neural_em.report.colours import LIMIT, Pixels, distinct, palette
from neural_em.report.movie import Mp4
from neural_em.report.panels import SequenceReport, framed, magnification_for, magnify

TARGET = 140  # screen pixels of a panel's longer side, unless a magnification is given
GAP = 10
GROUND, EDGE, INK = (24, 26, 30), (96, 100, 108), (214, 217, 222)
MARK = (230, 159, 0)  # around the panels of a step without input
CAPTION = 13  # pixels of the captions' letters


def animation_frames(sequence: SequenceReport, magnification: int | None = None, captions: bool = True) -> list[Pixels]:
    """The pictures of the animation, one a step, each (H',W',3) of the same size.

    Where the attention is known, it stands beside the assignment, and the components below.
    """
    factor = magnification or magnification_for(max(sequence.frames.shape[2:]), TARGET)
    colours = palette(sequence.components)
    strips, components = {**sequence.frames_rgb(), "assignment": sequence.assignment_rgb()}, sequence.component_rgb()
    lines = None if sequence.attention is None else attention_rgb(sequence, factor)
    pictures = []
    for t in range(sequence.steps):
        without_input = t >= sequence.steps - sequence.rollout
        edge = MARK if without_input else EDGE
        panels = [framed(magnify(strip[t], factor), edge) for strip in strips.values()]
        panels += [framed(magnify(components[t, k], factor), colours[k]) for k in range(sequence.components)]
        names = [*strips, *(f"component {k + 1}" for k in range(sequence.components))]
        names[0] = f"own prediction, {sequence.step_name(t + 1)}" if without_input else f"input, step {t + 1}"
        if lines is None:
            pictures.append(side_by_side(panels, names if captions else None))
            continue
        panels.insert(len(strips), framed(lines[t], edge))
        names.insert(len(strips), "attention")
        above = len(strips) + 1
        pictures.append(_below(*(
            side_by_side(panels[part], names[part] if captions else None) for part in (slice(above), slice(above, None))
        )))  # fmt: skip
    return pictures


def _below(above: Pixels, below: Pixels) -> Pixels:
    """Two pictures one below the other, on one ground."""
    canvas: Pixels = np.empty((len(above) + len(below), max(above.shape[1], below.shape[1]), 3), np.uint8)
    canvas[:] = GROUND
    canvas[: len(above), : above.shape[1]] = above
    canvas[len(above) :, : below.shape[1]] = below
    return canvas


def save_animation(
    sequence: SequenceReport,
    path: str | os.PathLike[str],
    magnification: int | None = None,
    fps: float = 5.0,
    captions: bool = True,
) -> Path:
    """Writes the sequence as GIF or MP4, by the path's suffix.

    Args:
        sequence: what to show.
        path: ending in .gif or .mp4; MP4 needs the package's extra 'video'.
        magnification: screen pixels a pixel.
        fps: steps a second.
        captions: whether to write each panel's name below it.
    """
    path = Path(path)
    if not 0.1 <= fps <= 50:
        refuse("fps", "a number from 0.1 to 50", fps)
    writers = {"gif": _write_gif, "mp4": _write_mp4}
    kind = path.suffix.lower().lstrip(".")
    if kind not in writers:
        unknown(f"{path}: format of an animation", kind, writers)
    pictures = animation_frames(sequence, magnification, captions)
    with replacing(path, make_folder=True) as temporary:
        writers[kind](temporary, pictures, fps)
    return path


def side_by_side(panels: list[Pixels], names: list[str] | None) -> Pixels:
    """Panels (H,W,3) of one size in a row, each with its name below it where it has the room."""
    height, width, _ = panels[0].shape
    below = GAP + CAPTION + GAP // 2 if names else GAP
    canvas: Pixels = np.empty((GAP + height + below, GAP + (width + GAP) * len(panels), 3), np.uint8)
    canvas[:] = GROUND
    for index, panel in enumerate(panels):
        left = GAP + index * (width + GAP)
        canvas[GAP : GAP + height, left : left + width] = panel
    if not names:
        return canvas
    image = Image.fromarray(canvas)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(CAPTION)
    for index, name in enumerate(names):
        centre = GAP + index * (width + GAP) + width / 2
        # below a narrow panel only the number fits, or nothing
        for text in (name, name.rpartition(" ")[2]):
            if draw.textlength(text, font) <= width:
                draw.text((centre, GAP + height + GAP // 2), text, INK, font, anchor="ma")
                break
    return np.asarray(image)


def _write_gif(path: Path, pictures: list[Pixels], fps: float) -> None:
    images = _indexed(pictures)
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0, optimize=False, disposal=1
    )


def _indexed(pictures: list[Pixels]) -> list[Image.Image]:
    """The pictures over one palette, so that nothing flickers: exact up to 256 colours in all, else the nearest.

    The ground, the frames, black, white and the components' colours are exact in any case.
    """
    colours, index = distinct(np.stack(pictures))
    table = colours
    if len(colours) > 256:
        kept = np.concatenate([[GROUND, EDGE, INK, MARK, (0, 0, 0), (255, 255, 255)], palette(LIMIT)]).astype(np.uint8)
        kept = kept[(kept[:, None] == colours[None]).all(-1).any(-1)]  # only those that occur
        reduced = Image.fromarray(colours[None]).quantize(256 - len(kept), Image.Quantize.MEDIANCUT)
        rest = np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)
        table = np.concatenate([kept, rest])
    nearest = np.asarray(cKDTree(table.astype(np.float64)).query(colours.astype(np.float64))[1])
    images = [Image.fromarray(one, "P") for one in nearest[index].astype(np.uint8)]
    for image in images:
        image.putpalette(table.tobytes())
    return images


def _write_mp4(path: Path, pictures: list[Pixels], fps: float) -> None:
    movie = Mp4(path, fps, coarseness=12, preset="slow")  # few pictures of flat colours: nearly exact is still small
    try:
        for picture in pictures:
            movie.add(picture)
    finally:
        movie.close()
