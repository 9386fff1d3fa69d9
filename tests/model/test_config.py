"""Configs of models: the paper's presets, and what is refused."""

import dataclasses

import numpy as np
import pytest

from neural_em import NeuralEM, NeuralEMError
from neural_em import config as configs
from neural_em.model import PRESETS, ModelConfig, NoiseConfig, preset


def test_the_presets_are_those_of_the_papers_appendix():
    colour = {"coloured-shapes", "coloured-digits", "tetrominoes", "sprites", "objects"}
    paper = {"static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist", "bouncing-balls"}
    assert set(PRESETS) == paper | colour
    assert all(preset(name).prior == "median" and preset(name).channels == 3 for name in colour)
    static, nem = preset("static-shapes"), preset("static-shapes-nem")
    assert (static.theta_size, static.steps, static.loss_steps, static.gamma_gradient) == (250, 15, "last", True)
    assert static.noise == NoiseConfig("bit-flips", 0.1)
    assert (static.distribution, static.prior, static.inter_weight) == ("bernoulli", 0.0, 1.0)
    assert nem == dataclasses.replace(static, m_step="gradient")
    shapes, digits = preset("flying-shapes"), preset("flying-mnist")
    assert (shapes.convolutions, shapes.hidden, shapes.theta_size) == ((32, 64), 512, 100)
    assert (digits.convolutions, digits.hidden, digits.theta_size) == ((32, 64, 128), 512, 250)
    assert shapes.noise == NoiseConfig("bit-flips", 0.2)
    assert digits.noise == NoiseConfig("masked-uniform", 0.2)
    assert (digits.distribution, digits.e_step_deviation, digits.inter_weight) == ("gaussian", 0.25, 0.2)
    assert digits.normalize_input
    assert not shapes.gamma_gradient
    assert not digits.gamma_gradient
    assert shapes.loss_steps == digits.loss_steps == "every"


# counted by hand from the appendix: weights, biases, two numbers a channel of every layer norm
PARAMETERS = {
    "static-shapes": (784 + 250) * 250 + 250 + 250 * 784 + 784,
    "static-shapes-nem": 250 * 784 + 1,
    "flying-shapes": (16 * 32 + 3 * 32) + (16 * 32 * 64 + 3 * 64) + (49 * 64 * 512 + 3 * 512)
    + (612 * 100 + 3 * 100) + (100 * 512 + 3 * 512) + (512 * 49 * 64 + 3 * 49 * 64)
    + (16 * 64 * 32 + 3 * 32) + (16 * 32 + 1),
    "flying-mnist": (16 * 32 + 3 * 32) + (16 * 32 * 64 + 3 * 64) + (16 * 64 * 128 + 3 * 128) + (1152 * 512 + 3 * 512)
    + (762 * 250 + 3 * 250) + (250 * 512 + 3 * 512) + (512 * 1152 + 3 * 1152)
    + (16 * 128 * 64 + 3 * 64) + (16 * 64 * 32 + 3 * 32) + (16 * 32 + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_parameters_counted_by_hand(name):
    assert sum(parameter.numel() for parameter in NeuralEM(preset(name)).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["flying-shape", "", None, 3, ["flying-shapes"]])
def test_an_unknown_preset_is_refused_with_the_choices(name):
    with pytest.raises(NeuralEMError, match=r"^preset: expected one of .*static-shapes-nem.*, got") as error:
        preset(name)
    assert repr(name) in str(error.value)


def test_a_misspelled_preset_gets_a_hint():
    with pytest.raises(NeuralEMError, match=r"did you mean 'flying-shapes'\?"):
        preset("flying-shape")


WRONG = [
    ("channels", 0), ("channels", True), ("channels", 1.0), ("height", -3), ("width", 65537), ("width", "28"),
    ("theta_size", 0), ("theta_size", None), ("hidden", -1), ("hidden", 2.5), ("steps", 0), ("steps", float("nan")),
    ("convolutions", (32, 0)), ("convolutions", 32), ("convolutions", (1,) * 13), ("convolutions", ("32",)),
    ("m_step", "recurent"), ("m_step", None), ("distribution", "poisson"), ("distribution", ["gaussian"]),
    ("channel_rule", "mean"), ("layer_norm", "no"), ("normalize_input", 1), ("gamma_gradient", None),
    ("prior", -0.1), ("prior", 1.1), ("prior", float("nan")), ("prior", "0"), ("prior", True),
    ("e_step_deviation", 0), ("e_step_deviation", -1.0), ("e_step_deviation", float("inf")),
    ("e_step_deviation", 1e-200),
    ("step_size", 1.0), ("step_size", "one"), ("step_size", float("nan")),
    ("inter_weight", -1), ("inter_weight", float("nan")), ("inter_weight", float("inf")), ("inter_weight", 10**400),
    ("loss_steps", "first"), ("loss_steps", ()), ("loss_steps", 3), ("loss_steps", (1.0, float("nan"))),
    ("loss_steps", (1.0, "2")), ("loss_steps", None), ("noise", None), ("noise", "bit-flips"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda case: repr(case)[:30])
def test_a_wrong_option_is_refused_by_its_name(field, value):
    with pytest.raises(NeuralEMError) as error:
        ModelConfig(**{field: value})
    message = str(error.value)
    assert message.startswith(f"model.{field}")
    assert (": expected " in message and ", got " in message) or " is for model.m_step=" in message
    assert "\n" not in message


@pytest.mark.parametrize("prior", [float("nan"), float("-inf"), None])
def test_a_gaussian_prior_is_any_finite_number(prior):
    assert ModelConfig(distribution="gaussian", prior=-2.5).prior == -2.5
    with pytest.raises(NeuralEMError, match=r"model\.prior: expected a finite number"):
        ModelConfig(distribution="gaussian", prior=prior)


def test_a_frame_too_large_to_count_is_refused():
    with pytest.raises(NeuralEMError, match="at most 268435456 values a frame, got 281474976710656"):
        ModelConfig(channels=65536, height=65536, width=65536)


def test_numpy_numbers_can_be_written():
    quarter = np.float64(0.25)
    fields = {"prior": quarter, "e_step_deviation": quarter, "inter_weight": quarter, "step_size": quarter}
    noise = NoiseConfig("bit-flips", quarter)
    made = ModelConfig(m_step="gradient", loss_steps=(quarter, np.float32(1)), noise=noise, **fields)
    plain = ModelConfig(
        m_step="gradient", loss_steps=(0.25, 1.0), noise=NoiseConfig("bit-flips", 0.25),
        **dict.fromkeys(fields, 0.25),
    )  # fmt: skip
    assert configs.dump(made) == configs.dump(plain)


def test_lists_and_numpy_integers_make_the_same_config():
    plain = ModelConfig(height=12, convolutions=(4, 8), loss_steps=(0.5, 1.0))
    other = ModelConfig(height=np.int64(12), convolutions=[np.int32(4), 8], loss_steps=[0.5, 1.0])
    assert plain == other
    assert hash(plain) == hash(other)
    assert type(other.height) is int
    assert type(other.convolutions[0]) is int
