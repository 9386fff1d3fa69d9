"""Adam, on a GPU with a kernel for large parameters."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

LARGE = 1 << 20  # numbers in a parameter: PyTorch's kernel gives it too few programs to fill a GPU


class Adam(torch.optim.Adam):
    """PyTorch's own, with all of its memory from the start: a CUDA graph cannot add it later.

    Args:
        parameters: all on one device.
        rate: a tensor on that device where it changes between the replays of a graph.
        kernels: of the fast path, or nothing.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float | Tensor, kernels: Any = None) -> None:
        parameters = list(parameters)
        device = parameters[0].device
        cuda = device.type == "cuda"
        super().__init__(parameters, lr=rate, capturable=cuda, fused=True if cuda else None)
        self.kernels = kernels
        for parameter in parameters:
            self.state[parameter] = {
                "step": torch.zeros((), device=device if cuda else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            if self.kernels and parameter.numel() >= LARGE:  # compiled now, not while a graph is recorded
                state = {**self.state[parameter], "step": torch.ones((), device=device)}
                weight = parameter.detach()
                self.kernels.adam(weight, weight, state, self.param_groups[0], moves=False)

    def step(self, closure: Any = None) -> Any:
        """With PyTorch's kernel, but for large parameters whose gradients lie in one piece."""
        with torch.enable_grad():  # it makes the gradients
            result = closure() if closure else None
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        large = [(each, each.grad) for each in every if self._has_kernel(each)]
        for parameter, _ in large:
            parameter.grad = None
        super().step()
        for parameter, gradient in large:
            parameter.grad = gradient
            state = self.state[parameter]
            state["step"] += 1
            self.kernels.adam(parameter.detach(), gradient, state, self.param_groups[0])
        return result

    def _has_kernel(self, parameter: Tensor) -> bool:
        parts = (parameter, parameter.grad)
        whole = all(part is not None and part.is_contiguous() for part in parts)
        return bool(self.kernels) and whole and parameter.numel() >= LARGE
