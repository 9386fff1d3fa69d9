"""What theta knows: readouts of the objects' true properties from the theta of the component that each object has.

The readouts are trained on one half of the sequences and scored on the other. One is linear (ridge regression, in
closed form), one a network with a hidden layer; how strongly each is held back is chosen on a fifth of its own half.
"""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_em.data.dataset import Dataset
from neural_em.errors import NeuralEMError, refuse
from neural_em.evaluation.evaluate import EvaluationConfig, evaluating, start_keys, steps_with_input
from neural_em.evaluation.results import Readout
from neural_em.model import Model
from neural_em.model.inference import batch_that_fits, infer, next_groups

_PENALTIES = (1e-6, 1e-4, 1e-2, 1.0)  # of the ridge, times the number of objects
_HIDDEN, _BATCH, _RATE = 128, 256, 5e-3  # of the network
_STEPS, _LOOK, _PATIENCE = 800, 50, 200  # at most; between two looks at its score; without a better one
Predict = Callable[[Tensor], Tensor]


def check_known(dataset: Dataset) -> None:
    """Refuses data of whose objects nothing is known, before anything is computed."""
    if dataset.truth is None or not dataset.has_groups:
        raise NeuralEMError("probe: these data do not tell what their objects are; generated data do")


def probe(model: Model, dataset: Dataset, config: EvaluationConfig) -> dict[str, Readout]:
    """How well each property that the data know can be read from theta after the last step with input.

    The first start is looked at. Properties that are the same for all objects are left out.
    """
    check_known(dataset)
    size = min(len(dataset), config.limit or len(dataset))
    if size < 10:
        refuse("size", "at least 10 sequences for a probe", size)
    theta, known, sequence = _samples(model, dataset, config, size)
    learn = sequence < size // 2
    found = {name: read_out(theta, target, learn) for name, target in known.items()}
    return {name: readout for name, readout in found.items() if readout is not None}


def _samples(
    model: Model, dataset: Dataset, config: EvaluationConfig, size: int
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Of n objects that are seen: theta (n,M), the properties (n,...), the number of the sequence (n,)."""
    weight, steps = next(model.parameters()), steps_with_input(model, dataset, config)
    _, C, H, W = dataset.shape
    lot = batch_that_fits(config.components * C * H * W * steps, weight.device, config.batch_size)
    thetas, sequences, known = [], [], list[dict[str, Tensor]]()
    with evaluating(model):
        for first in range(0, size, lot):
            indices = torch.arange(first, min(first + lot, size))
            frames, groups = dataset.batch(indices)
            assert groups is not None
            frames, groups = (part[: 1 if config.static else None].to(weight.device) for part in (frames, groups))
            keys = start_keys(config.seed, 0, indices, weight.device)
            x, noise = frames.to(weight), not config.clean
            found = infer(model, x, config.components, keys, steps, noise=noise, check=first == 0)
            (last,) = deque(found, maxlen=1)
            truth = dataset.properties(indices)
            objects = next(iter(truth.values())).shape[2]
            component, seen = match(last.state.gamma, next_groups(groups, steps)[-1], objects)
            theta = last.state.theta.flatten(2)
            thetas.append(theta.gather(1, component[..., None].expand(-1, -1, theta.shape[2]))[seen])
            sequences.append(indices.to(seen.device)[:, None].expand_as(seen)[seen])
            frame = 0 if len(frames) == 1 else steps
            known.append({name: value[frame].to(seen.device)[seen] for name, value in truth.items()})
    properties = {name: torch.cat([part[name] for part in known]) for name in known[0]}
    return torch.cat(thetas), properties, torch.cat(sequences)


def match(gamma: Tensor, groups: Tensor, objects: int) -> tuple[Tensor, Tensor]:
    """For each object the component (B,G) that has most of its pixels (B,H,W), and whether it is seen at all (B,G)."""
    own = groups.flatten(1)[:, None] == torch.arange(1, objects + 1, device=groups.device)[:, None]  # (B,G,H*W)
    overlap = own.to(gamma.dtype) @ gamma[:, :, 0].flatten(2).transpose(1, 2)  # (B,G,K)
    return overlap.argmax(dim=2), own.any(dim=2)


def read_out(theta: Tensor, target: Tensor, learn: Tensor) -> Readout | None:
    """Trains both readouts of theta (n,M) on the objects that ``learn`` (n,) names and scores them on the others.

    Targets (n,) or (n,D): floating-point values are scored by R², mean over D, integers by accuracy.
    """
    classes = not target.is_floating_point()
    if classes:
        _, target = target.unique(return_inverse=True)
        target = F.one_hot(target)
    target = target.to(torch.float64).reshape(len(theta), -1)
    varies = (target[learn].std(dim=0) > 1e-9) & (target[~learn].std(dim=0) > 1e-9)
    if min(int(learn.sum()), int((~learn).sum())) < 5 or not varies.any():
        return None
    target = target if classes else target[:, varies]
    mean, scale = theta[learn].mean(dim=0), theta[learn].std(dim=0)
    inputs = ((theta - mean) / torch.where(scale > 1e-9, scale, 1)).to(torch.float64)
    inner = learn.clone()  # what is learnt from while the penalty is chosen
    inner[learn.nonzero()[::5, 0]] = False
    choose = learn & ~inner

    def score(predict: Predict, rows: Tensor) -> float:
        predicted, true = predict(inputs[rows]), target[rows]
        if classes:
            return float((predicted.argmax(dim=1) == true.argmax(dim=1)).to(torch.float64).mean())
        rest = (predicted - true).square().sum(dim=0)
        return float((1 - rest / (true - true.mean(dim=0)).square().sum(dim=0)).mean())

    ridges = [_ridge(inputs[inner], target[inner], penalty) for penalty in _PENALTIES]
    best = max(range(len(ridges)), key=lambda i: score(ridges[i], choose))
    linear = _ridge(inputs[learn], target[learn], _PENALTIES[best])
    network = _network(inputs, target, inner, classes, lambda predict: score(predict, choose))
    name = "accuracy" if classes else "R²"
    return Readout(name, score(linear, ~learn), score(network, ~learn), int((~learn).sum()))


def _ridge(inputs: Tensor, target: Tensor, penalty: float) -> Predict:
    """Linear regression whose weights are held small, with a constant that is not."""
    middle, mean = inputs.mean(dim=0), target.mean(dim=0)
    centred = inputs - middle
    gram = centred.T @ centred
    gram.diagonal().add_(penalty * len(inputs))
    weight = torch.linalg.solve(gram, centred.T @ (target - mean))
    return lambda x: (x - middle) @ weight + mean


def _network(
    inputs: Tensor, target: Tensor, learn: Tensor, classes: bool, score: Callable[[Predict], float]
) -> Predict:
    """A network with one hidden layer, as it was when it scored best."""
    generator = torch.Generator().manual_seed(0)
    mean, scale = (0.0, 1.0) if classes else (target[learn].mean(dim=0), target[learn].std(dim=0))
    x, y = inputs[learn].float(), ((target[learn] - mean) / scale).float()
    sizes = ((x.shape[1], _HIDDEN), (_HIDDEN, y.shape[1]))
    weights = []
    for fan_in, fan_out in sizes:
        weights += [torch.randn(fan_in, fan_out, generator=generator) * fan_in**-0.5, torch.zeros(fan_out)]
    weights = [weight.to(x.device).requires_grad_() for weight in weights]

    def forward(rows: Tensor, w: list[Tensor]) -> Tensor:
        return torch.relu(rows @ w[0] + w[1]) @ w[2] + w[3]

    def kept() -> Predict:
        held = [weight.detach().clone() for weight in weights]
        return lambda rows: forward(rows.float(), held).to(torch.float64) * scale + mean

    optimizer = torch.optim.AdamW(weights, lr=_RATE, weight_decay=1e-2)
    best, best_score, best_step = kept(), -1e9, 0
    with torch.enable_grad():
        for step in range(1, _STEPS + 1):
            rows = torch.randint(len(x), (_BATCH,), generator=generator).to(x.device)
            guess = forward(x[rows], weights)
            loss = F.cross_entropy(guess, y[rows]) if classes else F.mse_loss(guess, y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % _LOOK == 0 and (now := score(kept())) > best_score + 1e-3:
                best, best_score, best_step = kept(), now, step
            if step - best_step > _PATIENCE:
                break
    return best
