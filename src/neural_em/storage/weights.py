"""One model, one safetensors file: the weights as tensors, the config as JSON in the header."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import write_whole
from neural_em.model import BaseConfig, Model, build

FORMAT = "neural-em-1"
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def save(
    model: Model, path: str | os.PathLike[str], dtype: torch.dtype | None = None, notes: dict[str, Any] | None = None
) -> None:
    """Writes the model whole or not at all.

    Args:
        model: what to save.
        path: the file, by custom ending in ``.safetensors``.
        dtype: type of the stored weights, such as ``torch.float16``; the model's own where not given.
        notes: anything JSON can hold, kept beside the config (scores, the command that made it).
    """
    if dtype is not None and dtype not in FLOATS:
        refuse("dtype", "a floating point type", dtype)
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():  # what load would refuse is not written
        check_finite(tensor, name)
    filled(model.config, tensors, "model: weights")
    if notes is not None and not isinstance(notes, dict):
        refuse("notes", "a mapping", type(notes).__name__)
    try:
        kept = json.dumps(notes or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise NeuralEMError(f"notes: cannot be written as JSON: {error}") from None
    header = {"format": FORMAT, "config": json.dumps(configs.to_dict(model.config)), "notes": kept}
    write_whole(path, in_order(to_bytes(tensors, metadata=header)))


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Model:
    """Reads a model; weights stored in half precision come back as float32."""
    config, _, tensors = read(path)
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        refuse(f"{path}: weights", "one type for all", sorted({str(tensor.dtype) for tensor in tensors.values()}))
    weights = {}
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            refuse(f"{path}: weights {name}", "floating point weights", tensor.dtype)
        check_finite(tensor, f"{path}: weights {name}")
        dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        weights[name] = tensor.to(dtype, copy=True)  # the file may change under what was read
    return filled(config, weights, f"{path}: weights").requires_grad_(True).to(device)


def filled(config: BaseConfig, weights: dict[str, Tensor], where: str) -> Model:
    """The config's model with these very weights, if they are its own."""
    with torch.device("meta"):  # sizes are compared before anything is allocated by the config's word
        model = build(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            wanted = f"shape {expected[name]}" if name in expected else "none of that name"
            refuse(f"{where} {name}", wanted, f"shape {found[name]}" if name in found else "none")
    model.load_state_dict(weights, assign=True)
    return model


def read(path: str | os.PathLike[str]) -> tuple[BaseConfig, dict[str, Any], dict[str, Tensor]]:
    """Config, notes and tensors of a weight file."""
    if not Path(path).is_file():
        refuse(f"{path}", "a weight file", "a folder or a device" if Path(path).exists() else "nothing there")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                refuse(f"{path}", f"a weight file of format {FORMAT}", f"format {header.get('format')}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        values, notes = json.loads(header["config"]), json.loads(header.get("notes", "{}"))
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        raise NeuralEMError(f"{path}: expected a whole weight file, got one that cannot be read: {error}") from None
    if not isinstance(notes, dict):
        refuse(f"{path}: notes", "a mapping", type(notes).__name__)
    try:
        return configs.from_dict(BaseConfig, values), notes, tensors
    except NeuralEMError as error:
        raise NeuralEMError(f"{path}: {error}") from None


def check_finite(tensor: Tensor, name: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        refuse(name, "finite weights", f"not-a-number or infinity in {tensor.dtype}")


def in_order(data: bytes) -> bytes:
    """The file with its header sorted: safetensors leaves that to chance, and equal models shall be equal files."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors stay aligned
    return len(header).to_bytes(8, "little") + header + data[end:]
