"""Half precision is float32 up to rounding: a few steps of small networks stay within some rounding units on average.

Small, because most CPUs have no half precision and compute it hundreds of times slower. A few steps, because EM
amplifies what decides between two groupings: after many, single pixels may differ by anything.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neural_em import NeuralEM, randomness
from neural_em.model import PRESETS
from neural_em.model.fast import accelerate
from tests.tiny import NETWORKS

TWINS = {"plain": lambda model: model, "fast": accelerate}
ROUNDINGS = (
    16  # mean difference allowed, in units of the type's rounding: three steps of at most ten layers make 1 to 3
)
pytestmark = pytest.mark.filterwarnings("ignore")  # that it is slow here


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_half_precision_is_near_float64(name: str, dtype: torch.dtype, twin: str) -> None:
    full = PRESETS[name]
    narrow = {"hidden": full.hidden // 16, "convolutions": tuple(width // 8 for width in full.convolutions)}
    model = NeuralEM(dataclasses.replace(full, theta_size=24, **narrow), seed=1)
    generator = torch.Generator().manual_seed(5)
    x = (torch.rand(4, 2, full.channels, full.height, full.width, generator=generator) < 0.3).float()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    results = []
    for kind in (torch.float64, dtype):
        with torch.inference_mode():
            network = TWINS[twin](model.to(kind))
            results.append(network.unroll(x.to(kind), 3, x_noisy=x_noisy.to(kind), gamma=gamma.to(kind)))
    for part in ("theta", "psi", "gamma"):
        expected, found = (getattr(result, part).double() for result in results)
        assert bool(found.isfinite().all()), part
        assert float((found - expected).abs().mean()) <= ROUNDINGS * torch.finfo(dtype).eps, part


def test_half_precision_on_a_cpu_is_said_to_be_slow() -> None:
    model = NeuralEM(PRESETS["static-shapes"]).to(torch.bfloat16)
    with pytest.warns(RuntimeWarning, match=r"bfloat16 on a CPU.*use float32"):
        model.start(torch.zeros(1, 1, 28, 28, dtype=torch.bfloat16), 2)
