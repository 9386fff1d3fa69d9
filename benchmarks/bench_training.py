"""Times the training step that ``nem train`` runs, the plain and eager ones beside it, several seeds and an epoch.

A step gathers the batch, draws noise and starts, unrolls, goes back and moves Adam; batch 64 and the paper's steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.timing import seconds, timed
from neural_em import config as configs
from neural_em import randomness
from neural_em.data import Dataset, load_split
from neural_em.experiments import preset
from neural_em.model import NeuralEM
from neural_em.model.networks import Activation
from neural_em.training import device as devices
from neural_em.training import fit, order
from neural_em.training.step import TrainingStep

SAMPLES, BATCH = 512, 64
GAUSSIAN = ["model.distribution=gaussian", "model.window=null"]
FOUR = ["data.most_objects=null", "training.components=5"]  # balls, as the authors of R-NEM train on them
NO_WINDOW = [*FOUR, "model.window=null"]
CASES = {  # name: preset, settings, target in seconds on a GPU and on two CPU cores
    "flying shapes, K = 5": ("flying-shapes", ["training.components=5"], 0.012, None),
    "flying shapes, K = 3": ("flying-shapes", [], 0.008, 5.0),
    "static shapes, K = 4": ("static-shapes", [], 0.002, 0.19),
    "static shapes, N-EM, K = 4": ("static-shapes-nem", [], None, None),
    "flying digits, K = 2": ("flying-mnist", [], 0.008, None),
    "bouncing balls, R-NEM, K = 5": ("bouncing-balls", NO_WINDOW, None, None),
    "bouncing balls, R-NEM, K = 5, in windows": ("bouncing-balls", FOUR, None, None),
    "bouncing balls, RNN-EM, K = 5": ("bouncing-balls-rnn-em", NO_WINDOW, None, None),
    "coloured shapes, K = 5": ("coloured-shapes", [], None, None),
    "coloured shapes, Gaussian pixels, K = 4": ("coloured-shapes", [*GAUSSIAN, "training.components=4"], None, None),
    "sprites, K = 5": ("sprites", ["training.steps=20"], None, None),
    "sprites, Gaussian pixels, K = 5": ("sprites", [*GAUSSIAN, "training.steps=20"], None, None),
}
PLAIN, BF16, DETERMINISTIC = ["training.engine=plain"], ["training.precision=bf16"], ["training.deterministic=true"]
DIGITS_STAND_IN = ["data.kind=flying-shapes", "data.height=24", "data.width=24", "data.objects=2"]  # needs no MNIST


def main() -> dict[str, Any]:
    """Rows of step times; on a GPU also five seeds at once and an epoch against its steps."""
    device = devices.choose()
    rows = []
    with devices.products("auto", device):
        peak, bandwidth = product_peak(device), copy_bandwidth(device)
        for name, (base, settings, gpu, cpu) in CASES.items():
            if device.type == "cpu" and cpu is None and not name.startswith("static"):
                continue
            rows.append({"step": name, **step_times(base, settings, device, peak, bandwidth),
                         "target s": gpu if device.type == "cuda" else cpu})  # fmt: skip
        result: dict[str, Any] = {"device": device.type, "product peak TFLOP/s": peak / 1e12,
                                  "copy bandwidth TB/s": bandwidth / 1e12, "rows": rows}  # fmt: skip
        if device.type == "cuda":
            small = [name for name in CASES if "sprites" not in name]  # five of those fit into few GPUs
            result["several seeds at once"] = [seeds_at_once(name, device) for name in small]
            result["an epoch"] = [epoch_and_steps(name, (), device) for name in ("static-shapes", "flying-shapes")]
    return result


def product_peak(device: torch.device) -> float:
    """FLOP/s of a large matrix product, in the precision that training uses."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = torch.randn(2, size, size, device=device)
    return 2 * size**3 / timed(lambda: a @ b, device, 5)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second read and written by a large copy."""
    a = torch.zeros(1 << (28 if device.type == "cuda" else 24), device=device)
    b = torch.empty_like(a)
    return 2 * a.nbytes / timed(lambda: b.copy_(a), device, 5)


class ProductTime(TorchDispatchMode):
    """Adds up the seconds of all matrix products and convolutions, there and back, on a CPU."""

    seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = seconds()
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.seconds += seconds() - start
        return out


def against_arithmetic(step: Callable[[], Any], taken: float, before: float, device: torch.device) -> dict[str, Any]:
    """A step's own arithmetic, and how many times as long the step takes: at two rates of products.

    One rate is that of large products, the mean of ``before`` and of now, since other programs may use the processor;
    the other that of the step's own products, timed within it. Only products and convolutions count, a
    multiplication and an addition as two.
    """
    with ProductTime() as products, FlopCounterMode(display=False) as counter:
        step()
    rate, work = (before + product_peak(device)) / 2, counter.get_total_flops()
    own = work / products.seconds
    return {"GFLOP": work / 1e9, "large products GFLOP/s": rate / 1e9, "time / arithmetic": taken * rate / work,
            "its products GFLOP/s": own / 1e9, "time / arithmetic at their rate": taken * own / work}  # fmt: skip


def activation_bytes(experiment: Any, frame: torch.Tensor) -> int:
    """Bytes of what all layers of the M-step give in one EM step on a frame (B,C,H,W), and of psi."""
    model, found = NeuralEM(experiment.model).to(frame.device), []
    for layer in model.modules():
        if isinstance(layer, Activation):
            layer.register_forward_hook(lambda layer, given, out: found.append(out.nbytes))
    with torch.no_grad():
        state, _ = model.step(model.start(frame, experiment.training.components), frame, frame, check=False)
    return sum(found) + state.psi.nbytes


def setting(base: str, settings: list[str], device: torch.device) -> tuple[Any, Dataset]:
    """The experiment and some training data."""
    experiment = configs.override(preset(base), settings)
    stand_in = DIGITS_STAND_IN if base == "flying-mnist" else []
    data = configs.override(experiment, [*stand_in, f"data.train_size={SAMPLES}"]).data
    return experiment, load_split(data, "training", 0, device)


def stepper(
    experiment: Any, data: Dataset, device: torch.device, settings: Sequence[str] = (), seed: int = 0
) -> Callable[[], Any]:
    """A step on the same batch again and again, as training does it."""
    training = configs.override(experiment, settings).training
    model = NeuralEM(experiment.model, seed=seed).to(device)
    step = TrainingStep(model, data, training)
    indices = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))[:BATCH].to(device)
    keys = randomness.keys(seed, indices.cpu()).to(device)
    return lambda: step(indices, keys)


def eager(experiment: Any, data: Dataset, device: torch.device) -> Callable[[], Any]:
    """The same step written down plainly: no graph, no twin."""
    model, K, T = NeuralEM(experiment.model).to(device), experiment.training.components, experiment.training.steps
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    indices = torch.arange(BATCH, device=device)

    def step() -> None:
        x = data.batch(indices).frames
        x_noisy, gamma = model.draw(x, K, randomness.keys(0, indices.cpu()).to(device), T)
        optimizer.zero_grad()
        model.unroll(x, K, T, x_noisy=x_noisy, gamma=gamma, check=False).loss.backward()
        optimizer.step()

    return step


def step_times(
    base: str, settings: list[str], device: torch.device, peak: float, bandwidth: float
) -> dict[str, Any]:  # fmt: skip
    """Seconds of one step: eager, plain and fast; and the fast one's share of the products' peak and of the floor.

    The floor: all products at the peak, and what every layer gives, and its gradient, written once and read once.
    """
    experiment, data = setting(base, settings, device)
    repeat = 20 if device.type == "cuda" else 3
    row: dict[str, Any] = {"eager s": timed(eager(experiment, data, device), device, max(3, repeat // 4))}
    if device.type == "cuda":
        row["plain, as a graph s"] = timed(stepper(experiment, data, device, PLAIN), device, repeat)
    before = product_peak(device)
    fast = stepper(experiment, data, device)
    row["fast s"] = timed(fast, device, repeat)
    if device.type == "cpu":
        row |= against_arithmetic(fast, row["fast s"], before, device)
    if device.type == "cuda":
        row["bf16 s"] = timed(stepper(experiment, data, device, BF16), device, repeat)
        with devices.products("auto", device, deterministic=True):
            row["deterministic s"] = timed(stepper(experiment, data, device, DETERMINISTIC), device, repeat)
    with FlopCounterMode(display=False) as counter:
        eager(experiment, data, device)()
    row["GFLOP of the plain step"] = counter.get_total_flops() / 1e9
    row["share of the peak"] = counter.get_total_flops() / row["fast s"] / peak
    x = data.batch(torch.arange(BATCH)).frames
    steps = experiment.training.steps or (len(x) - 1 if len(x) > 1 else experiment.model.steps)
    row["GB of activations"] = steps * activation_bytes(experiment, x[0]) / 1e9
    row["floor s"] = counter.get_total_flops() / peak + 4e9 * row["GB of activations"] / bandwidth
    row["share of the floor"] = row["floor s"] / row["fast s"]
    return row


def seeds_at_once(name: str, device: torch.device) -> dict[str, Any]:
    """Seconds of one step of one, three and five models on streams of their own, in the usual precision and in bf16."""
    base, settings, *_ = CASES[name]
    experiment, data = setting(base, settings, device)
    row: dict[str, Any] = {"step": name}
    for seeds in (1, 3, 5):
        row[f"{seeds} s"] = together(experiment, data, device, seeds, ())
        row[f"{seeds}, bf16 s"] = together(experiment, data, device, seeds, BF16)
    return {**row, "5 / 1": row["5 s"] / row["1 s"], "5 / 1, bf16": row["5, bf16 s"] / row["1, bf16 s"]}


def together(experiment: Any, data: Dataset, device: torch.device, seeds: int, settings: Sequence[str]) -> float:
    """Seconds in which each of several models makes one step."""
    steps = [stepper(experiment, data, device, settings, seed) for seed in range(seeds)]
    streams = [torch.cuda.Stream(device) for _ in steps]
    torch.cuda.synchronize(device)

    def all_of_them() -> None:
        for step, stream in zip(steps, streams, strict=True):
            with torch.cuda.stream(stream):
                step()

    return timed(all_of_them, device, 20)


def epoch_and_steps(base: str, settings: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Seconds of the third epoch with its order, log, validation, scores and checkpoint, and of its steps alone."""
    experiment = configs.override(preset(base), ["training.epochs=3", "training.tensorboard=false", *settings])
    data, validation = (load_split(experiment.data, part, 0, device) for part in ("training", "validation"))
    with tempfile.TemporaryDirectory() as folder:
        model = NeuralEM(experiment.model).to(device)
        outcome = fit(model, data, experiment.training, validation, folder)
    step = TrainingStep(model, data, experiment.training)
    indices, keys = order.plan(0, 0, len(data), experiment.training.batch_size, device)
    steps = timed(lambda: step(indices[0], keys[0]), device, min(300, len(indices))) * len(indices)
    epoch = outcome.progress.rows[-1].seconds  # the first one also records the graph
    return {"epoch": base, "s": epoch, "steps alone s": steps, "more": epoch / steps - 1}
