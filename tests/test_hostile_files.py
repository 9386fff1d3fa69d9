"""One malicious example of each kind of file: it fails in one line, takes no memory on its word, and runs nothing.

All are opened in one process of their own that may take little more memory than it has, so that whatever is allocated
by a number that a file carries shows. Those of weights and checkpoints are in tests/storage/test_broken_weights.py and
tests/runs/test_checkpoint.py, those of configs in tests/test_config_hostile.py.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from neural_em import NeuralEMError
from neural_em.files import writable, write_whole
from tests.processes import ENVIRONMENT, SAFETY

HUGE = 2**60


def npy(path: Path, shape: object, kind: str = "|u1", more: bytes = b"") -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
        file.write(more)


def npz(path: Path, name: str = "frames.npy", shape: object = (HUGE, 4, 4), claimed: int | None = None) -> None:
    """An archive whose member claims a shape, and whose directory may claim a size."""
    inner = path.with_name("inner")
    npy(inner, shape)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(inner, name)
        if claimed is not None:
            archive.filelist[0].file_size = claimed  # what the directory at the end will say
    inner.unlink()


def npz_bomb(path: Path) -> None:
    """A few megabytes that are 640 when unpacked."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("frames.npy", "w") as file,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (640, 1 << 10, 1 << 10)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(40):
            file.write(bytes(1 << 24))


def idx(count: int, packed: bytes | None = None) -> Callable[[Path], object]:
    header = struct.pack(">4I", 0x803, count, 28, 28)
    return lambda path: path.write_bytes(header if packed is None else gzip.compress(header + packed, 1))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int = 8, extra: bytes = b"", pixels: bytes = b"\0") -> Callable[[Path], object]:
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(pixels, 9))
    return lambda path: path.write_bytes(start + extra + data + chunk(b"IEND", b""))


def text_bomb() -> bytes:
    """A comment of 600 megabytes in a picture of one pixel."""
    packed = zlib.compressobj(1)
    return chunk(
        b"zTXt", b"Comment\0\0" + b"".join(packed.compress(bytes(6 << 20)) for _ in range(100)) + packed.flush()
    )


def gif(width: int, height: int) -> Callable[[Path], object]:
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return lambda path: path.write_bytes(screen + frame + frame + b";")


def tiff(width: int, height: int) -> Callable[[Path], object]:
    entries = [(256, width), (257, height), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, height), (279, 2)]
    fields = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return lambda path: path.write_bytes(
        b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + fields + bytes(4)
    )


def hdf5(shape: tuple[int, ...], chunks: tuple[int, ...] | None = None) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for name in ("training/features", "training/groups"):
                file.create_dataset(name, shape, "f4", chunks=chunks or tuple(min(size, 64) for size in shape))

    return write


def hdf5_bomb(path: Path) -> None:
    """One sequence of 640 megabytes of zeros, packed."""
    with h5py.File(path, "w") as file:
        shape = (1, 1, 10_000, 16_000, 1)
        data = file.create_dataset("training/features", shape, "f4", chunks=shape, compression="gzip")
        packed = zlib.compressobj(1)
        whole = b"".join([*(packed.compress(bytes(6_400_000)) for _ in range(100)), packed.flush()])
        data.id.write_direct_chunk((0, 0, 0, 0, 0), whole)


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "array of exabytes": ("a.npy", lambda path: npy(path, (HUGE, 4, 4))),
    "array whose size overflows": ("a.npy", lambda path: npy(path, (2**32, 2**32, 2**32))),
    "array of a negative size": ("a.npy", lambda path: npy(path, (-1, 4, 4), more=bytes(64))),
    "array of no sizes": ("a.npy", lambda path: npy(path, (None, "x"))),
    "array of objects": ("a.npy", lambda path: npy(path, (4, 4, 4), "|O", b"cos\nmkdir\n(S'evil'\ntR.")),
    "archive of exabytes": ("a.npz", npz),
    "archive that claims exabytes twice": ("a.npz", lambda path: npz(path, claimed=2**32 - 2)),
    "archive of objects": ("a.npz", lambda path: np.savez(path, frames=np.array([{}], dtype=object))),
    "archive with a name above": ("a.npz", lambda path: npz(path, "../../evil.npy")),
    "archive that unpacks to 640 megabytes": ("a.npz", npz_bomb),
    "four billion digits": ("a.idx", idx(2**32 - 1)),
    "four billion digits, packed": ("a.gz", idx(2**32 - 1, bytes(1 << 20))),
    "digits that unpack to more than is told": ("a.gz", idx(1, bytes(64 << 20))),
    "picture of 2^62 pixels": ("a.png", png(2**31 - 1, 2**31 - 1)),
    "picture of no pixels": ("a.png", png(0, 0)),
    "picture of 81 megapixels in nothing": ("a.png", png(9000, 9000, 16)),
    "picture with a comment of 600 megabytes": (
        "a.png",
        lambda path: png(1, 1, extra=text_bomb(), pixels=b"\0\0")(path),
    ),
    "animation of 4 gigapixels": ("a.gif", gif(65535, 65535)),
    "portable greymap of 2^60 pixels": ("a.pgm", lambda path: path.write_bytes(b"P5 1073741824 1073741824 255 ")),
    "tiff of 2^60 pixels": ("a.tiff", tiff(2**30, 2**30)),
    "bitmap of 2^60 pixels": (
        "a.bmp",
        lambda path: path.write_bytes(
            b"BM" + struct.pack("<IIIIiiHHIIiiII", 100, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 1, 1, 0, 0) + bytes(46)
        ),
    ),
    "video of 3.6 gigapixels": ("a.avi", lambda path: path.write_bytes(b"YUV4MPEG2 W60000 H60000 F1:1\nFRAME\n")),
    "sequences of exabytes": ("a.h5", hdf5((2**20, 2, 2**20, 2**20, 1))),
    "sequences that unpack to 640 megabytes": ("a.h5", hdf5_bomb),
}

OPEN = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from neural_em import NeuralEMError
from neural_em.data import DataConfig, load_split
from neural_em.data.mnist import read_idx_images
import h5py, PIL.Image
PIL.Image.init()

def use(path):
    if Path(path).suffix in (".idx", ".gz"):
        return read_idx_images(path)
    for limit in (None, 10):
        data = load_split(DataConfig("file", path=path), "training", 0, max_bytes=limit)
        data.batch(torch.arange(1))

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    try:
        use(path)
        answer = "loaded"
    except NeuralEMError as error:
        answer = "refused: " + str(error)
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps([path, answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, int]]:
    """What became of each file: its path, the answer and the memory taken so far, in KiB."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = {}
    for number, (case, (name, write)) in enumerate(FILES.items()):
        path = folder / str(number) / name
        path.parent.mkdir()
        write(path)
        paths[case] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, *paths.values()], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=SAFETY, check=False,
    )  # fmt: skip
    told = {path: (path, answer, memory) for path, answer, memory in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, (done.stderr[-1000:], list(told.values())[-1:])
    assert {path.name for path in folder.iterdir()} == {str(number) for number in range(len(FILES))}  # nothing was run
    return {case: told[path] for case, path in paths.items()}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory in use is read from /proc")
@pytest.mark.parametrize("case", FILES)
def test_a_malicious_file_is_refused(case: str, answers: dict[str, tuple[str, str, int]]) -> None:
    if "video" in case:
        pytest.importorskip("imageio_ffmpeg")
    path, answer, memory = answers[case]
    assert answer.startswith(f"refused: {path}"), answer
    assert answer.isprintable()
    assert memory < 400 << 10


@pytest.mark.parametrize("write", [lambda path: write_whole(path, b"x"), writable], ids=["write_whole", "writable"])
def test_a_device_or_a_pipe_is_never_replaced_by_a_file(write: Callable[[Path], object], tmp_path: Path) -> None:
    """As root, writing to /dev/null by renaming would put an ordinary file in its place."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NeuralEMError, match=r"pipe: expected .*, got something else"):
        write(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
