"""Where training runs and in which precision."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from neural_em.errors import NeuralEMError, refuse


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
            raise NeuralEMError(f"device={name}: PyTorch sees no CUDA GPU here; use cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            refuse("device", f"a GPU below cuda:{torch.cuda.device_count()}", repr(name))
    return device


def resolve(precision: str, device: torch.device) -> str:
    """The precision that ``auto`` stands for on the device."""
    if precision == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    return precision


def of_evaluation(precision: str) -> str:
    """The precision to evaluate in what was trained in another: no score rests on bfloat16."""
    return "auto" if precision == "bf16" else precision


def dtype_of(precision: str) -> torch.dtype:
    """Type of weights and activations."""
    return torch.float64 if precision == "float64" else torch.float32


@contextmanager
def products(precision: str, device: torch.device, deterministic: bool = False) -> Iterator[None]:
    """Lets a GPU use TF32 for products and convolutions, or not, as long as the context lasts.

    ``deterministic``: only algorithms that give the same bits each time, and a warning of what has none.
    """
    if device.type != "cuda":
        yield
        return
    memory: Any = torch.utils.deterministic
    with ExitStack() as undo:
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        undo.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        coarse = resolve(precision, device) in ("tf32", "bf16")
        torch.set_float32_matmul_precision("high" if coarse else "highest")
        torch.backends.cudnn.allow_tf32 = coarse
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS's condition, read once: it stays
            undo.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
            undo.callback(setattr, memory, "fill_uninitialized_memory", memory.fill_uninitialized_memory)
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = False  # nothing reads what was not written
        yield
