"""Validation: against losses and scores worked out sample by sample, and binding failures on made-up assignments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from torch import Tensor

from neural_em.data.dataset import MemoryDataset
from neural_em.training import fit, validation
from neural_em.training.order import validation_keys
from neural_em.training.validation import Validation, validate


def test_loss_and_scores_sample_by_sample(tiny: Any) -> None:
    """Means over the samples of what one unroll of each gives; AMI and ARI by scikit-learn, pixel by pixel."""
    model, config = tiny.build(), tiny.with_(components=3, score_size=7)
    result = validate(model, tiny.validation, config)
    losses, bounds, ami, ari = [], [], [], []
    for i in range(len(tiny.validation)):
        frames, groups = tiny.validation.batch(torch.tensor([i]))
        x_noisy, gamma = model.draw(frames, 3, validation_keys(torch.tensor([i])))
        with torch.no_grad():
            out = model.unroll(frames, 3, x_noisy=x_noisy, gamma=gamma)
        losses.append(float(out.total.sum()))
        bounds.append(float(out.upper_bound[-1]))
        if i < 7:
            pairs = [_scored(groups[t + 1, 0], out.gamma[t, 0, :, 0].argmax(0)) for t in range(3)]
            ami.append([adjusted_mutual_info_score(*pair, average_method="max") for pair in pairs if pair[0]])
            ari.append([adjusted_rand_score(*pair) for pair in pairs if pair[0]])
    assert result is not None
    assert [len(each) for each in ami] == [3, 3, 3, 3, 2, 3, 3]  # once two shapes hide each other: nothing to score
    assert result.validation_loss == pytest.approx(sum(losses) / 10, rel=1e-5)
    assert result.upper_bound == pytest.approx(sum(bounds) / 10, rel=1e-5)
    assert result.ami_last == pytest.approx(sum(each[-1] for each in ami) / 7, abs=1e-6)
    assert result.ami_mean == pytest.approx(sum(map(sum, ami)) / 20, abs=1e-6)
    assert result.ari_last == pytest.approx(sum(each[-1] for each in ari) / 7, abs=1e-6)
    assert result.ari_mean == pytest.approx(sum(map(sum, ari)) / 20, abs=1e-6)


def _scored(groups: Tensor, assignment: Tensor) -> tuple[list[int], list[int]]:
    return groups[groups > 0].tolist(), assignment[groups > 0].tolist()


def test_epochs_compare(tiny: Any) -> None:
    """The same model validates to the very same numbers every time, and within rounding for any batch size."""
    model = tiny.build()
    first, again = validate(model, tiny.validation, tiny.config), validate(model, tiny.validation, tiny.config)
    assert first == again


def test_fresh_noise_is_another_one_in_every_epoch_and_for_every_seed(tiny: Any) -> None:
    """And the same one again for the same epoch of the same seed, so that a run can be gone on with."""
    model, fresh = tiny.build(), tiny.with_(validation_noise="fresh")
    first, again, later = (validate(model, tiny.validation, fresh, epoch=epoch) for epoch in (3, 3, 4))
    other = validate(model, tiny.validation, tiny.with_(validation_noise="fresh", seed=1), epoch=3)
    fixed = [validate(model, tiny.validation, tiny.with_(seed=seed), epoch=seed) for seed in (0, 1)]
    assert first == again
    assert fixed[0] == fixed[1]
    assert None not in (first, later, other, fixed[0])
    assert len({result.validation_loss for result in (first, later, other, fixed[0]) if result is not None}) == 4


def test_fresh_noise_reaches_the_epochs_of_a_run(tiny: Any) -> None:
    """With a learning rate of almost nothing, only the noise tells one epoch's validation from another's."""
    losses = {}
    for noise in ("fixed", "fresh"):
        config = tiny.with_(validation_noise=noise, learning_rate=1e-30)
        rows = fit(tiny.build(), tiny.training, config, tiny.validation).progress.rows
        losses[noise] = {row.validation_loss for row in rows}
    assert (len(losses["fixed"]), len(losses["fresh"])) == (1, 3)


def test_batches_do_not_matter(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven batches weigh by their samples."""
    model = tiny.build()
    whole = validate(model, tiny.validation, tiny.config)
    monkeypatch.setattr(validation, "_LARGEST_BATCH", 3)  # 3 + 3 + 3 + 1
    parts = validate(model, tiny.validation, tiny.config)
    assert parts is not None
    assert list(parts) == pytest.approx(list(whole or ()), rel=1e-5)


def test_without_groups_there_are_no_scores(tiny: Any) -> None:
    """Loss and confidence alone."""
    frames = tiny.validation.batch(torch.arange(10)).frames.transpose(0, 1)
    result = validate(tiny.build(), MemoryDataset(frames, None), tiny.config)
    assert result is not None
    assert result[4:] == (None, None, None, None)
    assert result.validation_loss is not None
    assert 0.5 <= (result.confidence or 0) <= 1


def test_static_images_are_scored_at_every_step(tiny: Any) -> None:
    """One frame, repeated: its groups hold for every step."""
    frames, groups = tiny.validation.batch(torch.arange(10))
    static = MemoryDataset(frames[:1].transpose(0, 1), groups[:1].transpose(0, 1))
    result = validate(tiny.build(), static, tiny.with_(steps=2))
    assert result is not None
    assert result.ami_mean is not None


def test_an_interrupted_validation_has_no_result(tiny: Any) -> None:
    """Half a mean is none."""
    assert validate(tiny.build(), tiny.validation, tiny.config, interrupted=lambda: True) is None


def _binding(gamma: Tensor, groups: Tensor) -> str:
    """What is said of assignments (B,K,1,H,W) of images with these groups (B,H,W)."""
    sums = validation._binding(gamma, torch.zeros(len(groups), 1, *groups.shape[1:]), groups, prior=0.0)
    confidence, share = (float(added / count) if count else None for added, count in sums)
    return Validation(1.0, 1.0, confidence, share).binding_failure(gamma.shape[1])


def _groups() -> Tensor:
    """Two images of 10 x 10: two groups of 40 pixels each, 20 pixels unscored."""
    groups = torch.zeros(2, 10, 10, dtype=torch.uint8)
    groups[:, :4], groups[:, 4:8] = 1, 2
    return groups


def _one_hot(assignment: Tensor, components: int) -> Tensor:
    """Hard assignments (B,H,W) as gamma."""
    return torch.nn.functional.one_hot(assignment.long(), components).permute(0, 3, 1, 2).unsqueeze(2).float()


def test_good_binding_is_not_reported() -> None:
    """Each group its component; a third component may stay empty."""
    for components in (3, 5):
        assert _binding(_one_hot(_groups(), components), _groups()) == ""


def test_one_component_for_everything_is_reported() -> None:
    """Whichever component it is, in each image another one; unscored pixels do not count."""
    assignment = torch.zeros(2, 10, 10)
    assignment[1] = 2
    assignment[:, 8:] = 1  # the unscored rows
    assert _binding(_one_hot(assignment, 3), _groups()) == "one component"


def test_uniform_assignments_are_reported() -> None:
    """All components the same, or nearly."""
    gamma = torch.full((2, 4, 1, 10, 10), 0.25)
    assert _binding(gamma, _groups()) == "uniform"
    gamma[:, 0] += 0.06
    gamma[:, 1:] -= 0.02
    assert _binding(gamma, _groups()) == "uniform"


@pytest.mark.parametrize(("components", "limit"), [(2, 0.55), (3, 0.4), (4, 0.325), (5, 0.28)])
def test_how_sure_is_no_longer_uniform(components: int, limit: float) -> None:
    """Sure of a tenth of the way from 1/K to 1 is enough, be it by a thousandth."""
    for confidence, uniform in ((limit - 0.001, True), (limit + 0.001, False)):
        assert (_binding(_barely(confidence, components), _groups()) == "uniform") == uniform


def _barely(confidence: float, components: int) -> Tensor:
    """Each group its component, with so much of each pixel; the others have equal parts of the rest."""
    gamma = torch.full((2, components, 1, 10, 10), (1 - confidence) / (components - 1))
    gamma[:, 0, :, :4], gamma[:, 1, :, 4:] = confidence, confidence
    return gamma


def test_pixels_that_all_go_the_same_way_are_reported() -> None:
    """Sure or not, two groups in the same parts are not told apart; the limit is worked out for three components.

    There, with sureness c, the largest share is (1 + c) / 4, and (c - share) / (1 - share) = (3c - 1) / (3 - c).
    """
    gamma = torch.full((2, 3, 1, 10, 10), 0.05)
    gamma[:, 0] = 0.9
    assert _binding(gamma, _groups()) == "alike"
    limit = 1.33 / 3.11
    assert _binding(_barely(limit - 0.001, 3), _groups()) == "alike"
    assert _binding(_barely(limit + 0.001, 3), _groups()) == ""


def test_one_component_or_one_object_is_no_failure() -> None:
    """With K = 1, or a single thing in the image, nothing has to be told apart."""
    assert _binding(torch.ones(2, 1, 1, 10, 10), _groups()) == ""
    single = (_groups() > 0).to(torch.uint8)
    assert _binding(_one_hot(torch.zeros(2, 10, 10), 3), single) == ""
