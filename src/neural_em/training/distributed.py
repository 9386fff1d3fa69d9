"""Several processes that train one model together, started by ``torchrun``; without it, one process and no cost.

The first process reads and writes the run folder; what the others need from there is handed to them here.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from neural_em.errors import NeuralEMError, refuse

T = TypeVar("T")


def rank() -> int:
    """This process's number, 0 where there is one only."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that reads, writes and talks."""
    return rank() == 0


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Joins the other processes, where the environment says there are any, and leaves them at the end.

    Yields:
        This process's device: its own GPU, where it was to be a GPU.
    """
    count = _number("WORLD_SIZE", 1)
    if count <= 1 or dist.is_initialized():
        yield device
        return
    if device.type == "cuda":
        local = _number("LOCAL_RANK", 0)
        if local >= torch.cuda.device_count():
            refuse("processes on this machine", f"at most {torch.cuda.device_count()}, one a GPU", local + 1)
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    # Imported later, by an optimiser, its default arguments would hold the group: Gloo's threads would outlive
    # `destroy_process_group`, free tensors while the interpreter ends, and now and then abort the process.
    from torch.distributed.nn import functional  # noqa: F401

    with peers_watched():
        if device.type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


@contextmanager
def peers_watched() -> Iterator[None]:
    """Turns the loss of another process into one line that says what to do."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lost = ("onnection", "peer", "imed out", "timeout", "socket", "NCCL", "TCPStore", "Broken pipe")
        if _number("WORLD_SIZE", 1) > 1 and any(word in str(error) for word in lost):
            raise NeuralEMError(
                f"process {_number('RANK', 0)} of {_number('WORLD_SIZE', 1)}: another process of this job ended or "
                "could not be reached; run the same command again to resume from the last checkpoint"
            ) from error
        raise


def part(count: int) -> slice:
    """This process's part of so many things, as `torch.tensor_split` cuts them."""
    share, rest = divmod(count, world_size())
    start = rank() * share + min(rank(), rest)
    return slice(start, start + share + (rank() < rest))


def total(values: Tensor) -> Tensor:
    """The sum over all processes, the very same bits in each."""
    if world_size() > 1:
        dist.all_reduce(values)
        dist.broadcast(values, src=0)
    return values


def largest(number: int, device: torch.device) -> int:
    """The largest of all processes' numbers."""
    if world_size() == 1:
        return number
    value = torch.tensor(number, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return int(value.item())


def from_first(function: Callable[[], Any], device: torch.device) -> Any:
    """What the function gives in the first process, which alone calls it; anything JSON can hold.

    The project's errors are raised in every process, so that all end with the same message.
    """
    if world_size() == 1:
        return function()
    message: dict[str, Any] = {}
    if is_first():
        try:
            message = {"result": function()}
        except NeuralEMError as error:
            message = {"error": str(error)}
    message = json.loads(_broadcast_text(json.dumps(message), device))
    if "error" in message:
        raise NeuralEMError(message["error"])
    return message["result"]


def in_first(function: Callable[[], T], device: torch.device) -> T | None:
    """What the function gives, in the first process alone and None in the others; where it fails, it fails in all."""
    results: list[T] = []
    from_first(lambda: results.append(function()), device)
    return results[0] if results else None


def tensors_from_first(tensors: dict[str, Tensor] | None, device: torch.device) -> dict[str, Tensor]:
    """The first process's named tensors, in every process, on the CPU."""
    tensors = dict(tensors or {})
    if world_size() == 1:
        return tensors
    index = [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in tensors.items()]
    for name, dtype, shape in json.loads(_broadcast_text(json.dumps(index), device)):
        empty = torch.empty(0 if is_first() else shape, dtype=getattr(torch, dtype), device=device)
        values = tensors[name].to(device) if is_first() else empty
        dist.broadcast(values, src=0)
        tensors[name] = values.cpu()
    return tensors


def _broadcast_text(text: str, device: torch.device) -> str:
    data = text.encode()
    length = torch.tensor(len(data), device=device)
    dist.broadcast(length, src=0)
    values = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if is_first():
        values.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(values, src=0)
    return bytes(values.cpu().tolist()).decode()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
