"""What the model's callers may get wrong about arrays: types, shapes and values, each refused by its name."""

import warnings
from typing import Any

import torch
from torch import Tensor

from neural_em.errors import refuse


def describe(array: Any) -> str:
    """What came instead of an array that was expected."""
    return f"shape {tuple(array.shape)}" if isinstance(array, Tensor) else type(array).__name__


def check_array(name: str, array: Any, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuses an array of another shape, or of another type or device than the model's weights."""
    if not isinstance(array, Tensor) or tuple(array.shape) != shape:
        refuse(name, f"a tensor of shape {shape}", describe(array))
    if array.dtype != like.dtype or array.device != like.device:
        refuse(name, f"{like.dtype} on {like.device}, as the weights", f"{array.dtype} on {array.device}")


def check_values(name: str, array: Tensor, slack: float = 0.0) -> None:
    """Refuses numbers further than the slack outside [0, 1], and what is not one; waits for the array's device."""
    if not bool(((array >= -slack) & (array <= 1 + slack)).all()):
        got = f"values from {float(array.min()):g} to {float(array.max()):g}"
        refuse(name, "numbers between 0 and 1", "not-a-number" if bool(array.isnan().any()) else got)


def warn_if_emulated(array: Tensor) -> None:
    """Warns of half precision on a CPU: most have none, and PyTorch cannot tell which do it well."""
    if array.device.type == "cpu" and array.dtype in (torch.float16, torch.bfloat16):
        text = f"{array.dtype} on a CPU is mostly emulated, hundreds of times slower than float32; use float32"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
