"""One training step of one model: gather a batch, draw its noise and start, unroll, go back, Adam."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neural_em.model import NeuralEM
from neural_em.training.config import TrainingConfig

if TYPE_CHECKING:
    from neural_em.data import Dataset


class TrainingStep:
    """Calls train the model in place and return the loss, still on the device and not waited for.

    Args:
        model: on its device already.
        dataset: gives the batches, on the same device.
        config: learning rate, components, engine.
        world_size: number of processes that share each batch; their gradients are summed.
    """

    def __init__(self, model: NeuralEM, dataset: Dataset, config: TrainingConfig, world_size: int = 1) -> None:
        self.model, self.dataset, self.config, self.world_size = model, dataset, config, world_size
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)

    def __call__(self, indices: Tensor, keys: Tensor, share: float = 1.0) -> Tensor:
        """One step on the samples of these indices (B,), with the randomness of these keys (B,).

        Args:
            indices: which samples, this process's part of the batch.
            keys: what their noise and starts are drawn from.
            share: this process's part of the whole batch; losses and gradients are weighted by it.
        """
        x = self.dataset.batch(indices).frames
        x = x.to(next(self.model.parameters()).dtype)
        x_noisy, gamma = self.model.draw(x, self.config.components, keys, self.config.steps)
        loss = self.model.unroll(
            x, self.config.components, self.config.steps, x_noisy=x_noisy, gamma=gamma, check=False
        ).loss * share  # fmt: skip
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        loss = loss.detach()
        if self.world_size > 1:
            self._sum_over_processes(loss)
        self.optimizer.step()
        return loss

    def _sum_over_processes(self, loss: Tensor) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [loss.reshape(1)])
        torch.distributed.all_reduce(flat)
        for gradient, part in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        loss.copy_(flat[-1])

    def state(self) -> dict[str, Tensor]:
        """The optimizer's memory as named tensors, on the CPU."""
        tensors = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{name}.{key}"] = value.detach().to("cpu", copy=True).contiguous()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Puts back what ``state`` gave; on whatever device, whatever its device was."""
        for name, parameter in self.model.named_parameters():
            state = self.optimizer.state[parameter]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{name}.{key}" in tensors:
                    value = tensors[f"{name}.{key}"]
                    state[key] = value.clone() if key == "step" else value.to(parameter)
