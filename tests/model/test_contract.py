"""Models, M-steps, distributions and noises by their registries: one line each, and refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from neural_em import NeuralEMError, randomness
from neural_em import config as configs
from neural_em.model import MODELS, BaseConfig, ModelConfig, NeuralEM, NoiseConfig, build, preset
from neural_em.model.distributions import DISTRIBUTIONS, Gaussian
from neural_em.model.m_step import M_STEPS, GradientMStep, MStep, RecurrentMStep
from neural_em.model.noise import NOISES
from neural_em.presets import Experiment


def test_a_config_builds_its_model() -> None:
    for name, m_step in (("static-shapes", RecurrentMStep), ("static-shapes-nem", GradientMStep)):
        model = build(preset(name), seed=4)
        assert type(model) is NeuralEM
        assert type(model.m_step) is m_step
        assert model.config == preset(name)
        weights = NeuralEM(preset(name), seed=4).state_dict()
        assert all(torch.equal(tensor, weights[key]) for key, tensor in model.state_dict().items())


def test_what_is_no_config_builds_nothing() -> None:
    for wrong in (NoiseConfig(), None, "flying-shapes"):
        with pytest.raises(NeuralEMError, match=rf"^config: expected one of Model.*, got a {type(wrong).__name__}"):
            build(wrong)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BareConfig(BaseConfig):
    """Of a model that shares nothing with Neural EM but what all have."""

    kind: str = "bare"
    depth: int = 3


@dataclass(frozen=True)
class NamelessConfig(ModelConfig):
    """With the kind of the class it is made from."""


def test_a_file_is_read_as_the_class_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, BareConfig, NeuralEM)
    experiment = Experiment("bare", BareConfig(depth=5, height=8))
    values = configs.to_dict(experiment)
    assert values["model"]["kind"] == "bare"
    assert configs.from_dict(Experiment, values) == experiment
    changed = configs.override(experiment, ["model.depth=7", "model.noise.probability=0.1"])
    assert changed.model == BareConfig(depth=7, height=8, noise=NoiseConfig("bit-flips", 0.1))
    with pytest.raises(NeuralEMError, match=r"^model: unknown field: expected one of kind, .*, depth, got 'm_step'"):
        configs.override(experiment, ["model.m_step=gradient"])
    with pytest.raises(NeuralEMError, match=r"^model\.kind: expected one of .*bare.*, got 'bear'; did you mean 'bare'"):
        configs.override(experiment, ["model.kind=bear"])


def test_what_names_no_kind_is_neural_em() -> None:
    old = {name: value for name, value in configs.to_dict(preset("static-shapes")).items() if name != "kind"}
    assert configs.from_dict(BaseConfig, old) == preset("static-shapes")


def test_a_kind_belongs_to_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeuralEMError, match=r"^model\.kind: expected 'neural-em', the kind of Model.*, got 'bare'$"):
        ModelConfig(kind="bare")
    monkeypatch.setitem(MODELS, NamelessConfig, NeuralEM)
    with pytest.raises(NeuralEMError, match=r"expected a kind of NamelessConfig's own, got 'neural-em', that of Model"):
        build(NamelessConfig())
    assert type(configs.from_dict(BaseConfig, {})) is ModelConfig


class Constant(nn.Module):
    """Says the same whatever it is shown: theta as it was, eta a learned image."""

    differentiated_twice = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.image = nn.Parameter(torch.zeros(config.channels, config.height, config.width))

    def initialise(self) -> None:
        """After Glorot's draw."""
        nn.init.constant_(self.image, 0.25)

    def forward(self, theta: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return theta, self.image.expand_as(delta)


def test_a_third_m_step_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NeuralEMError, match=r"^model\.m_step: expected one of recurrent, gradient, relational, got 'constant'$"
    ):
        ModelConfig(m_step="constant")
    kind: type[MStep] = Constant
    monkeypatch.setitem(M_STEPS, "constant", kind)
    model = build(configs.from_dict(ModelConfig, {"m_step": "constant", "height": 3, "width": 4}))
    out = model.unroll(torch.rand(3, 2, 1, 3, 4), 2)
    torch.testing.assert_close(out.psi, torch.full((2, 2, 2, 1, 3, 4), 0.25).sigmoid())
    with pytest.raises(
        NeuralEMError, match=r"expected one of recurrent, gradient, relational, constant, got 'nothing'"
    ):
        ModelConfig(m_step="nothing")


def test_a_third_distribution_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        NeuralEMError, match=r"^model\.distribution: expected one of bernoulli, gaussian, masked, got 'wide'"
    ):
        ModelConfig(distribution="wide")
    monkeypatch.setitem(DISTRIBUTIONS, "wide", lambda config: Gaussian(config.prior, 10 * config.e_step_deviation))
    assert build(ModelConfig(distribution="wide", prior=-1)).distribution == Gaussian(-1, 2.5)


def test_a_third_noise_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeuralEMError, match=r"^noise\.kind: expected one of none, bit-flips, .*, got 'dark'"):
        NoiseConfig("dark", 0.5)
    monkeypatch.setitem(NOISES, "dark", (lambda x, u, probability: x * (u[0] >= probability), 1))
    model = build(ModelConfig(height=8, width=8, convolutions=(), hidden=0, noise=NoiseConfig("dark", 0.5)))
    x_noisy, _ = model.draw(torch.ones(3, 4, 1, 8, 8), 2, randomness.keys(0, torch.arange(4)))
    assert 0.4 < float(x_noisy.mean()) < 0.6


@pytest.mark.parametrize("field", ["m_step", "distribution", "channel_rule"])
@pytest.mark.parametrize("value", [3, None, ["recurrent"], {"a": 1}, float("nan")])
def test_what_is_no_name_is_refused_by_the_fields_name(field: str, value: object) -> None:
    with pytest.raises(NeuralEMError, match=rf"^model\.{field}: expected one of "):
        ModelConfig(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(NeuralEMError, match=rf"^{field}: expected text, got "):
        configs.from_dict(ModelConfig, {field: value})
