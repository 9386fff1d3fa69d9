"""What every source of sequences looks like to training and evaluation, held in memory or made batch by batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from neural_em.errors import refuse


class Batch(NamedTuple):
    """B sequences: frames (T,B,C,H,W) float32 in [0, 1]; groups (T,B,H,W) uint8, 0 = not scored, where known."""

    frames: Tensor
    groups: Tensor | None


class Dataset(ABC):
    """Sequences by index."""

    shape: tuple[int, int, int, int]  # (T,C,H,W) of a sequence
    has_groups: bool  # whether the true groups are known
    device: torch.device  # where the batches are
    resident: bool = False  # whether all of it lies on the device, so that a batch can be taken without the host
    endless: bool = False  # whether indices may go beyond the length: ``epoch * length + i`` is then a sequence too
    note: str = ""  # what a reader of scores has to know about the data
    background: bool = False  # whether group 0 is the background and nothing else, so that it can be scored too
    truth: Callable[[Tensor], dict[str, Tensor]] | None = None  # what `properties` asks; None where nobody knows
    met: Callable[[Tensor], Tensor | None] | None = None  # what `collisions` asks

    @abstractmethod
    def __len__(self) -> int:
        """How many sequences there are; with endless data, how many make an epoch."""

    @abstractmethod
    def batch(self, indices: Tensor) -> Batch:
        """The sequences at the given indices (B,) int64, on the CPU or on the data's device."""

    def checked(self, indices: Tensor) -> Tensor:
        """Refuses indices that are not there; those on a GPU are taken as they are where looking would be a wait."""
        if len(indices) and not (indices.is_cuda and self.resident):
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or (high >= len(self) and not self.endless):
                refuse("indices", f"numbers from 0 to {len(self) - 1}", f"{low} to {high}")
        return indices

    def collisions(self, indices: Tensor) -> Tensor | None:
        """Where (T,B,H,W) the frames of these sequences show objects that have just met; None where nobody knows."""
        return None if self.met is None else self.met(indices)

    def properties(self, indices: Tensor) -> dict[str, Tensor]:
        """What is true of the K objects of these sequences, by name, (T,B,K,...); nothing where nobody knows.

        Object k has group k + 1. Numbers, such as ``position`` and ``colour``, are floating-point; what is one of
        several, such as ``shape``, is an integer. Objects that are not there have values that mean nothing.
        """
        return {} if self.truth is None else self.truth(indices)


Read = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # indices (B,) to frames (B,T,C,H,W) and groups (B,T,H,W)


class StreamingDataset(Dataset):
    """Makes or reads each batch when it is asked for: for data that does not fit into memory, and for endless data."""

    def __init__(
        self, read: Read, length: int, shape: tuple[int, ...], has_groups: bool, device: torch.device | str,
        levels: int = 1, endless: bool = False, note: str = "",
    ) -> None:  # fmt: skip
        """Takes what reads so many sequences of the shape (T,C,H,W), in which ``levels`` stands for 1.0."""
        T, C, H, W = shape
        self.shape, self.has_groups, self.device, self.note = (T, C, H, W), has_groups, torch.device(device), note
        self.endless, self._read, self._length, self._levels = endless, read, length, levels

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Tensor) -> Batch:
        frames, groups = self._read(self.checked(indices))
        frames = frames.to(self.device).transpose(0, 1)
        frames = frames.to(torch.float32, memory_format=torch.contiguous_format).contiguous()
        if self._levels > 1:  # by a tensor: instead of dividing by a number, a GPU may multiply with its inverse
            frames.div_(torch.full((), self._levels, dtype=torch.float32, device=frames.device))
        groups = None if groups is None else groups.to(self.device).transpose(0, 1).contiguous()
        return Batch(frames, groups)


class MemoryDataset(StreamingDataset):
    """Holds all sequences on the device, as the integers they are multiples of where there are such integers."""

    resident = True

    def __init__(self, frames: Tensor, groups: Tensor | None, levels: int = 1, note: str = "") -> None:
        """Takes frames (N,T,C,H,W) of any type, in which ``levels`` stands for 1.0, and groups (N,T,H,W) uint8."""

        def read(indices: Tensor) -> tuple[Tensor, Tensor | None]:
            indices = indices.to(frames.device, non_blocking=True)
            return frames.index_select(0, indices), None if groups is None else groups.index_select(0, indices)

        super().__init__(read, len(frames), frames.shape[1:], groups is not None, frames.device, levels, note=note)
        self._frames, self._groups = frames, groups

    @property
    def nbytes(self) -> int:
        return self._frames.nbytes + (self._groups.nbytes if self._groups is not None else 0)


def memory_budget(device: torch.device | str) -> int:
    """Bytes that data may take on a device: a half of what is free now."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024 // 2
    except (OSError, StopIteration, ValueError, IndexError):  # only Linux says it this way
        return 4 << 30
