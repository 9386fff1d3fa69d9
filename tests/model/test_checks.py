"""Wrong calls of a model: one line that names the thing, what was expected and what came."""

import pytest
import torch

from neural_em import NeuralEM, NeuralEMError, randomness
from neural_em.model import ModelConfig

MODEL = NeuralEM(ModelConfig(height=4, width=6, theta_size=5, convolutions=(2,), hidden=4))
KEYS = randomness.keys(3, torch.arange(6))
X = torch.rand(4, 2, 1, 4, 6, generator=torch.Generator().manual_seed(0))
NAN = torch.where(torch.arange(6) == 3, float("nan"), 0.5).expand(4, 2, 1, 4, 6)
GAMMA = torch.full((2, 3, 1, 4, 6), 1 / 3)
SHAPE = r"^x: expected a tensor of shape \(T\+1, B, 1, 4, 6\), got "
WRONG = {
    "too few dimensions": ({"x": X[0]}, SHAPE + r"shape \(2, 1, 4, 6\)$"),
    "another height": ({"x": X[:, :, :, :3]}, SHAPE + r"shape \(4, 2, 1, 3, 6\)$"),
    "another number of channels": ({"x": X.expand(4, 2, 3, 4, 6)}, SHAPE + r"shape \(4, 2, 3, 4, 6\)$"),
    "no samples": ({"x": X[:, :0]}, SHAPE + r"shape \(4, 0, 1, 4, 6\)$"),
    "no frames": ({"x": X[:0]}, SHAPE + r"shape \(0, 2, 1, 4, 6\)$"),
    "an array": ({"x": X.numpy()}, SHAPE + "ndarray$"),
    "nothing": ({"x": None}, SHAPE + "NoneType$"),
    "bytes": ({"x": (X * 255).to(torch.uint8)}, r"^x: expected torch\.float32 .*, got torch\.uint8"),
    "another precision": ({"x": X.double()}, r"^x: expected torch\.float32 .*, got torch\.float64"),
    "too large": ({"x": X * 255}, r"^x: expected numbers between 0 and 1, got values from .* to 2"),
    "negative": ({"x": X - 0.5}, r"^x: expected numbers between 0 and 1, got values from -0\.\d+ to 0\.\d+$"),
    "infinite": ({"x": X / 0}, r"^x: expected numbers between 0 and 1, got .*inf"),
    "not a number": ({"x": NAN}, r"^x: expected numbers between 0 and 1, got not-a-number$"),
    "no components": ({"components": 0}, r"^components: expected an integer from 1 to 1048576, got 0$"),
    "negative components": ({"components": -2}, r"^components: expected an integer from 1 to 1048576, got -2$"),
    "half components": ({"components": 2.0}, r"^components: expected an integer from 1 to 1048576, got 2\.0$"),
    "true components": ({"components": True}, r"^components: expected an integer from 1 to 1048576, got True$"),
    "text components": ({"components": "3"}, r"^components: expected an integer from 1 to 1048576, got '3'$"),
    "no number of components": ({"components": None}, r"^components: expected an integer from 1 to 1048576, got None$"),
    "too many steps": ({"steps": 4}, r"^steps: expected an integer from 1 to 3, got 4$"),
    "no steps": ({"steps": 0}, r"^steps: expected an integer from 1 to 3, got 0$"),
    "no steps on an image": ({"x": X[:1], "steps": 0}, r"^steps: expected an integer from 1 to 1048576, got 0$"),
    "half steps": ({"x": X[:1], "steps": 1.5}, r"^steps: expected an integer from 1 to 1048576, got 1\.5$"),
    "short noise": ({"x_noisy": X[:2]}, r"^x_noisy: expected .*\(3, 2, 1, 4, 6\), got shape \(2, 2, 1, 4, 6\)$"),
    "broadcast noise": ({"x_noisy": X[:, :1]}, r"^x_noisy: expected .*\(3, 2, 1, 4, 6\), got shape \(3, 1, 1, 4, 6\)$"),
    "a number as noise": ({"x_noisy": 0.2}, r"^x_noisy: expected a tensor .*, got float$"),
    "noise not a number": ({"x_noisy": NAN}, r"^x_noisy: expected numbers between 0 and 1, got not-a-number$"),
    "noise in another precision": ({"x_noisy": X.double()}, r"^x_noisy: expected torch\.float32"),
    "gamma for other components": ({"gamma": GAMMA[:, :2]}, r"^gamma: expected .*\(2, 3, 1, 4, 6\), got .*\(2, 2, 1"),
    "gamma without channel": ({"gamma": GAMMA[:, :, 0]}, r"^gamma: expected .*\(2, 3, 1, 4, 6\), got .*\(2, 3, 4, 6\)"),
    "gamma not a number": ({"gamma": GAMMA * float("nan")}, r"^gamma: expected numbers between 0 and 1, got not-a"),
    "negative gamma": ({"gamma": -GAMMA}, r"^gamma: expected numbers between 0 and 1, got values from -0\.3"),
    "gamma as an array": ({"gamma": GAMMA.numpy()}, r"^gamma: expected a tensor .*, got ndarray$"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_in_one_line(case):
    arguments, message = WRONG[case]
    with pytest.raises(NeuralEMError, match=message) as error:
        MODEL.unroll(**({"x": X, "components": 3} | arguments))
    assert "\n" not in str(error.value)


def test_an_assignment_may_be_rounded():
    assert MODEL.unroll(X, 1, gamma=torch.full((2, 1, 1, 4, 6), 1 + 2e-7)).gamma.shape == (3, 2, 1, 1, 4, 6)


def test_wrong_calls_of_the_stepwise_face_are_refused():
    state = MODEL.start(X[0], 3)
    for wrong, message in [
        (X[0, :1], r"^x_noisy: expected .*\(2, 1, 4, 6\), got shape \(1, 1, 4, 6\)$"),
        (X[0] + 1, r"^x_noisy: expected numbers between 0 and 1"),
        (NAN[0], r"^x_noisy: expected numbers between 0 and 1, got not-a-number$"),
        (None, r"^x_noisy: expected a tensor .*, got NoneType$"),
    ]:
        with pytest.raises(NeuralEMError, match=message):
            MODEL.step(state, wrong, X[1])
        with pytest.raises(NeuralEMError, match=message.replace("x_noisy", "x_next")):
            MODEL.step(state, X[0], wrong)
    with pytest.raises(
        NeuralEMError, match=r"^x: expected a tensor of shape \(B, 1, 4, 6\), got shape \(4, 2, 1, 4, 6\)$"
    ):
        MODEL.start(X, 3)
    with pytest.raises(NeuralEMError, match=r"^components: expected an integer from 1 to 1048576, got 0$"):
        MODEL.start(X[0], 0)
    with pytest.raises(NeuralEMError, match=r"^gamma: expected"):
        MODEL.start(X[0], 3, gamma=GAMMA[:1])


@pytest.mark.parametrize("keys", [KEYS[:3], KEYS[:2].to(torch.int32), KEYS[:2, None], [1, 2], None])
def test_wrong_keys_are_refused(keys):
    with pytest.raises(NeuralEMError, match=r"^keys: expected a tensor of 2 torch\.int64 keys, got "):
        MODEL.draw(X, 3, keys)
