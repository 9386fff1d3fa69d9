"""The shipped models in half precision stay within the bounds of docs/reliability.md of themselves in float32."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from neural_em import config as configs
from neural_em import pretrained
from neural_em.data import DataConfig, load_split
from neural_em.evaluation import adjusted_mutual_info
from neural_em.evaluation.evaluate import start_keys
from neural_em.model import Unrolled
from neural_em.model.fast import accelerate
from neural_em.storage.pretrained import shipped

COUNT = 12
MNIST = Path(__file__).parent / "mnist"
TWINS = {"plain": lambda model: model, "fast": accelerate}
# the bounds: of the mean over pixels and components, of the share of pixels whose object is another, of the mean AMI
MEAN_GAMMA, MEAN_PSI, OTHER_LABELS, AMI = 0.002, 0.004, 0.02, 0.02


class Sample(NamedTuple):
    """What a model is given, and what it makes of that in float32."""

    name: str
    components: int
    frames: Tensor  # (T+1,B,C,H,W)
    noisy: Tensor
    gamma: Tensor
    groups: Tensor  # (B,H,W)
    reference: Unrolled


@pytest.fixture(
    scope="module", params=["flying-shapes", "static-shapes", "static-shapes-plus", "flying-mnist", "flying-mnist-plus"]
)
def sample(request: pytest.FixtureRequest) -> Sample:
    card = shipped(request.param)
    model, K = card.load(), card.components
    assert K is not None
    data = configs.from_dict(DataConfig, card.notes["data"])
    data = replace(data, mnist=str(MNIST)) if data.kind == "flying-mnist" else data
    batch = load_split(data, "test", 0, size=COUNT).batch(torch.arange(COUNT))
    with torch.inference_mode():
        x = model.frames(batch.frames, None)
        noisy, gamma = model.draw(x, K, start_keys(0, 0, torch.arange(COUNT), torch.device("cpu")))
        reference = accelerate(model).unroll(x, K, x_noisy=noisy, gamma=gamma)
    assert batch.groups is not None
    return Sample(request.param, K, x, noisy, gamma, batch.groups[-1], reference)


def in_order(gamma: Tensor, psi: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Components have no names: those of each sample in the order that is nearest to the reference's."""
    orders = []
    for one, other in zip(gamma, like, strict=True):
        chosen = min(itertools.permutations(range(len(one))), key=lambda p: float((one[list(p)] - other).abs().sum()))
        orders.append(list(chosen))
    return tuple(torch.stack([each[order] for each, order in zip(part, orders, strict=True)]) for part in (gamma, psi))  # type: ignore[return-value]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_near_float32(sample: Sample, dtype: torch.dtype, twin: str) -> None:
    model = TWINS[twin](pretrained(sample.name).to(dtype))
    with torch.inference_mode():
        inputs = (each.to(dtype) for each in (sample.frames, sample.noisy, sample.gamma))
        x, noisy, gamma = inputs
        out = model.unroll(x, sample.components, x_noisy=noisy, gamma=gamma)
    expected_gamma, expected_psi = sample.reference.gamma[-1, :, :, 0], sample.reference.psi[-1]
    found_gamma, found_psi = in_order(out.gamma[-1, :, :, 0].float(), out.psi[-1].float(), expected_gamma)
    assert bool(found_gamma.isfinite().all() & found_psi.isfinite().all())
    assert float((found_gamma - expected_gamma).abs().mean()) < MEAN_GAMMA
    assert float((found_psi - expected_psi).abs().mean()) < MEAN_PSI
    on = sample.frames[-1, :, 0] > 0.5  # elsewhere all components say the same, and a label means nothing
    other = found_gamma.argmax(dim=1) != expected_gamma.argmax(dim=1)
    assert float(other[on].float().mean()) < OTHER_LABELS
    scores = [adjusted_mutual_info(sample.groups, each.argmax(dim=1)).mean() for each in (found_gamma, expected_gamma)]
    assert abs(float(scores[0] - scores[1])) < AMI
