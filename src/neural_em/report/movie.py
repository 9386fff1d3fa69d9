"""The one writer of moving pictures, one picture at a time, of any length: MP4 where ffmpeg is at hand, else GIF."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import GifImagePlugin, Image, ImageChops
from scipy.spatial import cKDTree

from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.report.colours import BLACK, LIMIT, WHITE, Pixels, distinct, palette

MISSING = "MP4: expected the package imageio-ffmpeg (pip install 'neural-em[video]'), got none"


class Gif:
    """Takes pictures (H,W,3) of one size, up to 256 colours each; plays for ever.

    Pillow would keep all pictures until the end. With a ``table`` of colours (n,3) all of them share it.
    """

    def __init__(self, path: Path, fps: float, table: Pixels | None = None) -> None:
        self.path, self._file, self._table = path, open(path, "wb"), table  # noqa: SIM115 (open as long as pictures come)
        self._duration = max(20, round(1000 / fps))  # browsers slow down what is faster
        self._shown: Image.Image | None = None

    def add(self, picture: Pixels) -> None:
        """The next picture; only the part that changes is written."""
        image = _indexed(picture, colour_table(picture) if self._table is None else self._table)
        shown, box = image.convert("RGB"), (0, 0, *image.size)
        if self._shown is None:
            self._file.writelines(GifImagePlugin.getheader(image.copy(), info={"loop": 0})[0])
        else:
            box = ImageChops.difference(shown, self._shown).getbbox() or (0, 0, 1, 1)
        options: dict[str, Any] = {"duration": self._duration, "disposal": 1, "include_color_table": True}
        self._file.writelines(GifImagePlugin.getdata(image.crop(box), box[:2], **options))
        self._shown = shown

    def close(self) -> None:
        """Ends the file."""
        self._file.write(b";")
        self._file.close()


class Mp4:
    """Takes pictures (H,W,3) of one size; H.264, as browsers play it.

    ``coarseness`` is x264's constant rate factor, 0 loses nothing; its slower presets make smaller files.
    """

    def __init__(self, path: Path, fps: float, coarseness: int = 18, preset: str = "fast") -> None:
        self.path, self._fps = path, fps
        self._output = ["-crf", str(coarseness), "-preset", preset, "-movflags", "+faststart"]
        self._writer: Any = None

    def add(self, picture: Pixels) -> None:
        """The next picture."""
        height, width, _ = picture.shape
        picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # even, as the format demands
        if self._writer is None:
            try:
                import imageio_ffmpeg
            except ImportError:
                raise NeuralEMError(MISSING) from None
            self._writer = imageio_ffmpeg.write_frames(
                str(self.path), picture.shape[1::-1], fps=self._fps, codec="libx264", macro_block_size=2, quality=None,
                output_params=self._output,
            )  # fmt: skip
            self._writer.send(None)
        self._writer.send(np.ascontiguousarray(picture))

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()


Movie = Gif | Mp4
KINDS: dict[str, type[Gif] | type[Mp4]] = {"mp4": Mp4, "gif": Gif}


def check_movie(kind: str, fps: float | None) -> str:
    """Refuses what no movie can be, before there are pictures; ``auto`` becomes MP4 where it can be written.

    MP4 needs the extra 'video'.
    """
    if kind not in (*KINDS, "auto"):
        unknown("movie", kind, (*KINDS, "auto"))
    able = importlib.util.find_spec("imageio_ffmpeg") is not None
    if kind == "mp4" and not able:
        raise NeuralEMError(MISSING)
    if fps is not None and not 0.1 <= fps <= 1000:
        refuse("fps", "a number from 0.1 to 1000", fps)
    return kind if kind != "auto" else "mp4" if able else "gif"


def colour_table(rgb: Pixels, exact: Any = (BLACK, WHITE)) -> Pixels:
    """At most 256 colours (n,3) for a picture (...,3): all of them where they are few.

    The ``exact`` ones and the components' are among them in any case.
    """
    colours, _ = distinct(rgb)
    if len(colours) <= 256:
        return colours
    kept = np.concatenate([np.array(exact, np.uint8), palette(LIMIT)])
    kept = kept[[bool((colours == colour).all(-1).any()) for colour in kept]]  # only those that occur
    reduced = Image.fromarray(colours[None]).quantize(256 - len(kept), Image.Quantize.MEDIANCUT)
    return np.concatenate([kept, np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)])


def _indexed(picture: Pixels, table: Pixels) -> Image.Image:
    """The picture with every pixel in the nearest colour of the table."""
    colours, index = distinct(picture)
    nearest = np.asarray(cKDTree(table.astype(np.float64)).query(colours.astype(np.float64))[1])
    image = Image.fromarray(nearest[index].astype(np.uint8), "P")
    image.putpalette(table.tobytes())
    return image
