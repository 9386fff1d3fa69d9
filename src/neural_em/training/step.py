"""One training step of one model: gather a batch, draw its noise and start, unroll, go back, Adam; and its memory.

On a GPU the whole step is recorded once as a CUDA graph and then replayed, so that the thousand small kernels of an
unroll follow each other without waiting for Python.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neural_em.data import Dataset
from neural_em.errors import NeuralEMError, first_line, refuse
from neural_em.model import BaseConfig, Model, NeuralEM, State, build
from neural_em.model.distributions import Gaussian
from neural_em.model.fast import FastNeuralEM, accelerate
from neural_em.model.fast.graphs import no_collection
from neural_em.model.fast.twin import kernels_for
from neural_em.training.adam import Adam
from neural_em.training.config import TrainingConfig

Step = Callable[[Tensor, Tensor], Tensor]
_COPIES = 4  # of the weights: they themselves, their gradients, Adam's two moments
_KEPT = 0.5  # of what the plain step keeps for the backward pass; the fast one keeps about so much


class TrainingStep:
    """Calls train the model in place and return the loss, still on the device and not waited for.

    The work goes to the current stream: models that train side by side each need a stream of their own. Several
    processes share each batch; their gradients are summed.
    """

    def __init__(self, model: Model, dataset: Dataset, config: TrainingConfig, world_size: int = 1) -> None:
        self.model, self.dataset, self.config, self.world_size = model, dataset, config, world_size
        self.device = next(model.parameters()).device
        cuda = self.device.type == "cuda"
        half = torch.bfloat16 if config.precision == "bf16" else None
        if half is not None and not (cuda and torch.cuda.is_bf16_supported(including_emulation=False)):
            raise NeuralEMError(f"training.precision=bf16 needs a CUDA GPU that has it; this run is on {self.device}")
        self.network = accelerate(model, half) if config.engine == "fast" else model
        self.exact = self.network if half is None else accelerate(model)  # to validate with
        if isinstance(self.network, FastNeuralEM):
            self.network.in_larger_graph = True
        rate: float | Tensor = config.learning_rate
        if cuda and config.schedule != "constant":  # a graph reads it from where it lies
            rate = torch.tensor(rate, device=self.device)
        kernels = kernels_for(self.device.type) if config.engine == "fast" else None
        self.optimizer = Adam(model.parameters(), rate, kernels)
        self.deviation: Tensor | None = None  # of the E-step, where it is annealed: a graph reads it from where it lies
        if config.first_deviation is not None:
            if not isinstance(model, NeuralEM) or not isinstance(model.distribution, Gaussian):
                raise NeuralEMError("training.first_deviation is for model.distribution=gaussian or masked")
            self.deviation = next(model.parameters()).new_tensor(config.first_deviation)
        self.steps: dict[tuple[int, float, int], Step] = {}  # one graph for each size of batch and number of components

    def __call__(self, indices: Tensor, keys: Tensor, share: float = 1.0, components: int | None = None) -> Tensor:
        """One step on this process's samples, of indices (B,), with noise and starts drawn from keys (B,).

        Losses and gradients are weighted by ``share``, this process's part of the batch; ``components`` is K, or
        the config's.
        """
        K = components or self.config.components
        if self.device.type != "cuda":
            return self._update(self._gradients(self._frames(indices), keys, share, K))
        signature = (len(indices), share, K)
        try:
            if signature not in self.steps:
                self.steps[signature] = self._record(indices, keys, share, K)
            return self.steps[signature](indices, keys)
        except torch.OutOfMemoryError:
            raise NeuralEMError(
                f"out of memory: a training step on {len(indices)} samples with {K} components does not fit into the "
                "GPU's; try a smaller training.batch_size, fewer components, or training.segment=5"
            ) from None

    def set_rate(self, rate: float) -> None:
        """The learning rate from the next step on, where the config's schedule lets it vary."""
        (group,) = self.optimizer.param_groups
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def set_deviation(self, done: float) -> None:
        """The E-step's deviation from the next step on, after so much of the way to the model's own."""
        if self.deviation is not None and self.config.first_deviation is not None:
            config: Any = self.model.config
            first, last = self.config.first_deviation, config.e_step_deviation
            self.deviation.fill_(first * (last / first) ** min(done, 1.0))

    def _frames(self, indices: Tensor) -> Tensor:
        return self.dataset.batch(indices).frames.to(next(self.model.parameters()).dtype)

    def _gradients(self, x: Tensor, keys: Tensor, share: float, K: int) -> Tensor:
        """Puts the gradients into the parameters; the loss."""
        network, T, segment = self.network, self.config.steps, self.config.segment
        annealed = self.deviation is not None  # a model of another kind may have no such thing
        x_noisy, gamma = network.draw(x, K, keys, T)
        self.optimizer.zero_grad(set_to_none=True)
        if annealed:
            network.deviation = self.deviation
        try:
            if segment is not None:
                x = network.frames(x, T, check=False)
                start = network.start(x[0], K, gamma)
                return segmented_gradients(network, x, x_noisy, start, share, segment, self.config.truncate)
            loss = network.unroll(x, K, T, x_noisy=x_noisy, gamma=gamma, check=False, watch=False).loss * share
            loss.backward()
            return loss.detach()
        finally:
            if annealed:
                network.deviation = None  # validation has the model's own

    def _update(self, loss: Tensor) -> Tensor:
        """A step of Adam, on the sum of all processes' gradients; the sum of their losses."""
        if self.world_size > 1:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [loss.reshape(1)])
            torch.distributed.all_reduce(flat)
            for gradient, part in zip(gradients, flat[:-1].split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
            loss = flat[-1]
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        return loss

    def _record(self, indices: Tensor, keys: Tensor, share: float, K: int) -> Step:
        """The step as a CUDA graph, or as it is, with a warning, where it cannot be recorded."""
        indices, keys = indices.to(self.device, copy=True), keys.to(self.device, copy=True)
        resident = self.dataset.resident  # else the batch is fetched outside the graph
        x = self._frames(indices)

        def body() -> Tensor:
            loss = self._gradients(self._frames(indices) if resident else x, keys, share, K)
            return self._update(loss) if self.world_size == 1 else loss

        stream = torch.cuda.Stream(self.device)  # its own: graphs recorded on one stream share a workspace
        torch.cuda.synchronize(self.device)
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = not self.config.deterministic  # the best of its algorithms, by trying them
        try:
            with torch.cuda.stream(stream):
                for _ in range(2):  # libraries set themselves up; nothing is trained
                    self._gradients(x, keys, share, K)
                self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = body()
            torch.cuda.synchronize(self.device)
            gradients = [parameter.grad for parameter in self.model.parameters()]  # where this graph leaves them
        except torch.OutOfMemoryError:
            raise  # it would not fit without a graph either
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph, training is slower: {first_line(error)}", stacklevel=2)
            torch.cuda.synchronize(self.device)
            return lambda i, k: self._update(self._gradients(self._frames(i), k.to(self.device), share, K))
        finally:
            torch.backends.cudnn.benchmark = before

        def replay(new_indices: Tensor, new_keys: Tensor) -> Tensor:
            indices.copy_(new_indices, non_blocking=True)
            keys.copy_(new_keys, non_blocking=True)
            if not resident:
                x.copy_(self._frames(new_indices))
            graph.replay()
            if self.world_size == 1:
                return out.clone()
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            return self._update(out.clone())

        return replay

    def memory(self) -> dict[str, Tensor]:
        """The optimizer's memory itself, as named tensors; `fill` puts another's into it, whatever its device was."""
        return {
            f"{name}.{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }


@torch.no_grad()
def fill(places: Mapping[str, Tensor], tensors: Mapping[str, Tensor], what: str) -> None:
    """Puts tensors into the places of their names, if all of them fit."""
    for name, place in places.items():
        given = tensors.get(name)
        if given is None or given.shape != place.shape:
            got = "nothing" if given is None else tuple(given.shape)
            refuse(f"{what}: {name}", f"shape {tuple(place.shape)}", got)
    for name, place in places.items():
        place.copy_(tensors[name])


def segmented_gradients(
    network: Model, x: Tensor, x_noisy: Tensor, start: State, share: float, length: int, truncate: bool
) -> Tensor:
    """Adds the gradients of ``share`` times the unroll's loss to the parameters, keeping ``length`` steps at a time.

    Without truncation they are exact to rounding: the states between the segments are found first, then each segment is
    run again, from the last to the first, and handed the gradient of the state it ends in. With truncation each segment
    goes back on its own, as soon as it is run, and no gradient crosses its borders.

    Frames x (T+1,B,C,H,W), x_noisy (T,B,C,H,W); ``start`` is the state before the first step. Returns the loss,
    detached.
    """
    weights, watched = network.step_weights(len(x_noisy), x) * share, network.loss_weights(len(x_noisy))
    spans = [slice(i, min(i + length, len(x_noisy))) for i in range(0, len(x_noisy), length)]

    def run(state: State, span: slice) -> tuple[State, Tensor]:
        out = network.run(state, x[span.start : span.stop + 1], x_noisy[span], weights[span], watched[span])
        return State(out.theta[-1], out.psi[-1], out.gamma[-1], state.prior), out.loss

    if truncate:
        losses = []
        for span in spans:
            start, loss = run(_cut(start), span)
            losses.append(loss.detach())
            if loss.requires_grad:
                loss.backward()
        return torch.stack(losses).sum()

    states, learned = [start], start.prior if start.prior is not None and start.prior.requires_grad else None
    with torch.no_grad():
        for span in spans[:-1]:
            states.append(run(states[-1], span)[0])
    losses, after = [], None
    for span, before in zip(reversed(spans), reversed(states), strict=True):
        before = _cut(before, learned is not None)
        for part in (before.theta, before.psi, before.gamma):
            part.requires_grad_()
        end, loss = run(before, span)
        roots: list[tuple[Tensor, Tensor | None]] = [(loss, None)]
        if after is not None:  # what the later segments want of this one's end
            parts = zip(end, after, strict=True)
            roots += [(part, grad) for part, grad in parts if part is not None and grad is not None]
        roots = [(root, gradient) for root, gradient in roots if root.requires_grad]
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
        after = tuple(None if part is None else part.grad for part in before)
        losses.append(loss.detach())
    if learned is not None and after is not None:  # the start, too, comes from the learned prior
        torch.autograd.backward([start.psi, learned], [after[1], after[3]])
    return torch.stack(losses).sum()


def _cut(state: State, learned: bool = False) -> State:
    """The state without what it came from; a learned prior is cut off only where its gradient is wanted by itself."""
    theta, psi, gamma, prior = state
    prior = prior.detach().requires_grad_() if prior is not None and learned else prior
    return State(theta.detach(), psi.detach(), gamma.detach(), prior)


def memory_needed(config: BaseConfig, training: TrainingConfig, frames: int) -> int:
    """About how many bytes a training step takes: for the weights, and for what a batch keeps for the backward pass."""
    kept = 0  # by one step on one sample

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        if id(tensor) not in weights and id(tensor._base) not in weights:
            kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.device("meta"):  # shapes, without numbers
        model = build(config)
        weights = {id(weight): weight.numel() for weight in model.parameters()}
        x = torch.zeros(1, config.channels, config.height, config.width)
        gamma = torch.ones(1, training.components, 1, config.height, config.width)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            try:
                model.advance(model.first_state(x, gamma), x, x, True)
            except RuntimeError:  # N-EM's step takes gradients itself, and nobody may look on; it keeps little
                kept = 0
    steps = training.segment or training.steps or (frames - 1 if frames > 1 else config.steps)
    return int(4 * _COPIES * sum(weights.values()) + _KEPT * kept * training.batch_size * steps)
