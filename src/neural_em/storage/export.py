"""A model for other programs: one EM step and a whole unroll, as ONNX or as PyTorch's own exported programs.

Both take any number of samples and components (PyTorch's at least two). The ONNX unroll takes any number of steps too:
it is the step's graph inside a loop, with the same weights. PyTorch's is made for a fixed number of steps.
"""

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neural_em import config as configs
from neural_em.errors import NeuralEMError, check_integer, unknown
from neural_em.model import BaseConfig, Info, Model, NeuralEM, State
from neural_em.model.inference import stacked, unrolled
from neural_em.model.m_step import differentiated_twice
from neural_em.storage.folders import new_folder
from neural_em.storage.weights import filled

ABOUT, PARTS = "export.json", ("step", "unroll")
CARRIED = ("theta", "psi", "gamma")  # from step to step; a prior of the images' own stays the same
UNROLL_INPUTS = ("x", "x_noisy", "gamma")
START_INPUTS, START_OUTPUTS = ("gamma", "first_frame"), ("theta", "psi", "prior")
OUTPUTS = tuple(f"{name}_out" for name in (*CARRIED, *Info._fields))


class Part(nn.Module):
    """Something that a model does, with plain tensors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model


class Step(Part):
    """`NeuralEM.step`: theta, psi, gamma, x_noisy, x_next to theta, psi, gamma and the losses."""

    def forward(self, theta: Tensor, psi: Tensor, gamma: Tensor, x_noisy: Tensor, x_next: Tensor) -> tuple[Tensor, ...]:
        prior = self.model.prior(x_noisy) if isinstance(self.model, NeuralEM) else None
        return self.step(State(theta, psi, gamma, prior), x_noisy, x_next)

    def step(self, state: State, x_noisy: Tensor, x_next: Tensor) -> tuple[Tensor, ...]:
        after, info = self.model.step(state, x_noisy, x_next, check=False)
        return (after.theta, after.psi, after.gamma, *(loss.clone() for loss in info))  # two losses may be one tensor


class StepOfImages(Step):
    """The step of a model whose prior is the image's own: the prior is an input, the same for all steps."""

    def forward(  # type: ignore[override]
        self, theta: Tensor, psi: Tensor, gamma: Tensor, prior: Tensor, x_noisy: Tensor, x_next: Tensor
    ) -> tuple[Tensor, ...]:
        return self.step(State(theta, psi, gamma, prior), x_noisy, x_next)


class Start(Part):
    """The first theta and psi, and the images' own prior where the model has one, from gamma and the first frame."""

    def forward(self, gamma: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        theta, psi, _, prior = self.model.first_state(x, gamma)
        return (theta, psi) if prior is None else (theta, psi, prior.clone())


class Unroll(Part):
    """T steps from the start: x (T+1,B,C,H,W), x_noisy (T,B,C,H,W), gamma (B,K,1,H,W) to every step's outputs."""

    def forward(self, x: Tensor, x_noisy: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
        """Theta (T,B,K,M), psi, gamma, and losses (T,B)."""
        steps = unrolled(self.model, self.model.first_state(x[0], gamma), x, x_noisy)
        return tuple(stacked((state.theta, state.psi, state.gamma, *info) for state, info in steps))


def step_inputs(config: BaseConfig) -> tuple[str, ...]:
    """What an exported step takes, in this order."""
    return (*CARRIED, *(("prior",) if config.prior == "median" else ()), "x_noisy", "x_next")


def export(
    model: Model, path: str | os.PathLike[str], format: str = "onnx", steps: int | None = None
) -> dict[str, Path]:
    """Writes a folder with the step, the unroll and a description of both; whole or not at all.

    Args:
        model: what to export.
        path: the folder; one that holds an earlier export and nothing else is replaced.
        format: ``onnx`` (needs the extra 'onnx') or ``torch``.
        steps: EM steps of PyTorch's unroll; the model's own number for a single image where not given.

    Returns:
        The files, by what they are.
    """
    if format not in FORMATS:
        unknown("format", format, FORMATS)
    if not getattr(model, "exports", True):
        raise NeuralEMError(f"export: a model with model.kind={model.config.kind} cannot be exported yet")
    T = check_integer("steps", model.config.steps if steps is None else steps, least=1)
    suffix, make = FORMATS[format]
    weights = {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in model.state_dict().items()}
    model = filled(model.config, weights, "model: weights").eval().requires_grad_(False)
    with new_folder(path, (ABOUT,), [f"{part}.{kind}" for part in PARTS for kind, _ in FORMATS.values()]) as folder:
        try:
            make(model, T, folder)
        except ImportError as error:
            raise NeuralEMError(f"{format}: needs the extra: pip install 'neural-em[onnx]' ({error})") from None
        text = json.dumps(_description(model, format, T), indent=2)
        (folder / ABOUT).write_text(text + "\n", encoding="utf-8")
    names = {**{part: f"{part}.{suffix}" for part in PARTS}, "about": ABOUT}
    return {what: Path(path) / name for what, name in names.items()}


def _write_torch(model: Model, steps: int, folder: Path) -> None:
    x, start = _example(model, steps)
    unroll = _program(model, Unroll(model), (x, x[1:].clone(), start.gamma), (".B", ".B", "BK"))
    for name, program in (("step", _step_program(model)), ("unroll", unroll)):
        held = io.BytesIO()  # a disk that is full ends the process where PyTorch itself writes to it
        torch.export.save(program, held)
        (folder / f"{name}.pt2").write_bytes(held.getbuffer())


def _write_onnx(model: Model, steps: int, folder: Path) -> None:
    from neural_em.storage import onnx_graphs as graphs

    x, (_, _, gamma, _) = _example(model, 1)
    programs = _program(model, Start(model), (gamma, x[0].clone()), ("BK", "B")), _step_program(model)
    with _quiet():
        start = graphs.named(programs[0], START_INPUTS, START_OUTPUTS)
        step = graphs.named(programs[1], step_inputs(model.config), OUTPUTS)
    graphs.write(step, folder / "step.onnx")
    graphs.write(graphs.looped(start, step, model.config), folder / "unroll.onnx")


# what each format calls its files, and what writes them
FORMATS: dict[str, tuple[str, Callable[[Model, int, Path], None]]] = {
    "onnx": ("onnx", _write_onnx),
    "torch": ("pt2", _write_torch),
}


def _step_program(model: Model) -> Any:
    x, (theta, psi, gamma, prior) = _example(model, 1)
    own = (prior,) if prior is not None and "prior" in step_inputs(model.config) else ()
    arguments = (theta, psi, gamma, *own, x[0].clone(), x[1].clone())  # one given twice would be one input
    axes = ("BK",) * len(CARRIED) + ("B",) * (len(arguments) - len(CARRIED))
    return _program(model, StepOfImages(model) if own else Step(model), arguments, axes)


def _example(model: Model, steps: int) -> tuple[Tensor, State]:
    """Frames to trace with, and a start; B and K unlike every other size, since the tracer takes equal ones for one."""
    frame = (model.config.channels, model.config.height, model.config.width)
    taken = {steps, steps + 1, *frame, *(size for parameter in model.parameters() for size in parameter.shape)}
    B, K = [size for size in (2, 3, 5, 7, 11, 13, 17, 19, 23) if size not in taken][:2]
    x = torch.zeros(steps + 1, B, *frame)
    return x, model.start(x[0], K)


def _program(model: Model, module: nn.Module, arguments: tuple[Tensor, ...], axes: tuple[str, ...]) -> Any:
    """The module as an exported program, whose arguments have any size along the axes called B and K.

    A gradient that the M-step takes is written out first, as plain operations.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    # the exporter takes B = B*K for a special case and writes its opposite into the program: K = 1 is left out
    free = {"B": torch.export.Dim("batch", min=1), "K": torch.export.Dim("components", min=2)}
    dynamic = tuple({i: free[axis] for i, axis in enumerate(names) if axis in free} for names in axes)
    with _quiet():
        if differentiated_twice(getattr(model, "m_step", None)):
            table = {torch.ops.aten.convolution_backward.default: _convolution_backward}
            trace = make_fx(module, table, tracing_mode="symbolic", _allow_non_fake_inputs=True)
            module = trace(*arguments)
        program = torch.export.export(module, arguments, dynamic_shapes=dynamic)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where on whose disk each line of code was
    return program


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, wanted: Any,
) -> tuple[Tensor, None, None]:  # fmt: skip
    """The gradient of a convolution with stride 1 towards its input: a transposed convolution."""
    back = torch.ops.aten.convolution(grad, weight, None, stride, padding, dilation, True, [0, 0], groups)
    return back, None, None


def _start_in_words(model: Model) -> str:
    if type(model).first_state is not NeuralEM.first_state:
        return f"that of a model of kind {model.config.kind}; the unroll makes it"
    own = {
        "median": "prior = each channel's median over the first frame (the lower one of two), (B,C,1,1)",
        "background": "the learned background",
    }
    psi = own.get(str(model.config.prior), "0")
    return f"theta = 0, psi = {psi}, gamma = |normal| divided by its sum over K"


def _description(model: Model, format: str, steps: int) -> dict[str, Any]:
    c = model.config
    frame = f"{c.channels},{c.height},{c.width}"
    free = {"B": "at least 1", "K": "at least 1", "T": "at least 1"}
    if format == "torch":
        free |= {"K": "at least 2", "T": f"{steps}"}
    return {
        "format": format,
        "model": configs.to_dict(c),
        "step": {"inputs": step_inputs(c), "outputs": OUTPUTS},
        "unroll": {"inputs": UNROLL_INPUTS, "outputs": OUTPUTS},
        "sizes": free,
        "shapes": {
            "x": f"(T+1,B,{frame}) in [0, 1]", "x_noisy": f"(B,{frame}); (T,B,{frame}) in the unroll",
            "x_next": f"(B,{frame})", "theta": f"(B,K,{c.theta_size})", "psi": f"(B,K,{frame})",
            "gamma": f"(B,K,1,{c.height},{c.width})", "losses": "(B,)", "outputs of the unroll": "with T in front",
        },
        "start": _start_in_words(model),
        "noise": configs.to_dict(c.noise),
    }  # fmt: skip


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporters talk of their progress and of packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    with contextlib.ExitStack() as undo, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        yield
