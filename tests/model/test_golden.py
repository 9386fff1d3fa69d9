"""The authors' implementation is the oracle: every intermediate, loss and gradient of their released code."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_em.interop import from_authors, parameters_by_authors_name

GOLDEN = Path(__file__).parents[1] / "golden"
PRESET = {
    "static_rnn_em": "static-shapes", "static_n_em": "static-shapes-nem",
    "flying_shapes": "flying-shapes", "flying_mnist": "flying-mnist",
}  # fmt: skip
CASES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
_spec = importlib.util.spec_from_file_location("golden_weights", GOLDEN / "weights.py")
weights = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(weights)


def close(ours, theirs, tolerance, what):
    ours = np.asarray(ours, dtype=np.float64)
    error = np.abs(ours - theirs).max()
    assert error <= tolerance * np.abs(theirs).max(), f"{what}: {error} beside {np.abs(theirs).max()}"


def unrolled(case, accelerate=lambda model: model, device="cpu"):
    golden = np.load(GOLDEN / f"{case}.npz")
    spec = json.loads(str(golden["spec"]))
    model = from_authors(PRESET[spec["case"]], weights.variables(golden)).to(device)
    x, x_noisy = (torch.from_numpy(golden[name])[:, :, None].to(device) for name in ("x", "x_noisy"))
    gamma = torch.from_numpy(golden["gamma0"])[:, :, None].to(device)
    out = accelerate(model).unroll(x, components=spec["k"], x_noisy=x_noisy, gamma=gamma)
    return golden, spec, model, out


def check(golden, spec, model, out):
    T, B, K, M = out.theta.shape
    out.loss.backward()
    out = type(out)(*(part.detach().cpu() for part in out))
    close(out.theta, golden["theta"][1:].reshape(T, B, K, M), 1e-5, "theta")
    close(out.psi[:, :, :, 0], golden["pred"][1:], 1e-5, "psi")
    assert np.abs(out.gamma[:, :, :, 0].numpy() - golden["gamma"][1:]).max() <= 1e-4
    for i, name in enumerate(("total", "intra", "inter")):
        close(getattr(out, name), golden["losses"][:, i], 1e-5, name)
    close(out.upper_bound, golden["upper_bound"], 1e-5, "upper bound")
    close(out.loss, golden["total_loss"], 1e-5, "loss")
    gradients = {
        pattern: parameter.grad.cpu().double() for pattern, parameter in parameters_by_authors_name(model).items()
    }
    names = [variable["name"] for variable in spec["variables"]]
    assert len(gradients) == len(names)
    for pattern, gradient in gradients.items():
        i = next(i for i, name in enumerate(names) if re.search(pattern, name))
        if gradient.dim() == 4:
            gradient = gradient.permute(2, 3, 1, 0)
        elif gradient.dim() == 2 and "NEMCell" not in pattern:
            gradient = gradient.T
        flat = gradient.reshape(-1).numpy()
        theirs = golden[f"grad_{i}"]
        norm = golden["grad_norm"][i]
        sample = flat[:: max(1, flat.size // 128)][:128]
        assert np.abs(sample - theirs).max() <= 1e-4 * np.abs(flat).max(), names[i]
        assert abs(np.linalg.norm(flat) - norm) <= 1e-4 * norm, names[i]


@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_implementation(case):
    check(*unrolled(case))
