"""NumPy files: arrays of frames and of labels, opened without pickles and without trusting their headers."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_em.data.dataset import memory_budget
from neural_em.data.fitting import Frame
from neural_em.errors import NeuralEMError, first_line, refuse

SUFFIXES = frozenset({".npy", ".npz"})
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_NAMES = {"frames": ("frames", "features", "images", "x"), "groups": ("groups", "masks", "labels")}


def open_array(path: Path, role: str = "frames") -> NDArray[Any]:
    """The array in a ``.npy`` file, not yet read, or in a ``.npz`` archive under a name that fits its role."""
    found = find_array(path, role)
    if found is None:
        raise NeuralEMError(f"{path}: no array in it is named {' or '.join(_NAMES[role])}")
    return found


def find_array(path: Path, role: str) -> NDArray[Any] | None:
    """The same, or ``None`` where an archive has no such array."""
    try:
        if path.suffix.lower() == ".npz":
            array = _from_archive(path, role)
        else:  # mapped, not read: a header that claims more than the file has is refused by the system
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except NeuralEMError:
        raise
    except Exception as error:  # a damaged header or archive raises almost anything
        raise NeuralEMError(f"{path}: not a readable array: {first_line(error)}") from None
    if array is not None and (array.dtype.kind not in "buif" or 0 in array.shape):
        refuse(str(path), "an array of numbers, not empty", f"{array.dtype} of shape {array.shape}")
    return array


def as_clips(array: NDArray[Any], name: str) -> list[NDArray[Any]]:
    """Views (T,H,W,C) of an array: an image, a video, or several; an axis of 1 or 3 is taken for the channels.

    (H,W), (H,W,C), (T,H,W), (T,H,W,C), (T,C,H,W), (N,T,H,W), (N,T,H,W,C) or (N,T,C,H,W). So is a last axis
    of 4, the last of which is the opacity, if the frames are larger than that.
    """
    shape = array.shape
    if len(shape) < 3 or shape[-1] not in (1, 3, 4) or (shape[-1] == 4 and min(shape[-3:-1]) < 5):  # channels not last
        array = np.moveaxis(array, -3, -1) if len(shape) > 3 and shape[-3] in (1, 3) else array[..., None]
    if not 3 <= array.ndim <= 5:
        refuse(name, "frames of shape (T,H,W), (T,H,W,C), (N,T,H,W) or (N,T,H,W,C)", shape)
    return list(array) if array.ndim == 5 else [array if array.ndim == 4 else array[None]]


def as_label_clips(array: NDArray[Any], name: str) -> list[NDArray[Any]]:
    """Views (T,H,W) of an array of labels: (H,W), (T,H,W), (N,T,H,W) or (N,T,H,W,1)."""
    if array.ndim == 5 and array.shape[-1] == 1:
        array = array[..., 0]
    if not 2 <= array.ndim <= 4:
        refuse(name, "labels of shape (T,H,W) or (N,T,H,W)", array.shape)
    return list(array) if array.ndim == 4 else [array if array.ndim == 3 else array[None]]


def largest(array: NDArray[Any]) -> int:
    """What stands for 1.0 in an array: 1 or 255. Whole numbers up to 1 are taken for zeros and ones, not for black."""
    if array.dtype.kind in "bf":
        return 1
    rows = array if array.ndim > 2 else array[None]
    return 255 if any(int(row.max()) > 1 for row in rows) else 1


def to_frame(values: NDArray[Any], top: int, name: str) -> Frame:
    """One frame (H,W,C): uint8 for whole numbers, float32 in [0, 1] for others; what is transparent lies on black."""
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= top):  # false for NaN as well
        refuse(name, f"values from 0 to {top}", f"{low} to {high}")
    if values.shape[-1] == 4:
        seen = values[..., :3] * (values[..., 3:] / np.float32(top))
        values = seen if values.dtype.kind == "f" else np.rint(seen).astype(values.dtype)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return np.multiply(values, 255 // top, dtype=np.uint8, casting="unsafe")


def _from_archive(path: Path, role: str) -> NDArray[Any] | None:
    with zipfile.ZipFile(path) as archive:
        members = {Path(info.filename).stem: info for info in archive.infolist() if info.filename.endswith(".npy")}
        named = [name for name in _NAMES[role] if name in members]
        if not named and role == "frames" and len(members) == 1:
            named = list(members)
        if not named:
            return None
        info = members[named[0]]
        with archive.open(info) as file:
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"format version {version}")
            shape, _, dtype = _HEADERS[version](file)
            wanted = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if dtype.hasobject or not wanted <= info.file_size:
            refuse(f"{path}: {info.filename}", f"{shape} of {dtype}, as its header says", f"{info.file_size} bytes")
        if wanted > memory_budget("cpu"):
            refuse(f"{path}: {info.filename}", "an array that fits into memory (else use .npy)", f"{wanted} bytes")
        with archive.open(info) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
