"""Weight gradients over all time steps.

Each use of a layer leaves its input and its output's gradient on the layer's tape. On a GPU one large product over all
steps makes the weight's gradient when all uses have gone back, instead of one small product a step; a CPU, which small
products fill, makes each step's at once, while what it reads is still in the cache, and adds it up.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class StepMemory:
    """Memory for something that every step makes anew: step after step, so that `join` need not copy it.

    Backwards, the last of the steps comes first.
    """

    def __init__(self, steps: int, backwards: bool = False) -> None:
        self.steps, self.backwards = steps, backwards
        self.memory: Tensor | None = None
        self.taken = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An empty tensor, images with their channels last in memory."""
        if len(shape) == 4:
            N, C, H, W = shape
            return self.take((N, H * W * C), like).view(N, H, W, C).permute(0, 3, 1, 2)
        if self.taken % self.steps == 0:
            self.memory = like.new_empty(self.steps, *shape)
        assert self.memory is not None
        if self.memory.shape[1:] != shape:  # another use in the same step, of another size
            return like.new_empty(shape)
        step = self.taken % self.steps
        self.taken += 1
        return self.memory[self.steps - 1 - step if self.backwards else step]


def memory_there_and_back(steps: int) -> tuple[StepMemory, StepMemory]:
    """Memory for what so many steps make forward and backward; without a backward pass nothing is gathered."""
    if torch.is_grad_enabled():
        return StepMemory(steps), StepMemory(steps, backwards=True)
    return StepMemory(1), StepMemory(1)


def join(tensors: list[Tensor]) -> Tensor:
    """Tensors (N,...) as one (T*N,...): a view where they lie one after another in memory, else a copy."""
    first = tensors[0]
    if first.dim() == 4:
        _, C, H, W = first.shape
        rows = join([tensor.permute(0, 2, 3, 1).flatten(1) for tensor in tensors])
        return rows.view(-1, H, W, C).permute(0, 3, 1, 2)
    if all(
        tensor.is_contiguous()
        and tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and tensor.storage_offset() == first.storage_offset() + i * first.numel()
        for i, tensor in enumerate(tensors)
    ):
        return first.as_strided((len(tensors) * first.shape[0], *first.shape[1:]), first.stride())
    return torch.cat(tensors)


class Tape:
    """What all uses of one layer leave behind, until its parameters' gradients are wanted."""

    def __init__(self, gradients: Callable[..., tuple[Tensor, ...]], increase: Callable[..., None]) -> None:
        self.gradients = gradients  # of the layer's parameters, from what one use left, or from what all did
        self.increase = increase  # adds to such gradients what one more use brings
        self.left: list[tuple[Tensor, ...]] = []
        self.total: tuple[Tensor, ...] = ()

    def make_by(self, gradients: Callable[..., tuple[Tensor, ...]]) -> None:
        """Has the gradients made in another way, from other things that uses leave."""

        def increase(total: tuple[Tensor, ...], *left: Tensor) -> None:
            for each, part in zip(total, gradients(*left), strict=True):
                each.add_(part)

        self.gradients, self.increase = gradients, increase

    def add(self, *tensors: Tensor) -> None:
        """Keeps what one use leaves, or what it adds to the gradients; the last step comes first."""
        if tensors[0].is_cuda:
            self.left.append(tensors)
        elif not self.total:
            self.total = self.gradients(*tensors)
        else:
            self.increase(self.total, *tensors)

    def collect(self) -> tuple[Tensor, ...]:
        if not self.left:
            total, self.total = self.total, ()
            return total
        joined = [join(list(tensors)) for tensors in zip(*reversed(self.left), strict=True)]
        self.left.clear()
        return self.gradients(*joined)


class SharedParameters(torch.autograd.Function):
    """Hands parameters to many uses, as they are applied; its backward runs once, after all of theirs."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, applied: tuple[Tensor, ...], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.tape, ctx.types = tape, [parameter.dtype for parameter in parameters]
        ctx.set_materialize_grads(False)
        return tuple(part.view_as(part) for part in applied)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *(part.to(dtype) for part, dtype in zip(ctx.tape.collect(), ctx.types, strict=True))
