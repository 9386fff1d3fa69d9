"""Reading image files, and finding them in folders."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from neural_em.data.fitting import Frame, Labels
from neural_em.errors import NeuralEMError, first_line, refuse
from neural_em.files import told

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".pbm"})
_MAX_PIXELS = 100_000_000
logging.getLogger("PIL").addHandler(logging.NullHandler())  # what is wrong with a file is said once, by the error here
_DEEP = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})  # more than 8 bits
_GREY = _DEEP | {"1", "L", "LA", "La"}
_LABELS = (_GREY | {"P"}) - {"F", "LA", "La"}  # one whole number a pixel


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """The image file, its pixels not yet decoded; whatever goes wrong inside the block names the file."""
    if not path.is_file():  # opening a named pipe would wait for ever
        refuse(str(path), "a readable image", "no file")
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns of large files, which are refused here
            image = Image.open(path)
        with image:
            if image.width * image.height > _MAX_PIXELS:
                refuse(str(path), f"at most {_MAX_PIXELS} pixels", f"{image.height} x {image.width}")
            yield image
    except NeuralEMError:
        raise
    except Exception as error:  # decoders raise almost anything on a damaged file
        reason = getattr(error, "strerror", None) or first_line(error)
        raise NeuralEMError(f"{path}: not a readable image: {reason}") from None


def read_image(path: Path) -> Frame:
    """The picture (H,W,C): uint8, or float32 in [0, 1] where the file has more than 8 bits."""
    with opened(path) as image:
        return to_frame(image, str(path))


def to_frame(image: Image.Image, name: str) -> Frame:
    """An opened picture's pixels (H,W,C), upright; what is transparent lies on black."""
    image = ImageOps.exif_transpose(image)
    if image.mode in _DEEP:
        values = np.asarray(image).astype(np.float32)
        values = values / np.float32(65535) if image.mode != "F" else values
        if not (values.min() >= 0 and values.max() <= 1):
            refuse(name, "pixel values of at most 16 bits, or from 0 to 1", f"{values.min()} to {values.max()}")
        return values[:, :, None]
    kind = "L" if image.mode in _GREY else "RGB"
    if image.has_transparency_data:
        image = image.convert(f"{kind}A").convert(f"{kind}a")  # colours times their opacity
        return np.array(image)[:, :, :-1]
    pixels = np.array(image.convert(kind))
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def describe(path: Path) -> tuple[bool, bool]:
    """Whether a picture has colours, and whether it has more than 8 bits, by its header."""
    with opened(path) as image:
        return image.mode not in _GREY, image.mode in _DEEP


def describe_frames(image: Image.Image) -> tuple[bool, bool]:
    """The same of any frame of an opened file with several."""
    modes = {image.mode}
    if image.format == "GIF":  # has colours to choose from, whatever its first frame chooses
        modes = {"P"}
    if image.format == "TIFF":  # the only one whose frames may differ
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            modes.add(image.mode)
    return not modes <= _GREY, bool(modes & _DEEP)


def is_animated(path: Path) -> bool:
    """Whether an image file has several frames."""
    with opened(path) as image:
        return bool(getattr(image, "is_animated", False))


def read_labels(path: Path) -> Labels:
    """A label image (H,W): each pixel's value is its group; a palette's colours do not matter."""
    with opened(path) as image:
        if image.mode not in _LABELS:
            refuse(str(path), "a label image of whole numbers in one channel (grey or palette)", f"mode {image.mode}")
        return to_labels(np.asarray(image), str(path))


def to_labels(values: NDArray[Any], name: str) -> Labels:
    """Integers from 0 to 255 as they are; anything else is refused."""
    if values.dtype.kind not in "buif":
        refuse(name, "labels that are numbers", values.dtype)
    with np.errstate(invalid="ignore"):
        labels = values.astype(np.uint8)
    if not np.array_equal(labels, values):
        found = f"{values.min()} to {values.max()}" if values.dtype.kind != "f" else "others"
        refuse(name, "labels that are whole numbers from 0 to 255 (255 groups are the most)", found)
    return labels


def natural(path: Path) -> list[Any]:
    """A sorting key under which frame2 comes before frame10."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", path.name.lower())]


def visible(folder: Path) -> list[Path]:
    """What is in a folder, in natural order, without hidden files."""
    with told(folder, "read"):
        return sorted((entry for entry in folder.iterdir() if not entry.name.startswith(".")), key=natural)
