"""Checkpoints: a folder each, whole or not at all, its tensors in one safetensors file.

A checkpoint is written under another name, forced onto the disk and then renamed; only then are older ones removed.
So whatever moment a process is killed at, the newest folder under its final name is whole.
"""

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import read_json, told
from neural_em.training.state import Progress, Snapshot

FORMAT = "neural-em-checkpoint-1"
_STATE, _TENSORS = "state.json", "shard-00001.safetensors"  # once there could be more than one
_NAME = re.compile(r"step-(\d{8,})(-validated)?")
_SHARD = re.compile(r"shard-\d{5}\.safetensors")
_MAX_STATE = 1 << 28  # bytes of a state file


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


def write(folder: Path, name: str, snapshot: Snapshot) -> Path:
    """Writes a checkpoint of that name whole or not at all into the folder of checkpoints."""
    target, partial = folder / name, folder / f".{name}.{os.getpid()}.partial"
    index = {key: {"shape": list(each.shape), "pieces": [_TENSORS]} for key, each in snapshot.tensors.items()}
    state = {"format": FORMAT, "progress": configs.to_dict(snapshot.progress), "tensors": index}
    try:
        with told(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            tensors = to_bytes({f"{key}/0": each.flatten() for key, each in snapshot.tensors.items()})
            for file, data in ((_TENSORS, tensors), (_STATE, json.dumps(state, allow_nan=False).encode())):
                with open(partial / file, "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(opened.fileno())
            _sync_folder(partial)
            if target.exists():  # it was found broken
                shutil.rmtree(target)
            os.rename(partial, target)
            _sync_folder(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def keep_only(folder: Path, kept: Path) -> None:
    """Removes every other checkpoint and what broken writing left; failing at this loses nothing."""
    leftovers = list(folder.glob(".step-*.partial")) if folder.is_dir() else []
    for path in [*found(folder), *leftovers]:
        if path != kept:
            shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path) -> tuple[Path, Snapshot] | None:
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


def read(path: Path) -> Snapshot:
    """Reads a whole checkpoint; every tensor is a fresh copy in memory."""
    progress, index = _read_state(path)
    files = dict.fromkeys(file for entry in index.values() for file in entry["pieces"])
    held = {file: read_file(path / file) for file in files}
    tensors = {}
    for key, entry in index.items():
        shape, pieces = entry["shape"], list(enumerate(entry["pieces"]))
        parts = [held[file][f"{key}/{n}"].flatten() for n, file in pieces if f"{key}/{n}" in held[file]]
        if not parts or len(parts) < len(pieces):
            refuse(f"{path}: {key}", "all its pieces", f"{len(parts)} of {len(pieces)}")
        flat = torch.cat(parts)
        if flat.numel() != math.prod(shape):
            refuse(f"{path}: {key}", f"shape {tuple(shape)}", f"{flat.numel()} numbers")
        tensors[key] = flat.reshape(shape).clone()
    return Snapshot(progress, tensors)


def _read_state(path: Path) -> tuple[Progress, dict[str, Any]]:
    file = path / _STATE
    state = read_json(file, _MAX_STATE)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        refuse(str(file), f"a checkpoint of format {FORMAT}", "something else")
    index = state.get("tensors")
    if not isinstance(index, dict) or not all(_is_entry(entry) for entry in index.values()):
        refuse(f"{file}: tensors", "a shape and files for each", "something else")
    return configs.from_dict(Progress, state.get("progress", {}), str(file)), index


def _is_entry(entry: Any) -> bool:
    """Whether shapes are sizes and files lie in the checkpoint itself."""
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


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
