"""Checkpoints: a folder each, whole or not at all, its tensors in safetensors files of a bounded size.

A checkpoint is written under another name, forced onto the disk and then renamed; only then are older ones removed.
So whatever moment a process is killed at, the newest folder under its final name is whole.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.training.state import Progress

FORMAT = "neural-em-checkpoint-1"
_STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})(-validated)?")
_SHARD = re.compile(r"shard-\d{5}\.safetensors")
_MAX_STATE = 1 << 28  # bytes of a state file
_HEADER = 512  # bytes that a piece takes in its file's header, at most


class Checkpoint(NamedTuple):
    """What a run goes on from."""

    progress: Progress
    tensors: dict[str, Tensor]


def name_of(steps: int, validated: bool) -> str:
    """The folder's name after so many steps; ``validated`` where the epoch they end is closed too."""
    return f"step-{steps:08d}" + ("-validated" if validated else "")


def found(folder: Path) -> list[Path]:
    """Checkpoints in the folder, the newest first."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    ordered = sorted((int(match[1]), match[2] or "", path) for match, path in matches if match)
    return [path for _, _, path in reversed(ordered)]


def write(folder: Path, name: str, progress: Progress, tensors: dict[str, Tensor], shard_megabytes: int) -> Path:
    """Writes a checkpoint whole or not at all; tensors are on the CPU.

    Args:
        folder: where the checkpoints are.
        name: what this one is to be called.
        progress: how far the run is.
        tensors: what it goes on from.
        shard_megabytes: largest size of a file; larger tensors are cut.
    """
    target, partial = folder / name, folder / f".{name}.{os.getpid()}.partial"
    index: dict[str, Any] = {key: {"shape": list(tensor.shape), "pieces": []} for key, tensor in tensors.items()}
    try:
        _remove(partial)
        partial.mkdir(parents=True)
        for number, shard in enumerate(_shards(tensors, shard_megabytes << 20), start=1):
            file = f"shard-{number:05d}.safetensors"
            _write(partial / file, to_bytes({f"{key}/{piece}": part for key, piece, part in shard}))
            for key, _, _ in shard:
                index[key]["pieces"].append(file)
        state = {"format": FORMAT, "progress": configs.to_dict(progress), "tensors": index}
        _write(partial / _STATE, json.dumps(state, allow_nan=False).encode())
        _sync_folder(partial)
        _remove(target)  # one that is there already was found broken
        os.rename(partial, target)
        _sync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise NeuralEMError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target


def keep_only(folder: Path, kept: Path) -> None:
    """Removes every other checkpoint and what broken writing left; failing at this loses nothing."""
    leftovers = list(folder.glob(".step-*.partial")) if folder.is_dir() else []
    for path in [*found(folder), *leftovers]:
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path) -> tuple[Path, Checkpoint] | None:
    """The newest whole checkpoint; None where there is none."""
    broken = []
    for path in found(folder):
        try:
            return path, read(path)
        except NeuralEMError as error:
            broken.append(str(error))
    if broken:  # starting anew would throw away what somebody may still want to save
        raise NeuralEMError(f"{folder}: no checkpoint can be read: {broken[0]}")
    return None


def read_progress(path: Path) -> Progress:
    """How far the run was, without its tensors."""
    return _read_state(path)[0]


def read(path: Path) -> Checkpoint:
    """Reads a whole checkpoint; every tensor is a fresh copy in memory."""
    progress, index = _read_state(path)
    pieces: dict[str, dict[str, Tensor]] = {}
    tensors = {}
    for key, entry in index.items():
        shape, files = entry["shape"], entry["pieces"]
        for file in files:
            if file not in pieces:
                pieces[file] = read_file(path / file)
        parts = [pieces[file].get(f"{key}/{number}") for number, file in enumerate(files)]
        if not parts or any(part is None for part in parts):
            refuse(f"{path}: {key}", "all its pieces", f"{sum(part is not None for part in parts)} of {len(parts)}")
        flat = torch.cat([part.flatten() for part in parts if part is not None])
        if flat.numel() != math.prod(shape):
            refuse(f"{path}: {key}", f"shape {tuple(shape)}", f"{flat.numel()} numbers")
        tensors[key] = flat.reshape(shape).clone()
    return Checkpoint(progress, tensors)


def _read_state(path: Path) -> tuple[Progress, dict[str, Any]]:
    file = path / _STATE
    try:
        if file.stat().st_size > _MAX_STATE:
            refuse(str(file), f"at most {_MAX_STATE} bytes", file.stat().st_size)
        state = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NeuralEMError(f"{file}: cannot be read: {error}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        refuse(str(file), f"a checkpoint of format {FORMAT}", "something else")
    index = state.get("tensors")
    if not isinstance(index, dict) or not all(_entry_is_sound(entry) for entry in index.values()):
        refuse(f"{file}: tensors", "a shape and files for each", "something else")
    return configs.from_dict(Progress, state.get("progress", {}), str(file)), index


def _entry_is_sound(entry: Any) -> bool:
    """Shapes are sizes and files lie in the checkpoint itself."""
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
        return False
    files = entry.get("pieces")
    sizes = all(type(size) is int and size >= 0 for size in entry["shape"])
    return sizes and isinstance(files, list) and all(isinstance(f, str) and _SHARD.fullmatch(f) for f in files)


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, by name."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise NeuralEMError(f"{path}: cannot be read: {error}") from None


def _shards(tensors: dict[str, Tensor], limit: int) -> Iterator[list[tuple[str, int, Tensor]]]:
    """(name, number of the piece, piece) in lists of at most ``limit`` bytes together."""
    shard: list[tuple[str, int, Tensor]] = []
    filled = 0
    for key, tensor in tensors.items():
        pieces = tensor.contiguous().flatten().split(max(1, (limit - _HEADER) // tensor.element_size()))
        for number, piece in enumerate(pieces):
            size = piece.numel() * piece.element_size() + _HEADER
            if shard and filled + size > limit:
                yield shard
                shard, filled = [], 0
            shard.append((key, number, piece.clone() if len(pieces) > 1 else piece))
            filled += size
    if shard:
        yield shard


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
