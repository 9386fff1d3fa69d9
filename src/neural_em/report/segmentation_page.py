"""The page of a segmented clip: clip, overlay, tracks, components and the number of objects, frame by frame."""

import html
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from neural_em.data.images import read_labels, visible
from neural_em.files import replacing
from neural_em.report.colours import LIMIT, Pixels, colour_groups, palette
from neural_em.report.page import KEYS, document
from neural_em.report.panels import SequenceReport, frame_rgb, to_rgb
from neural_em.report.players import DELAY, player
from neural_em.report.plots import Line
from neural_em.report.svg import line_chart

PAGE = "index.html"
MOST_FRAMES = 300  # on the page; of longer clips every second frame, or every fourth, and so on
_SIDE = 240  # pixels of the longer side of the pictures
_TRAIL = 40  # frames that a track is drawn back
_STRENGTH = 0.55  # of a component's colour over the frame


class Thumbnails:
    """Small pictures of the frames that the page shows of a clip, as they come: at most `MOST_FRAMES` are held."""

    def __init__(self) -> None:
        self.pictures: dict[int, Pixels] = {}  # by the number of the frame
        self._count, self._step = 0, 1

    def add(self, frame: NDArray[Any]) -> None:
        """Takes the next frame (H,W,C), uint8 or in [0, 1]."""
        if self._count % self._step == 0:
            rgb = frame_rgb(frame)
            small = Image.fromarray(rgb).resize(_size(*rgb.shape[:2]), Image.Resampling.BOX)
            self.pictures[self._count] = np.asarray(small)
        self._count += 1
        if len(self.pictures) > MOST_FRAMES:
            self._step *= 2
            self.pictures = {number: each for number, each in self.pictures.items() if number % self._step == 0}


def write_page(
    folder: str | os.PathLike[str],
    clip: Thumbnails | None = None,
    tracks: Iterable[Mapping[str, Any]] = (),
) -> Path:
    """Writes ``index.html`` into a folder that holds a segmentation; the page is one file and loads nothing.

    Args:
        folder: with ``segmentation.json``, ``segmentation.npz`` and ``labels``.
        clip: its frames; where not given, what the model saw.
        tracks: one row for each object in each frame: ``frame`` (counted from 0), ``object`` (from 1), and in pixels of
            the clip its centre ``x``, ``y``, ``width``, ``height`` and ``area``; drawn in the colour of the component
            that its ``label`` names, if it has one.
    """
    path = Path(folder) / PAGE
    text = _render(Path(folder), clip, [dict(row) for row in tracks])
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _render(folder: Path, clip: Thumbnails | None, tracks: list[dict[str, Any]]) -> str:
    summary = json.loads((folder / "segmentation.json").read_text(encoding="utf-8"))
    total, size = int(summary["frames"]), (int(summary["height"]), int(summary["width"]))
    shown = range(0, total, 1 << max(0, -(-total // MOST_FRAMES) - 1).bit_length())
    seen = {name: _rows(folder / "segmentation.npz", name, shown) for name in ("frames", "gamma", "psi")}
    small = to_rgb(seen["frames"]) if clip is None else [clip.pictures[number] for number in shown]
    pictures = np.stack([_resized(picture, size) for picture in small])
    over, counts, paths = pictures.copy(), [], visible(folder / "labels")  # whose names are in the order of the clip
    for picture, number in zip(over, shown, strict=True):
        labels = read_labels(paths[number])
        counts.append(len(np.unique(labels[labels > 0])))
        labels = _resized(labels, size)
        there = labels > 0
        picture[there] = np.rint(picture[there] * (1 - _STRENGTH) + colour_groups(labels)[there] * _STRENGTH)
    photos, one = {"found objects": over}, total == 1
    if tracks:
        photos["boxes" if one else "tracks"] = _with_tracks(pictures, shown, tracks, size)
        counts = _counts(shown, tracks)
    photos["picture" if one else "clip"] = pictures
    texts = [f"{number} object{'' if number == 1 else 's'}" for number in counts]
    delay = DELAY if one else max(40, round(1000 * shown.step / (summary.get("fps") or 1000 / DELAY)))
    sequence = SequenceReport("clip", seen["frames"], seen["gamma"], seen["psi"])
    lines = [Line("objects", list(shown), counts)] if not one else []
    chart = line_chart("Objects in each frame", lines, "frame", whole=True)
    shown_player = player(sequence, "What it found" if one else "Frame by frame", photos, texts, delay)
    warnings = [f'<p class="warning">{html.escape(each)}</p>' for each in summary.get("warnings", ())]
    parts = [*warnings, "" if one else KEYS, f'<div class="players">{shown_player}</div>']
    if shown.step > 1:
        parts.append(f'<p class="note">One of every {shown.step} frames is shown.</p>')
    if "followed" in summary:
        parts.append('<p class="note">Objects have colours of their own, not those of the components.</p>')
    parts.append(chart and f'<section><h2>How many</h2><div class="charts">{chart}</div></section>')
    title = Path(str(summary.get("source", folder.name))).name
    return document(title, _lead(summary), "\n".join(parts))


def _lead(summary: Mapping[str, Any]) -> str:
    mean = summary.get("scores", {}).get("mean_over_frames")
    parts = [f"{summary['frames']} frame{'' if summary['frames'] == 1 else 's'} of {summary['height']} x "
             f"{summary['width']} pixels"]  # fmt: skip
    parts += [f"{summary['components']} components"] if "components" in summary else []
    parts += [f"model {Path(str(summary['model'])).name}"] if "model" in summary else []
    parts += [f"AMI {mean['ami_max']:.3f} on average"] if mean else []
    return ", ".join(parts)


def _rows(path: Path, name: str, wanted: range) -> NDArray[Any]:
    """Some rows of an array in an archive; the others are passed over, never held."""
    rows = []
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as entry:
        np.lib.format.read_magic(entry)
        shape, _, kind = np.lib.format.read_array_header_1_0(entry)
        size = int(np.prod(shape[1:])) * kind.itemsize
        for number in range(shape[0]):
            data = entry.read(size)
            if number in wanted:
                rows.append(np.frombuffer(data, kind).reshape(shape[1:]))
    return np.stack(rows)


def _size(height: int, width: int) -> tuple[int, int]:
    """Width and height of a picture on the page."""
    scale = _SIDE / max(height, width)
    return max(1, round(width * scale)), max(1, round(height * scale))


def _resized(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(picture).resize(_size(*size), Image.Resampling.NEAREST))


def _with_tracks(pictures: Pixels, shown: range, tracks: list[dict[str, Any]], size: tuple[int, int]) -> Pixels:
    """The pictures with each object's box, and where its centre was in the frames before."""
    wide, high = _size(*size)
    across, down = wide / size[1], high / size[0]
    colours = palette(LIMIT)
    by_object: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(tracks, key=lambda row: int(row["frame"])):
        by_object.setdefault(int(row["object"]), []).append(row)
    drawn = []
    for picture, frame in zip(pictures, shown, strict=True):
        image = Image.fromarray(picture)
        pen = ImageDraw.Draw(image)
        for number, rows in by_object.items():
            trail = [row for row in rows if frame - _TRAIL < int(row["frame"]) <= frame]
            shade = colours[(int(trail[-1].get("label", number)) - 1) % LIMIT] if trail else colours[0]
            colour = tuple(int(value) for value in shade)
            points = [(float(row["x"]) * across, float(row["y"]) * down) for row in trail]
            if len(points) > 1:
                pen.line(points, fill=colour, width=2)
            if trail and int(trail[-1]["frame"]) == frame:
                (x, y), row = points[-1], trail[-1]
                half = float(row["width"]) * across / 2, float(row["height"]) * down / 2
                pen.rectangle((x - half[0], y - half[1], x + half[0], y + half[1]), outline=colour)
        drawn.append(np.asarray(image))
    return np.stack(drawn)


def _counts(shown: range, tracks: list[dict[str, Any]]) -> list[int]:
    """Tracked objects in each of the frames."""
    found = {(int(row["frame"]), int(row["object"])) for row in tracks}
    counts = np.bincount([frame for frame, _ in found], minlength=shown.stop)
    return [int(counts[number]) for number in shown]
