"""The window outside which a component predicts nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from neural_em import ModelConfig, NeuralEM, NeuralEMError
from neural_em.model.window import EDGE, windowed


def blobs(*places: tuple[int, int], size: int = 21, height: float = 8.0) -> torch.Tensor:
    """Log-odds (1,1,1,size,size) that are high on squares of 3 x 3 pixels around the places."""
    odds = torch.full((1, 1, 1, size, size), -12.0, dtype=torch.float64)
    for y, x in places:
        odds[..., y - 1 : y + 2, x - 1 : x + 2] = height
    return odds


def test_by_hand():
    """Three pixels in a row, of which one is on: the middle of the frame counts as one more."""
    odds = torch.tensor([-50.0, -50.0, 50.0], dtype=torch.float64).reshape(1, 1, 1, 1, 3)
    centre = (1.0 * 1.0 + 0.0) / 2  # half-way between the last pixel and the middle
    distance = (np.array([-1.0, 0.0, 1.0]) - centre) / 0.5
    np.testing.assert_allclose(windowed(odds, 0.5).flatten().numpy(), odds.flatten().numpy() - EDGE * distance**4)


def test_an_object_in_a_corner_stays_as_it_is():
    odds = blobs((2, 17))
    inside = torch.sigmoid(odds) > 0.5
    assert torch.sigmoid(windowed(odds, 0.3))[inside].min() > 0.99


@pytest.mark.parametrize("share", [0.15, 0.25])
def test_two_objects_far_apart_fade_and_one_does_not(share):
    two = windowed(blobs((4, 4), (16, 16)), share)
    assert torch.sigmoid(two).max() < 0.05
    assert torch.sigmoid(windowed(blobs((4, 4)), share)).max() > 0.99


def test_two_objects_side_by_side_can_be_one():
    assert torch.sigmoid(windowed(blobs((10, 8), (10, 11)), 0.3))[..., 10, 7:13].min() > 0.99


def test_it_moves_with_the_object():
    one, other = (windowed(blobs(place), 0.3) for place in ((6, 6), (6, 14)))  # mirrored about the middle column
    torch.testing.assert_close(one, other.flip(-1))
    torch.testing.assert_close(one, windowed(blobs((6, 6)).transpose(-1, -2), 0.3).transpose(-1, -2))


def test_a_component_that_predicts_nothing_has_it_in_the_middle():
    odds = torch.full((1, 2, 1, 9, 7), -40.0, dtype=torch.float64)
    lost = odds - windowed(odds, 0.5)
    assert lost[0, 0, 0, 4, 3].item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(lost, lost.flip(-1))
    torch.testing.assert_close(lost, lost.flip(-2))


def test_only_the_last_channel_is_odds_and_gradients_are_right():
    eta = torch.randn(2, 2, 3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(windowed(eta, 0.5)[:, :, :2], eta[:, :, :2], rtol=0, atol=0)
    assert torch.autograd.gradcheck(lambda e: windowed(e, 0.5), eta.requires_grad_())


def test_places_are_summed_in_more_than_half_precision():
    """Sums over pixels in bfloat16 would lose whole pixels."""
    odds = blobs((3, 40), size=64).to(torch.bfloat16)
    found, expected = windowed(odds, 0.2), windowed(odds.double(), 0.2)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=2**-7)


def test_a_model_with_a_window_predicts_compact_things_and_without_it_as_before():
    config = ModelConfig(height=20, width=20, theta_size=4, convolutions=(), hidden=0, layer_norm=False)
    x = torch.ones(2, 1, 1, 20, 20)
    with torch.no_grad():
        narrow, wide, none = (
            NeuralEM(replace(config, window=share), seed=1).unroll(x, 2, generator=torch.Generator().manual_seed(0)).psi
            for share in (0.1, 100.0, None)
        )
    assert narrow[0, 0, 0, 0, 0, 0].item() < 1e-6 < none[0, 0, 0, 0, 0, 0].item()
    torch.testing.assert_close(wide, none)


def test_the_gradient_step_knows_no_window():
    with pytest.raises(NeuralEMError, match=r"^model\.window is not for model\.m_step=gradient"):
        ModelConfig(window=0.3, m_step="gradient")


@pytest.mark.parametrize(
    "changes", [{"distribution": "gaussian"}, {"channels": 3}, {"prior": 0.2}], ids=lambda each: "".join(each)
)
def test_pixels_without_one_mask_are_refused(changes):
    with pytest.raises(NeuralEMError, match=r"^model\.window is for model\.distribution=masked, or for bernoulli"):
        ModelConfig(window=0.3, **changes)
