"""HDF5 files in the authors' layout, both ways and in chunks.

Groups ``training``, ``validation`` and ``test``, each with the datasets ``features``, ``groups`` and ``overlaps`` of
shape (T, N, H, W, C) in float32. Static data has T = 1.
"""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_em import config as configs
from neural_em.data.config import SPLITS, Split
from neural_em.data.dataset import Dataset, MemoryDataset, StreamingDataset
from neural_em.data.generated import Generator, SceneConfig
from neural_em.data.images import to_labels
from neural_em.errors import NeuralEMError, first_line, refuse
from neural_em.files import existing, replacing

SUFFIXES = (".h5", ".hdf5", ".hdf")
_CHUNK = 1 << 20  # bytes
_BLOCK = 16 << 20  # bytes read or written at a time
_LARGEST = 1 << 30  # bytes: a sequence or a chunk larger than this is no data of ours
# types that may hold the features exactly, and the integer that stands for 1.0 in them
_TYPES: tuple[tuple[int, type[np.generic]], ...] = ((1, np.uint8), (255, np.uint8), (1020, np.int16), (1, np.float32))


def export_hdf5(
    path: str | os.PathLike[str], config: SceneConfig, seed: int, progress: Callable[[int, int], None] | None = None
) -> dict[str, int]:
    """Writes all three splits of a generated kind; the file appears when it is complete.

    Gives how many sequences each split has, and tells ``progress`` how many are written so far and in all.
    """
    parts = {split: config.scenes(split, seed) for split in SPLITS}
    sizes: dict[str, int] = {split: config.size(split) for split in SPLITS}
    written = 0
    with replacing(path) as partial, _Target(partial) as target:
        with h5py.File(target, "w") as file:
            file.attrs.update(config=configs.dump(config.without_paths()), seed=str(seed), note=config.note())
            for split, scenes in parts.items():
                for count in _write_split(file.create_group(split), scenes, sizes[split]):
                    target.check()
                    written += count
                    if progress is not None:
                        progress(written, sum(sizes.values()))
        target.check()
    return sizes


class _Target(io.FileIO):
    """A file that never fails while HDF5 writes to it, as the library may crash then; ``check`` raises the error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        """Writes, or remembers why not."""
        size = memoryview(data).nbytes
        try:
            written = 0
            while self._error is None and written < size:
                written += super().write(memoryview(data).cast("B")[written:])
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Sets the size, or remembers why not."""
        try:
            return super().truncate(size) if self._error is None else size or 0
        except OSError as error:
            self._error = error
            return size or 0

    def check(self) -> None:
        """Raises what went wrong, if anything did."""
        if self._error is not None:
            raise self._error


def _write_split(group: Any, scenes: Generator, count: int) -> Iterator[int]:
    """Writes so many sequences, and tells each time how many more are written."""
    T, C, H, W = scenes.shape
    chunk = max(1, min(count, _CHUNK // (T * C * H * W * 4)))
    depths = {"features": C, "groups": 1, "overlaps": 1}
    packed = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
    datasets = [
        group.create_dataset(name, (T, count, H, W, depth), "f4", chunks=(T, chunk, H, W, depth), **packed)
        for name, depth in depths.items()
    ]
    block = chunk * max(1, _BLOCK // (chunk * T * C * H * W * 4))  # whole chunks: none is packed twice
    for first in range(0, count, block):
        size = min(block, count - first)
        arrays = [np.empty((T, size, H, W, depth), np.float32) for depth in depths.values()]
        for lot, painted in scenes.sequences(torch.arange(first, first + size)):
            features = painted.frames.permute(1, 0, 3, 4, 2)  # (T,N,H,W,C)
            parts = (features, *(part.transpose(0, 1).unsqueeze(-1) for part in painted[1:]))
            for array, part in zip(arrays, parts, strict=True):
                array[:, lot] = part.cpu().numpy()
        arrays[0] /= np.float32(scenes.levels)
        for dataset, array in zip(datasets, arrays, strict=True):
            dataset[:, first : first + size] = array
        yield size


def load_hdf5(
    path: str | os.PathLike[str], split: Split, device: torch.device | str = "cpu", size: int | None = None,
    frames: int | None = None, max_bytes: int | None = None,
) -> Dataset:  # fmt: skip
    """One split of a file in the authors' layout: at most so many sequences, and their first so many frames.

    Static data, with one frame, stays as it is. What needs at most ``max_bytes`` is held in memory; else each batch is
    read from the file.
    """
    path = existing(path)
    reader = Hdf5Reader(path, split, frames)
    count = reader.count if size is None else min(size, reader.count)
    for levels, kind in _TYPES:
        width = np.dtype(kind).itemsize
        if max_bytes is not None and count * reader.pixels * (width * reader.shape[1] + 1) > max_bytes:
            break
        loaded = _load_all(reader, count, levels, kind, device)
        if loaded is not None:
            return loaded
    return StreamingDataset(reader.read, count, reader.shape, reader.has_groups, device)


class Hdf5Reader:
    """Sequences of one split, read when asked for."""

    def __init__(self, path: Path, split: str, frames: int | None = None) -> None:
        """Checks the layout; reads no sequence yet."""
        self._name = f"{path}: {split}"
        try:
            self._file = h5py.File(path, "r")
            group = _member(self._file, split, h5py.Group, str(path))
            self._features = _member(group, "features", h5py.Dataset, self._name)
            self._groups = _member(group, "groups", h5py.Dataset, self._name) if "groups" in group else None
            self._check(frames)
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise NeuralEMError(f"{path}: not a readable HDF5 file: {first_line(error)}") from None
        T, self.count, H, W, C = self._features.shape
        self.frames = T if frames is None or T == 1 else frames
        self.shape, self.pixels = (self.frames, C, H, W), self.frames * H * W
        self.has_groups = self._groups is not None

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Frames (B,T,C,H,W) float32 and groups (B,T,H,W) uint8."""
        order, inverse = np.unique(indices.cpu().numpy(), return_inverse=True)  # h5py wants increasing indices
        frames, groups = self.read_rows(order)
        rows = torch.from_numpy(inverse)
        return frames[rows], None if groups is None else groups[rows]

    def read_rows(self, rows: slice | NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        """The same for a slice, or for increasing indices."""
        try:
            features = self._features[: self.frames, rows]
            groups = None if self._groups is None else self._groups[: self.frames, rows]
        except (OSError, RuntimeError, TypeError, ValueError, MemoryError) as error:
            raise NeuralEMError(f"{self._name}: cannot be read: {first_line(error)}") from None
        features = np.asarray(features, np.float32)  # (T,B,H,W,C)
        if features.size and not (features.min() >= 0 and features.max() <= 1):  # false for NaN as well
            refuse(f"{self._name}/features", "numbers from 0 to 1", f"{features.min()} to {features.max()}")
        frames = torch.from_numpy(features.transpose(1, 0, 4, 2, 3))
        if groups is None:
            return frames, None
        return frames, torch.from_numpy(to_labels(groups, f"{self._name}/groups")[..., 0].swapaxes(0, 1))

    def _check(self, frames: int | None) -> None:
        features, groups, name = self._features, self._groups, f"{self._name}/features"
        for dataset, label in ((features, name), (groups, f"{self._name}/groups")):
            if dataset is None:
                continue
            if dataset.dtype.kind not in "fiub":
                refuse(label, "numbers", dataset.dtype)
            if len(dataset.shape) != 5 or 0 in dataset.shape:
                refuse(label, "the shape (T, N, H, W, C), none of them 0", dataset.shape)
            if dataset.is_virtual or dataset.external:
                refuse(label, "data inside the file", "data in other files")
            T, _, H, W, C = dataset.shape
            chunk = int(np.prod(dataset.chunks, dtype=object)) if dataset.chunks else 0
            if max(T * H * W * C, chunk) * dataset.dtype.itemsize > _LARGEST:
                refuse(label, f"sequences and chunks of at most {_LARGEST} bytes", f"{dataset.shape}")
        if groups is not None and groups.shape != (*features.shape[:4], 1):
            refuse(f"{self._name}/groups", f"the shape {(*features.shape[:4], 1)}", groups.shape)
        if frames is not None and 1 < features.shape[0] < frames:
            refuse(name, f"at least {frames} frames", features.shape[0])


def _load_all(
    reader: Hdf5Reader, count: int, levels: int, kind: type[np.generic], device: torch.device | str
) -> MemoryDataset | None:
    """All sequences in the given type, or ``None`` if it does not hold them exactly."""
    T, C, H, W = reader.shape
    held = torch.from_numpy(np.empty((count, T, C, H, W), kind))
    labels = torch.empty(count, T, H, W, dtype=torch.uint8) if reader.has_groups else None
    block = max(1, _BLOCK // (T * C * H * W * 4))
    for first in range(0, count, block):
        rows = slice(first, min(first + block, count))
        frames, groups = reader.read_rows(rows)
        part = held[rows]
        part.copy_(torch.round(frames * levels) if levels > 1 else frames)
        if not torch.equal(part.to(torch.float32) / torch.tensor(float(levels)), frames):
            return None
        if labels is not None and groups is not None:
            labels[rows] = groups
    return MemoryDataset(held.to(device), None if labels is None else labels.to(device), levels)


def _member(parent: Any, name: str, kind: type[Any], where: str) -> Any:
    """A part of the file itself; links into other files are not followed."""
    if name not in parent:
        present = ", ".join(repr(other) for other, _ in zip(parent, range(8), strict=False)) or "nothing"
        refuse(where, f"the HDF5 {kind.__name__.lower()} {name!r}", f"only {present}")
    if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
        refuse(where, f"{name!r} inside the file", "a link")
    member = parent[name]
    if not isinstance(member, kind):
        refuse(where, f"the HDF5 {kind.__name__.lower()} {name!r}", type(member).__name__.lower())
    return member


def is_hdf5(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() in SUFFIXES
