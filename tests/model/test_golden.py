"""The authors' implementation is the oracle: every intermediate, loss and gradient of their released code.

Their numbers are float32. Ours are compared in float64, which no processor rounds so that a ReLU near zero falls on the
other side: one such unit moves single gradients by parts in a thousand. In float32 gradients are held to their length
and direction, which one unit cannot turn.
"""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_em.interop import from_authors, parameters_by_authors_name
from neural_em.model import State, em, mixture, networks
from neural_em.model.fast import accelerate
from neural_em.model.networks import Activation

GOLDEN = Path(__file__).parents[1] / "golden"
PRESET = {
    "static_rnn_em": "static-shapes", "static_n_em": "static-shapes-nem",
    "flying_shapes": "flying-shapes", "flying_mnist": "flying-mnist",
    "relational_balls": "bouncing-balls", "relational_no_attention": "bouncing-balls",
}  # fmt: skip
CASES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
_spec = importlib.util.spec_from_file_location("golden_weights", GOLDEN / "weights.py")
weights = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weights)


def close(ours, theirs, tolerance, what):
    error = np.abs(np.asarray(ours, dtype=np.float64) - theirs).max()
    assert error <= tolerance * np.abs(theirs).max(), f"{what}: {error} beside {np.abs(theirs).max()}"


def authors_model(case):
    """The file, its settings, and the model with the authors' weights."""
    golden = np.load(GOLDEN / f"{case}.npz")
    spec = json.loads(str(golden["spec"]))
    return golden, spec, from_authors(PRESET[spec["case"]], weights.variables(golden))


def unrolled(golden, spec, model, accelerate=lambda model: model, device="cpu", dtype=torch.float64):
    """What the model makes of the authors' frames, noise and start, gradients included."""
    model.to(device, dtype)
    given = (torch.from_numpy(golden[name]).unsqueeze(2) for name in ("x", "x_noisy", "gamma0"))
    x, x_noisy, gamma = (each.to(device, dtype) for each in given)
    out = accelerate(model).unroll(x, components=spec["k"], x_noisy=x_noisy, gamma=gamma)
    out.loss.backward()
    return type(out)(*(part.detach().cpu() for part in out))


def check(golden, spec, model, out):
    """Holds an unroll to the authors' numbers: tightly in float64, with room for another processor in float32."""
    T, B, K, M = out.theta.shape
    exact = out.loss.dtype == torch.float64
    room = 1 if exact else 10
    close(out.theta, golden["theta"][1:].reshape(T, B, K, M), room * 1e-5, "theta")
    close(out.psi[:, :, :, 0], golden["pred"][1:], room * 1e-5, "psi")
    assert np.abs(out.gamma[:, :, :, 0].numpy() - golden["gamma"][1:]).max() <= room * 1e-4
    for i, name in enumerate(("total", "intra", "inter")):
        close(getattr(out, name), golden["losses"][:, i], room * 1e-5, name)
    close(out.upper_bound, golden["upper_bound"], room * 1e-5, "upper bound")
    close(out.loss, golden["total_loss"], room * 1e-5, "loss")
    names = [variable["name"] for variable in spec["variables"]]
    gradients = parameters_by_authors_name(model)
    assert len(gradients) == len(names)
    for pattern, parameter in gradients.items():
        i = next(i for i, name in enumerate(names) if re.search(pattern, name))
        flat = in_their_layout(parameter.grad.cpu().double(), pattern).reshape(-1).numpy()
        check_gradient(flat, golden[f"grad_{i}"], golden["grad_norm"][i], exact, names[i])


def in_their_layout(gradient, pattern):
    if gradient.dim() == 4:
        return gradient.permute(2, 3, 1, 0)
    return gradient.T if gradient.dim() == 2 and "NEMCell" not in pattern else gradient


def check_gradient(ours, sample, norm, exact, name):
    """Of all entries their norm, of some the values; in float32 the direction of those instead."""
    ours_sampled = ours[:: max(1, ours.size // 128)][:128]
    assert abs(np.linalg.norm(ours) - norm) <= (1e-4 if exact else 1e-2) * norm, name
    if exact:
        assert np.abs(ours_sampled - sample).max() <= 1e-4 * np.abs(ours).max(), name
    else:
        assert np.linalg.norm(ours_sampled - sample) <= 0.05 * np.linalg.norm(sample), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_implementation(case, dtype):
    golden, spec, model = authors_model(case)
    check(golden, spec, model, unrolled(golden, spec, model, dtype=dtype))


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("relational")])
def test_what_components_do_to_each_other(case):
    golden, _, model = authors_model(case)
    model.double()
    B, K, M = golden["gamma0"].shape[0], golden["gamma0"].shape[1], golden["theta"].shape[-1]
    for t in range(len(golden["effects"])):
        theta = torch.from_numpy(golden["theta"][t]).reshape(B, K, M).double()
        with torch.no_grad():
            _, effects, _ = model.m_step.interaction(theta)
            attention = model.m_step.attention(theta)
        close(effects.reshape(B * K, M), golden["effects"][t], 1e-5, "effects")
        assert not attention.diagonal(dim1=1, dim2=2).any()
        others = attention[:, ~torch.eye(K, dtype=torch.bool)].view(B, K, K - 1)
        theirs = golden["attention"][t] if "attention" in golden else np.ones((B, K, K - 1))
        close(others, theirs, 1e-5, "attention")


@pytest.mark.parametrize("twin", [lambda model: model, accelerate], ids=["plain", "fast"])
@pytest.mark.parametrize("case", ["relational_balls_100", "relational_balls_200"])
def test_the_authors_rollout(case, twin):
    """Without noise, on the mixture as it is; their threshold decides the assignment only."""
    golden, spec, model = authors_model(case)
    out = unrolled(golden, spec, model)
    state = State(out.theta[-1], out.psi[-1], out.gamma[-1])
    x = torch.from_numpy(golden["rollout_x"]).unsqueeze(2).double()
    network = twin(model)
    for r, step in enumerate(network.rollout(state, spec["rollout_steps"], x=x, noise=False, rounded=False)):
        close(step.x_noisy[:, 0], golden["rollout_input"][r], 1e-5, "input")
        close(step.state.theta.flatten(0, 1), golden["rollout_theta"][r, 0], 1e-5, "theta")
        close(step.state.psi[:, :, 0], golden["rollout_pred"][r], 1e-5, "psi")
        assert np.abs(step.state.gamma[:, :, 0].numpy() - golden["rollout_gamma"][r]).max() <= 1e-4
        losses = [getattr(step.info, name).mean() for name in ("total", "intra", "inter")]
        close(torch.stack(losses), golden["rollout_losses"][r], 1e-5, "losses")
        close(step.info.upper_bound.mean(), golden["rollout_upper_bound_all"][r, 1], 1e-5, "upper bound")


def _norm_without_its_gradient(x):
    """The same numbers, but the deviation counts as a constant on the way back."""
    centred = x - x.mean(dim=(1, 2, 3) if x.dim() == 4 else 1, keepdim=True)
    return centred / (x.std(dim=tuple(range(1, x.dim())), keepdim=True, correction=0) + 1e-12).detach()


def _norm_of_each_pixel(x):
    centred = x - x.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + networks.EPSILON).sqrt()


def _squared_error(distribution, x, psi, gamma, log):
    return (gamma * (x.unsqueeze(1) - psi).square()).sum(dim=(1, 2, 3, 4))


MISTAKES = {
    "a larger epsilon in the norm": (networks, "EPSILON", 1e-5),
    "a norm for each pixel": (networks, "normalise", _norm_of_each_pixel),
    "a norm whose gradient forgets the deviation": (networks, "normalise", _norm_without_its_gradient),
    "a larger epsilon in the E-step": (mixture, "EPSILON", 1e-4),
    "another loss": (mixture, "intra_loss", _squared_error),
    "padding on the other side": (networks.F, "pad", lambda x, sides: torch.nn.functional.pad(x, sides[::-1])),
    "predictions detached": (
        em.NeuralEM, "difference", lambda self, x, psi, gamma: gamma * (x.unsqueeze(1) - psi.detach())
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake, monkeypatch):
    where, name, wrong = MISTAKES[mistake]
    golden, spec, model = authors_model("flying_shapes_100")
    if where is networks.F:  # PyTorch's own, which others use too: only the networks' view of it
        where = type("F", (), dict(vars(networks.F)))
        monkeypatch.setattr(networks, "F", where)
        wrong = staticmethod(wrong)
    monkeypatch.setattr(where, name, wrong)
    out = unrolled(golden, spec, model)
    with pytest.raises(AssertionError):
        check(golden, spec, model, out)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", ["flying_shapes_200", "flying_mnist_200"])
def test_a_wrong_network_is_noticed(case, dtype):
    """In both precisions: the decoder reads the state instead of the normalised output; ELU where ReLU belongs."""
    for plant in (_state_for_output, _elu_for_relu):
        golden, spec, model = authors_model(case)
        plant(model.m_step)
        out = unrolled(golden, spec, model, dtype=dtype)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        with pytest.raises(AssertionError):
            check(golden, spec, model, out)


def _state_for_output(m_step):
    scale, offset = m_step.output.scale, m_step.output.offset
    m_step.output.forward = lambda a: torch.sigmoid(a) + 0 * (scale + offset).sum()


def _elu_for_relu(m_step):
    next(layer for layer in m_step.decoder.dense if isinstance(layer, Activation)).kind = "elu"
