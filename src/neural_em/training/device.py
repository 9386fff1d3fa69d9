"""Where training runs and in which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from neural_em.errors import refuse


def choose(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        refuse("device", "auto, cpu, cuda or cuda:N", repr(name))
    if device.type not in ("cpu", "cuda"):
        refuse("device", "auto, cpu, cuda or cuda:N", repr(name))
    if device.type == "cuda":
        if not torch.cuda.is_available():
            refuse("device", "cpu, because PyTorch sees no CUDA GPU here", repr(name))
        if (device.index or 0) >= torch.cuda.device_count():
            refuse("device", f"a GPU below cuda:{torch.cuda.device_count()}", repr(name))
    return device


def resolve(precision: str, device: torch.device) -> str:
    """The precision that ``auto`` stands for on the device."""
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return precision


def dtype_of(precision: str) -> torch.dtype:
    """Type of weights and activations."""
    return torch.float64 if precision == "float64" else torch.float32


@contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """Lets a GPU use TF32 for products and convolutions, or not, as long as the context lasts."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    coarse = resolve(precision, device) == "tf32"
    torch.set_float32_matmul_precision("high" if coarse else "highest")
    torch.backends.cudnn.allow_tf32 = coarse
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
