"""A segmented clip as a folder: label images, soft assignments, movies, scores; frame by frame, in bounded memory."""

import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from neural_em.data.clip_ground import Ground
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import write_table
from neural_em.report.animation import animation_frames
from neural_em.report.colours import LIMIT, Pixels, colour_groups, palette
from neural_em.report.movie import KINDS, Movie, check_movie
from neural_em.report.panels import SequenceReport, frame_rgb, magnification_for, magnify, to_rgb
from neural_em.report.segmentation_page import PAGE, Thumbnails, write_page
from neural_em.report.track_files import COCO, TABLE, TrackWriter, centres
from neural_em.segment import SCORES, Segmented
from neural_em.segment.truth import Watch
from neural_em.storage.folders import check_new, new_folder

SUMMARY, ARRAYS, LABELS, SCORE_TABLE = "segmentation.json", "segmentation.npz", "labels", "scores.csv"
GROUND = "ground.png"
STRENGTH = 0.6  # of a component's colour over the frame
MOVIES = ("overlay", "components")
_ALWAYS = (SUMMARY, ARRAYS, LABELS)
_SOMETIMES = (
    SCORE_TABLE, GROUND, TABLE, COCO, PAGE, f"{LABELS}/*.png",
    *(f"{name}.{kind}" for name in MOVIES for kind in ("mp4", "gif", "png")),
)  # fmt: skip
SMALLEST_SIDE, LARGEST_SIDE = 280, {"mp4": 960, "gif": 480}  # pixels of the overlay's longer side
FPS = 10.0  # where the clip does not say


@dataclass(frozen=True)
class Written:
    """What was written."""

    path: Path  # the folder
    files: Mapping[str, str]  # the name of each part, by what it is
    summary: Mapping[str, Any]  # as in ``segmentation.json``


def check_out(out: str | os.PathLike[str]) -> None:
    """Refuses a folder that holds anything but an earlier segmentation, before any work is done."""
    check_new(Path(out), _ALWAYS, _SOMETIMES)


def write_segmentation(
    out: str | os.PathLike[str],
    frames: Iterable[Segmented],
    about: Mapping[str, Any] | None = None,
    fps: float | None = None,
    movie: str = "auto",
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> Written:
    """Writes a folder that appears whole or not at all; one that holds an earlier one and nothing else is replaced.

    Args:
        out: the folder.
        frames: what `neural_em.segment.segment` yields.
        about: settings for the summary.
        fps: frames a second of the movies.
        movie: ``mp4``, ``gif`` or ``auto``; one frame alone gives pictures instead.
        progress: called with the number of frames done.
        watch: looks at each frame; what it finds becomes the summary's ``truth`` and ``warnings``.
    """
    kind = check_movie(movie, fps)
    with new_folder(out, _ALWAYS, _SOMETIMES) as folder:
        writer = _Writer(folder, FPS if fps is None else fps, kind)
        try:
            for number, segmented in enumerate(frames, start=1):
                writer.add(segmented)
                if watch is not None:
                    watch.add(segmented)
                if progress is not None:
                    progress(number)
        finally:
            movies = writer.close_movies()
        writer.add_ground(getattr(frames, "ground", None))
        told: dict[str, Any] = {}
        if watch is not None:
            told = {"truth": watch.summary(), "warnings": watch.warnings(str((about or {}).get("source", "CLIP")))}
        scene = getattr(frames, "scene", None)
        told |= {} if scene is None else {"followed": scene.summary()}
        files, summary = writer.close(movies, {**(about or {}), "fps": fps, **told})
        write_page(folder, writer.thumbnails, centres(folder))
    return Written(Path(out), files, summary)


class _Writer:
    """Takes the frames one by one."""

    def __init__(self, folder: Path, fps: float, movie: str) -> None:
        self.folder, self.fps, self.movie = folder, fps, movie
        self.archive = Archive(folder / ARRAYS)
        self.names: set[str] = set()
        self.size = (0, 0)
        self.losses: list[float] = []
        self.thumbnails = Thumbnails()
        self.scores: list[tuple[str, dict[str, float] | None]] = []
        self._first: dict[str, Pixels] = {}  # pictures of the first frame, by the movie's name
        self._movies: dict[str, Movie] = {}  # from the second frame on
        (folder / LABELS).mkdir()
        self.tracks = TrackWriter(folder)
        self.ground: dict[str, str] = {}

    def add(self, segmented: Segmented) -> None:
        theta, psi, gamma, loss = segmented.step[:4]
        arrays = {"gamma": gamma, "psi": psi, "theta": theta}
        rows: dict[str, NDArray[Any]] = {name: array.float().cpu().numpy() for name, array in arrays.items()}
        self.archive.add(frames=segmented.x, **rows, loss=np.asarray(loss, np.float64))
        if segmented.name in self.names:
            raise NeuralEMError(f"frame {segmented.name}: two frames have this name; rename one")
        self.names.add(segmented.name)
        label_image(segmented.labels).save(self.folder / LABELS / f"{segmented.name}.png")
        self.losses.append(loss)
        self.thumbnails.add(segmented.frame)
        self.scores.append((segmented.name, segmented.scores))
        self.tracks.add(segmented)
        self._show(segmented, rows)

    def add_ground(self, ground: Ground | None) -> None:
        if ground is not None:
            pixels = to_rgb(ground.picture)
            Image.fromarray(pixels[:, :, 0] if len(ground.picture) == 1 else pixels).save(self.folder / GROUND)
            self.ground = {"ground": GROUND}

    def close(self, movies: Mapping[str, str], about: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        if not self.losses:
            refuse("frames", "at least one", "none")
        self.archive.close()
        objects = self.tracks.close()
        files = {"labels": LABELS, "arrays": ARRAYS, "tracks": TABLE, "coco": COCO, "page": PAGE}
        files |= {**self.ground, **movies}
        summary: dict[str, Any] = {"frames": len(self.losses), "height": self.size[0], "width": self.size[1], **about}
        summary["objects"] = objects
        summary["loss"] = {"first": self.losses[0], "last": self.losses[-1]}
        if any(scores is not None for _, scores in self.scores):
            files["scores"] = SCORE_TABLE
            summary["scores"] = self._write_scores()
        summary["files"] = files
        (self.folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        return files, summary

    def _show(self, segmented: Segmented, rows: dict[str, NDArray[Any]]) -> None:
        if not self._first:
            self.size = (segmented.frame.shape[0], segmented.frame.shape[1])
        over = overlay(segmented.frame, segmented.labels, self.size, LARGEST_SIDE[self.movie])
        seen = SequenceReport("", segmented.x[None], rows["gamma"][None], rows["psi"][None])
        shown = dict(zip(MOVIES, (over, animation_frames(seen, first=len(self.losses))[0]), strict=True))
        if not self._first:
            self._first = shown
            return
        for name, picture in shown.items():
            if name not in self._movies:
                self._movies[name] = KINDS[self.movie](self.folder / f"{name}.{self.movie}", self.fps)
                self._movies[name].add(self._first[name])
            self._movies[name].add(picture)

    def close_movies(self) -> dict[str, str]:
        """Of a clip, movies; of a single frame, pictures."""
        for movie in self._movies.values():
            movie.close()
        for name, picture in () if self._movies else self._first.items():
            Image.fromarray(picture).save(self.folder / f"{name}.png")
        return {name: f"{name}.{self.movie if self._movies else 'png'}" for name in MOVIES}

    def _write_scores(self) -> dict[str, Any]:
        values = ((name, [] if scores is None else [scores[each] for each in SCORES]) for name, scores in self.scores)
        rows = ((name, *("" if math.isnan(each) else f"{each:.6f}" for each in row)) for name, row in values)
        write_table(self.folder / SCORE_TABLE, ("frame", *SCORES), rows)
        known = [scores for _, scores in self.scores if scores is not None and not math.isnan(scores["ami_max"])]
        if not known:
            return {"scored_frames": 0}
        mean = {name: _mean([scores[name] for scores in known]) for name in SCORES}
        last = {name: _mean([value]) for name, value in known[-1].items()}
        return {"scored_frames": len(known), "mean_over_frames": mean, "last_scored_frame": last}


def _mean(values: list[float]) -> float | None:
    """Of those that are numbers, rounded."""
    known = [value for value in values if not math.isnan(value)]
    return round(math.fsum(known) / len(known), 6) if known else None


def overlay(frame: NDArray[Any], labels: NDArray[np.uint8], size: tuple[int, int], largest: int) -> Pixels:
    """The frame (H,W,C), uint8 or in [0, 1], with its labels (H,W) in colour over it, for the screen; 0 stays as it is.

    All pictures get the shape of the first frame, ``size``: enlarged by a whole number, or at most ``largest``
    pixels long.
    """
    rgb = frame_rgb(frame)
    mixed = rgb * (1 - STRENGTH) + colour_groups(labels) * STRENGTH
    picture: Pixels = np.where(labels[..., None] > 0, np.rint(mixed), rgb).astype(np.uint8)
    factor = magnification_for(max(size), max(SMALLEST_SIDE, max(size)))
    height, width = size[0] * factor, size[1] * factor
    if max(height, width) > largest:
        scale = largest / max(height, width)
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
    if picture.shape[:2] == size and (height, width) == (size[0] * factor, size[1] * factor):
        return magnify(picture, factor)
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))


def label_image(labels: NDArray[np.uint8]) -> Image.Image:
    """Labels (H,W) as an image whose values are the labels, shown in colours."""
    image = Image.fromarray(labels, "P")
    image.putpalette(np.concatenate([np.zeros((1, 3), np.uint8), palette(LIMIT)]).tobytes())
    return image


class Archive:
    """Writes rows as they come; :meth:`close` makes the ``.npz`` file of them. The rows wait beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrays: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}  # file, and what a row is

    def add(self, **rows: NDArray[Any]) -> None:
        """Adds one row to each of the arrays named; all rows of an array have one shape and type."""
        for name, row in rows.items():
            if name not in self._arrays:
                opened = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115 (open as long as rows come)
                self._arrays[name] = opened, row.dtype, row.shape
            file, dtype, shape = self._arrays[name]
            if (row.dtype, row.shape) != (dtype, shape):
                refuse(f"row of {name}", f"{dtype} of shape {shape}", f"{row.dtype} of shape {row.shape}")
            file.write(np.ascontiguousarray(row).tobytes())

    def close(self) -> None:
        """Puts the arrays together; only a block of each is in memory at a time."""
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, (file, dtype, shape) in self._arrays.items():
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
                count = file.tell() // (dtype.itemsize * math.prod(shape))
                file.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, {**header, "shape": (count, *shape)})
                    shutil.copyfileobj(file, entry, 1 << 20)
                file.close()
        self._arrays.clear()
