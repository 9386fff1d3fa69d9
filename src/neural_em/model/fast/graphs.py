"""A single step as a CUDA graph: frame by frame it is not the GPU that takes the time but starting its kernels."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from neural_em.model.unrolled import Info, State

MOST = 1 << 22  # numbers of psi: larger steps take longer than their kernels' starts
HELD = 4  # graphs at a time, each with memory of its own


class GraphedStep:
    """A step without gradients, recorded once and replayed; parameters are read from where they lie.

    State and frames (B,C,H,W) are like those that it will be called with. Graphs recorded on one stream share a
    workspace, so only one of them may run at a time.
    """

    def __init__(
        self, step: Callable[[State, Tensor, Tensor], tuple[State, Info]], state: State, x_noisy: Tensor,
        x_next: Tensor, stream: torch.cuda.Stream,
    ) -> None:  # fmt: skip
        with torch.inference_mode(False), torch.no_grad():  # a tensor made in that mode could not be filled outside it
            self.state = State(*(None if each is None else each.clone() for each in state))  # type: ignore[arg-type]
            self.frames = x_noisy.clone(), x_next.clone()
            torch.cuda.synchronize(x_next.device)
            with torch.cuda.stream(stream):
                for _ in range(2):  # libraries set themselves up
                    step(self.state, *self.frames)
            torch.cuda.synchronize(x_next.device)
            self.graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.after, self.info = step(self.state, *self.frames)

    def __call__(self, state: State, x_noisy: Tensor, x_next: Tensor) -> tuple[State, Info]:
        with torch.no_grad():
            for here, given in zip((*self.state, *self.frames), (*state, x_noisy, x_next), strict=True):
                if here is not None and given is not None:
                    here.copy_(given, non_blocking=True)
            self.graph.replay()
            after = State(*(None if each is None else each.clone() for each in self.after))  # type: ignore[arg-type]
            return after, Info(*torch.stack(self.info).unbind())


def worthwhile(state: State) -> bool:
    """Whether steps from such a state are to be graphed now."""
    psi = state.psi
    small = psi.is_cuda and psi.numel() <= MOST
    plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
    return small and plain and not torch.cuda.is_current_stream_capturing()


def products() -> tuple[str, str]:
    """How exact products and convolutions of float32 numbers are now."""
    cudnn: Any = torch.backends.cudnn
    return torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision


def signature(state: State, x_noisy: Tensor, x_next: Tensor, *more: Any) -> tuple[Any, ...]:
    """What a graph depends on besides the parameters' numbers."""
    tensors = (each for each in (*state, x_noisy, x_next) if each is not None)
    return (*((tuple(each.shape), each.dtype, each.device) for each in tensors), *more)


@contextmanager
def no_collection() -> Iterator[None]:
    """An older graph that the garbage collector ended in the middle of a recording would spoil it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
