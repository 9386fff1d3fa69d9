"""MNIST's digits, from IDX files in a folder or the cache, or downloaded."""

import gzip
import os
import struct
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from neural_em.errors import NeuralEMError, refuse
from neural_em.files import existing, from_home

Part = Literal["train", "t10k"]

# the published sums of the gzipped files
_SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
}
_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_MAGIC = 0x00000803  # unsigned bytes, three dimensions
_SIDE = 28
_MAX_BYTES = 1 << 30  # of pixels: twenty times MNIST
_MAX_RATIO = 1032  # deflate cannot compress further: a header that claims more is false


def load_images(part: Part, folder: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
    """The digits of one of MNIST's two files, gzipped or not: (N, 28, 28) uint8.

    Without a folder they are taken from the one that ``NEM_MNIST`` names, else from the cache, else downloaded into it.
    """
    path = _locate(part, folder)
    status = path.stat()
    return _read_cached(path, status.st_mtime_ns, status.st_size)


def read_idx_images(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """Reads an IDX file of 28 x 28 images, gzipped or not; refuses anything else before it takes memory for it."""
    path = existing(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            return _read_images(stream, size * _MAX_RATIO if packed else size, str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise NeuralEMError(f"{path}: not a readable IDX file: {reason}") from None


def _read_images(stream: IO[bytes] | gzip.GzipFile, limit: int, name: str) -> NDArray[np.uint8]:
    header = stream.read(16)
    if len(header) < 16:
        refuse(name, "an IDX header of 16 bytes", f"{len(header)} bytes")
    magic, count, height, width = struct.unpack(">4I", header)
    if magic != _MAGIC:
        refuse(name, f"an IDX file of images (magic number 0x{_MAGIC:08x})", f"0x{magic:08x}")
    if (height, width) != (_SIDE, _SIDE) or count < 1:
        refuse(name, f"images of {_SIDE} x {_SIDE} pixels", f"{count} of {height} x {width}")
    wanted = count * height * width
    if wanted > _MAX_BYTES:
        refuse(name, f"at most {_MAX_BYTES} bytes of pixels", f"{count} images")
    if wanted > limit:
        refuse(name, f"{wanted} bytes of pixels, as its header says", "a file that cannot hold them")
    pixels = stream.read(wanted)
    if len(pixels) != wanted or stream.read(1):
        got = f"{len(pixels)} bytes" if len(pixels) != wanted else "more"
        refuse(name, f"{wanted} bytes of pixels, as its header says", got)
    return np.frombuffer(pixels, np.uint8).reshape(count, height, width)


@lru_cache(maxsize=2)
def _read_cached(path: Path, _modified: int, _size: int) -> NDArray[np.uint8]:
    return read_idx_images(path)


def _locate(part: Part, folder: str | os.PathLike[str] | None) -> Path:
    name = f"{part}-images-idx3-ubyte"
    named = folder or os.environ.get("NEM_MNIST")
    cache = from_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nem" / "mnist"
    place = existing(named) if named else cache
    for candidate in (place / f"{name}.gz", place / name):
        if candidate.is_file():
            return candidate
    if named:
        refuse(str(place), f"MNIST's {name}.gz, or {name}, in this folder", "neither")
    return _download(f"{name}.gz", place)


def _download(name: str, folder: Path) -> Path:
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    problem = "the package pooch, which downloads it, is not installed"
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with suppress(ImportError), Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        import pooch

        pooch.get_logger().setLevel("ERROR")
        task = progress.add_task(name, total=None)
        # a bar in the form that pooch asks for, which ends by resetting and filling it
        bar = SimpleNamespace(total=0, reset=lambda: progress.reset(task), close=lambda: None)
        bar.update = lambda count: progress.update(task, advance=count, total=bar.total or None)
        for mirror in _MIRRORS:
            try:
                fetch = pooch.HTTPDownloader(progressbar=bar, timeout=30)
                pooch.retrieve(mirror + name, f"sha256:{_SHA256[name]}", name, folder, downloader=fetch)
                return folder / name
            except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
                problem = f"cannot be downloaded ({type(error).__name__})"
    raise NeuralEMError(
        f"MNIST: {name}: {problem}: put {' and '.join(_SHA256)} into {folder}, "
        "or into a folder named by the environment variable NEM_MNIST, or by --set data.mnist=FOLDER in training"
    )
