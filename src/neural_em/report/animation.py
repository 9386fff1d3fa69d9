"""A sequence as a moving picture: the input, the assignment and each component side by side, as GIF or MP4."""

import contextlib
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from neural_em.errors import refuse, unknown
from neural_em.files import replacing
from neural_em.report.attention import attention_rgb
from neural_em.report.colours import BLACK, WHITE, Pixels, palette
from neural_em.report.movie import KINDS, Gif, Movie, Mp4, colour_table
from neural_em.report.panels import SequenceReport, framed, magnification_for, magnify

TARGET = 140  # screen pixels of a panel's longer side, unless a magnification is given
GAP = 10
GROUND, EDGE, INK = (24, 26, 30), (96, 100, 108), (214, 217, 222)
MARK = (230, 159, 0)  # around the panels of a step without input
CAPTION = 13  # pixels of the captions' letters


def animation_frames(sequence: SequenceReport, magnification: int | None = None, first: int = 1) -> list[Pixels]:
    """The pictures of the animation, one a step, each (H',W',3) of the same size.

    ``magnification`` is screen pixels a pixel; ``first`` is the number of the first step in the captions.
    Where the attention is known, it stands beside the assignment, and the components below.
    """
    factor = magnification or magnification_for(max(sequence.frames.shape[2:]), TARGET)
    strips = {**sequence.frames_rgb(), "assignment": sequence.assignment_rgb()}
    components = list(zip(sequence.component_rgb().items(), palette(sequence.components), strict=True))
    lines = None if sequence.attention is None else attention_rgb(sequence, factor)
    pictures = []
    for t in range(sequence.steps):
        edge, read = EDGE, f"input, step {first + t}"
        if t >= sequence.steps - sequence.rollout:
            edge, read = MARK, f"own prediction, {sequence.step_name(t + 1)}"
        seen = {read if name == "input" else name: magnify(strip[t], factor) for name, strip in strips.items()}
        if lines is not None:
            seen["attention"] = lines[t]
        upper = {name: framed(panel, edge) for name, panel in seen.items()}
        lower = {name: framed(magnify(strip[t], factor), colour) for (name, strip), colour in components}
        pictures.append(_laid_out([{**upper, **lower}] if lines is None else [upper, lower]))
    return pictures


def save_animation(
    sequence: SequenceReport,
    path: str | os.PathLike[str],
    magnification: int | None = None,
    fps: float = 5.0,
) -> Path:
    """Writes the sequence as GIF or, with the extra 'video', as MP4, by the path's suffix; ``fps`` steps a second.

    See `animation_frames` for what its pictures are.
    """
    path = Path(path)
    if not 0.1 <= fps <= 50:
        refuse("fps", "a number from 0.1 to 50", fps)
    kind = path.suffix.lower().lstrip(".")
    if kind not in KINDS:
        unknown(f"{path}: format of an animation", kind, sorted(KINDS))
    pictures = animation_frames(sequence, magnification)
    with replacing(path, make_folder=True) as temporary:
        movie: Movie
        if kind == "mp4":  # few pictures of flat colours: nearly exact is still small
            movie = Mp4(temporary, fps, coarseness=12, preset="slow")
        else:  # one table, so that nothing flickers
            movie = Gif(temporary, fps, colour_table(np.stack(pictures), (GROUND, EDGE, INK, MARK, BLACK, WHITE)))
        with contextlib.closing(movie):
            for picture in pictures:
                movie.add(picture)
    return path


def _laid_out(rows: list[dict[str, Pixels]]) -> Pixels:
    """Panels (H,W,3) of one size in rows, each with its name below it where it has the room."""
    height, width, _ = next(iter(rows[0].values())).shape
    high, wide = GAP + height + GAP + CAPTION + GAP // 2, max(map(len, rows)) * (width + GAP) + GAP
    image = Image.new("RGB", (wide, len(rows) * high), GROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(CAPTION)
    for line, row in enumerate(rows):
        for column, (name, panel) in enumerate(row.items()):
            left, top = GAP + column * (width + GAP), GAP + line * high
            image.paste(Image.fromarray(panel), (left, top))
            # below a narrow panel only the number fits, or nothing
            texts = name, name.rpartition(" ")[2]
            fitting = next((text for text in texts if draw.textlength(text, font) <= width), "")
            draw.text((left + width / 2, top + height + GAP // 2), fitting, INK, font, anchor="ma")
    return np.asarray(image)
