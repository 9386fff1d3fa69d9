"""Exported models, run by other programs, give the model's own numbers."""

from __future__ import annotations

import json
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import neural_em
from neural_em import ModelConfig, NeuralEM, NeuralEMError
from neural_em.model import MODELS, PRESETS, BaseConfig, Info, Model, NoiseConfig, State, build
from neural_em.model.fast import accelerate
from neural_em.model.m_step import M_STEPS, RecurrentMStep
from neural_em.model.unrolled import UnrolledModel
from neural_em.storage.export import OUTPUTS, export, step_inputs

onnxruntime = pytest.importorskip("onnxruntime")

SMALL = ModelConfig(height=7, width=9, theta_size=5, convolutions=(3, 4), hidden=8)
CONFIGS = {
    "recurrent": SMALL,
    "gradient": ModelConfig(
        m_step="gradient", height=6, width=5, theta_size=4, convolutions=(), hidden=0, layer_norm=False
    ),
    "relational": replace(SMALL, m_step="relational"),
    "relational, no attention": replace(SMALL, m_step="relational", attention=False),
    "gradient through convolutions": replace(SMALL, m_step="gradient"),
    "gaussian, colour, normalised": replace(
        SMALL, channels=3, distribution="gaussian", noise=NoiseConfig("masked-uniform", 0.2), normalize_input=True
    ),
    "median": replace(SMALL, channels=3, distribution="gaussian", e_step_deviation=0.5, prior="median"),
    "masked": replace(
        SMALL, channels=3, distribution="masked", e_step_deviation=0.5, prior="median", window=0.4, one_colour=True
    ),
    "background": replace(SMALL, distribution="gaussian", e_step_deviation=0.5, prior="background"),
}  # fmt: skip
STEPS = 2


def unroll_inputs(model: Model, samples: int, components: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    c, generator = model.config, torch.Generator().manual_seed(samples + 10 * components)
    x = torch.rand(steps + 1, samples, c.channels, c.height, c.width, generator=generator).round()
    gamma = model.start(x[0], components, generator=generator).gamma
    return x, model.add_noise(x[:-1], generator), gamma


def expected(model: Model, x: Tensor, x_noisy: Tensor, gamma: Tensor) -> list[np.ndarray]:
    """Every step's state and losses, from the model's own steps."""
    state, rows = model.start(x[0], gamma.shape[1], gamma), []
    with torch.no_grad():
        for t in range(len(x_noisy)):
            state, info = model.step(state, x_noisy[t], x[t + 1])
            rows.append((*state[:3], *info))
    return [torch.stack(parts).numpy() for parts in zip(*rows, strict=True)]


def step_by_step(model: NeuralEM, found: list[np.ndarray], *inputs: Tensor) -> list[np.ndarray]:
    """What the model makes of the state that each step of an unroll was given: rounding has no time to grow."""
    x, x_noisy, gamma = inputs
    state, rows = model.start(x[0], gamma.shape[1], gamma), []
    with torch.no_grad():
        for t in range(len(x_noisy)):
            after, info = model.step(state, x_noisy[t], x[t + 1])
            rows.append((*after[:3], *info))
            state = State(*(torch.from_numpy(part[t]) for part in found[:3]), prior=state.prior)
    return [torch.stack(parts).numpy() for parts in zip(*rows, strict=True)]


def assert_equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """To 1e-4 of the largest number: about a thousand roundings."""
    for name, a, b in zip(OUTPUTS, found, wanted, strict=True):
        assert a.shape == b.shape, name
        assert np.abs(a - b).max() <= 1e-4 * max(1.0, np.abs(b).max()), name


@pytest.fixture(scope="module", params=[
    pytest.param(name, marks=[] if name in ("recurrent", "median") else [pytest.mark.slow]) for name in CONFIGS
])  # fmt: skip
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[NeuralEM, Path]:
    model = NeuralEM(CONFIGS[request.param], seed=3)
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    export(model, folder, "onnx")
    return model, folder


@pytest.mark.parametrize(("samples", "components"), [(2, 3), (1, 1), (4, 2), (1, 6)])
def test_the_onnx_step(exported: tuple[NeuralEM, Path], samples: int, components: int) -> None:
    model, folder = exported
    session = onnxruntime.InferenceSession(str(folder / "step.onnx"))
    inputs = step_inputs(model.config)
    assert tuple(value.name for value in session.get_inputs()) == inputs
    assert tuple(value.name for value in session.get_outputs()) == OUTPUTS
    assert session.get_inputs()[0].shape == ["batch", "components", model.config.theta_size]
    x, x_noisy, gamma = unroll_inputs(model, samples, components, steps=2)
    state = model.start(x[0], components, gamma)
    for t in range(2):  # the second time from a state that is not zero
        arrays = (*(state if "prior" in inputs else state[:3]), x_noisy[t], x[t + 1])
        given = {name: array.detach().numpy() for name, array in zip(inputs, arrays, strict=True)}
        with torch.no_grad():
            state, info = model.step(state, x_noisy[t], x[t + 1])
        assert_equal(session.run(None, given), [array.numpy() for array in (*state[:3], *info)])


@pytest.mark.parametrize(("samples", "components", "steps"), [(2, 3, 4), (1, 1, 1), (3, 2, 20)])
def test_the_onnx_unroll_of_any_length(
    exported: tuple[NeuralEM, Path], samples: int, components: int, steps: int
) -> None:
    model, folder = exported
    inputs = unroll_inputs(model, samples, components, steps)
    session = onnxruntime.InferenceSession(str(folder / "unroll.onnx"))
    names = ("x", "x_noisy", "gamma")
    given = {name: array.numpy() for name, array in zip(names, inputs, strict=True)}
    found = session.run(None, given)
    assert_equal(found, step_by_step(model, found, *inputs))


def test_the_unroll_is_the_models_own(exported: tuple[NeuralEM, Path]) -> None:
    """The steps above against `NeuralEM.unroll`, which the golden files hold."""
    model, _ = exported
    inputs = unroll_inputs(model, 2, 3, 4)
    x, x_noisy, gamma = inputs
    with torch.no_grad():
        out = model.unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
    wanted = expected(model, *inputs)
    for found, whole in zip(wanted[:3], (out.theta, out.psi, out.gamma), strict=True):
        assert np.allclose(found, whole.numpy(), atol=1e-6)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name == "gradient" else [pytest.mark.slow]) for name in CONFIGS
])  # fmt: skip
def test_torch_programs(tmp_path: Path, name: str) -> None:
    """Of the fast model, which is exported as the plain one is."""
    model = accelerate(NeuralEM(CONFIGS[name], seed=4)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    files = export(model, tmp_path / "out", "torch", steps=STEPS)
    assert model.training  # and all else about it is as it was
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "step.pt2", "unroll.pt2"]
    for what in ("step", "unroll"):
        with zipfile.ZipFile(files[what]) as archive:
            assert not any(neural_em.__path__[0].encode() in archive.read(entry) for entry in archive.namelist())
    step, unroll = (torch.export.load(str(files[what])).module() for what in ("step", "unroll"))
    for samples, components in ((2, 3), (1, 4), (5, 2)):
        x, x_noisy, gamma = unroll_inputs(model, samples, components, STEPS)
        wanted = expected(model, x, x_noisy, gamma)
        found = [part.numpy() for part in unroll(x, x_noisy, gamma)]
        assert_equal(found, step_by_step(model, found, x, x_noisy, gamma))
        state = model.start(x[0], components, gamma)
        given = [part.detach() for part in (state if "prior" in step_inputs(model.config) else state[:3])]
        assert_equal([part.numpy() for part in step(*given, x_noisy[0], x[1])], [part[0] for part in wanted])


class Climbing(RecurrentMStep):
    """Takes a gradient through its decoder besides, of which the class that it is made from says nothing."""

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        theta, eta = super().forward(theta, delta)
        _, pullback = torch.func.vjp(self.decoder, theta.flatten(0, 1))
        return theta + 0.1 * pullback(delta.flatten(0, 1))[0].view_as(theta), eta


@pytest.mark.slow
def test_another_m_step_is_exported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(M_STEPS, "climbing", Climbing)
    model = NeuralEM(replace(CONFIGS["gradient"], m_step="climbing"), seed=4)
    unroll = torch.export.load(str(export(model, tmp_path / "out", "torch", steps=STEPS)["unroll"])).module()
    inputs = unroll_inputs(model, 2, 3, STEPS)
    found = [part.numpy() for part in unroll(*inputs)]
    assert_equal(found, step_by_step(model, found, *inputs))


@dataclass(frozen=True)
class PlainConfig(BaseConfig):
    """Of the smallest model that can be."""

    kind: str = "plain"
    theta_size: int = 4


class Plain(UnrolledModel):
    """One layer, a start that is not zero, and one loss under all names."""

    def __init__(self, config: PlainConfig, seed: int = 0) -> None:
        super().__init__()
        self.config: PlainConfig = config
        size = (config.theta_size, config.channels * config.height * config.width)
        self.weight = torch.nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(seed)))

    def first_state(self, x: Tensor, gamma: Tensor) -> State:
        theta = x.new_full((*gamma.shape[:2], self.config.theta_size), 0.5)
        return State(theta, (theta @ self.weight).sigmoid().unflatten(2, x.shape[1:]), gamma)

    def advance(self, state: State, x_noisy: Tensor, x_next: Tensor, losses: bool) -> tuple[State, Info]:
        theta, psi, gamma, _ = state
        theta = theta + (gamma * (x_noisy.unsqueeze(1) - psi)).flatten(2) @ self.weight.T
        psi = (theta @ self.weight).sigmoid().view_as(psi)
        likelihood = self.distribution.likelihood(x_next.unsqueeze(1), psi)
        loss = -(gamma * likelihood.log()).sum(dim=(1, 2, 3, 4))
        return State(theta, psi, likelihood / likelihood.sum(dim=1, keepdim=True)), Info(loss, loss, loss, loss)


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_another_model_is_exported_with_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setitem(MODELS, PlainConfig, Plain)
    model = build(PlainConfig(height=5, width=6), seed=4)
    files = export(model, tmp_path / "out", format, steps=STEPS)
    assert "kind plain" in json.loads(files["about"].read_text())["start"]
    inputs = unroll_inputs(model, 2, 3, STEPS)
    if format == "onnx":
        session = onnxruntime.InferenceSession(str(files["unroll"]))
        found = session.run(None, {name: a.numpy() for name, a in zip(("x", "x_noisy", "gamma"), inputs, strict=True)})
    else:
        found = [part.numpy() for part in torch.export.load(str(files["unroll"])).module()(*inputs)]
    assert_equal(found, expected(model, *inputs))


def test_nothing_to_see_is_no_reason_for_not_a_number(exported: tuple[NeuralEM, Path]) -> None:
    """A layer norm of equal numbers divides by its epsilon alone, which an exporter may take for zero."""
    model, folder = exported
    _, _, gamma = unroll_inputs(model, 2, 3, STEPS)
    x = torch.zeros(STEPS + 1, 2, model.config.channels, model.config.height, model.config.width)
    session = onnxruntime.InferenceSession(str(folder / "unroll.onnx"))
    found = session.run(None, {"x": x.numpy(), "x_noisy": x[:-1].numpy(), "gamma": gamma.numpy()})
    assert_equal(found, step_by_step(model, found, x, x[:-1], gamma))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist"])
def test_the_papers_networks(tmp_path: Path, name: str) -> None:
    model = NeuralEM(PRESETS[name], seed=1)
    export(model, tmp_path / "out", "onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "unroll.onnx"))
    x, x_noisy, gamma = unroll_inputs(model, 2, 3, 5)
    found = session.run(None, {"x": x.numpy(), "x_noisy": x_noisy.numpy(), "gamma": gamma.numpy()})
    assert_equal(found, step_by_step(model, found, x, x_noisy, gamma))


def test_the_files_say_nothing_of_where_they_were_made(exported: tuple[NeuralEM, Path]) -> None:
    here = str(Path(neural_em.__path__[0])).encode()
    for name in ("step.onnx", "unroll.onnx", "export.json"):
        assert here not in (exported[1] / name).read_bytes(), name


def test_the_description_tells_names_and_sizes(exported: tuple[NeuralEM, Path]) -> None:
    model, folder = exported
    about = json.loads((folder / "export.json").read_text())
    assert about["format"] == "onnx"
    assert tuple(about["step"]["inputs"]) == step_inputs(model.config)
    assert about["model"]["theta_size"] == model.config.theta_size
    assert str(model.config.height) in about["shapes"]["psi"]


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    model = NeuralEM(SMALL)
    with pytest.raises(NeuralEMError, match="format: expected one of onnx, torch, got 'tf'"):
        export(model, tmp_path / "out", "tf")
    with pytest.raises(NeuralEMError, match="steps: expected an integer >= 1, got 0"):
        export(model, tmp_path / "out", "torch", steps=0)
    changed = NeuralEM(SMALL)
    changed.m_step.output = torch.nn.Identity()
    with pytest.raises(NeuralEMError, match=r"^model: weights m_step\.output\.offset: expected shape .*, got none$"):
        export(changed, tmp_path / "out", "torch")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(NeuralEMError, match="mine: expected a new or empty folder"):
        export(model, tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_onnx_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "neural_em.storage.onnx_graphs", raising=False)
    monkeypatch.delattr("neural_em.storage.onnx_graphs", raising=False)
    with pytest.raises(NeuralEMError, match=r"pip install 'neural-em\[onnx\]'"):
        export(NeuralEM(SMALL), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
