"""Readouts of theta: exact where theta holds the property, nothing where it is noise, and from the right component."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch import Tensor

from neural_em.data import DataConfig, load_split
from neural_em.data.dataset import MemoryDataset
from neural_em.errors import NeuralEMError
from neural_em.evaluation import EvaluationConfig, evaluate
from neural_em.evaluation.probe import match, probe, read_out
from neural_em.evaluation.results import from_dict, to_dict
from neural_em.evaluation.summary import result_table
from neural_em.model import ModelConfig, NeuralEM, NoiseConfig
from neural_em.model.em import Info, State

DATA = DataConfig("sprites", frames=3, height=24, width=24, objects=1, most_objects=3, ground="colour", visible=0.5)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3))


class Knows(NeuralEM):
    """A model whose component k has object k + 1 and the background the last, and whose theta is what it is told."""

    def __init__(self, told: Tensor, groups: Tensor) -> None:
        super().__init__(
            ModelConfig(channels=3, height=24, width=24, distribution="gaussian", theta_size=told.shape[-1],
                        noise=NoiseConfig("masked-uniform"), convolutions=(2,), hidden=4)
        )  # fmt: skip
        self.told, self.true_groups, self.at, self.row = told, groups, 0, 0

    def start(self, x, components, gamma=None, generator=None) -> State:
        self.at, self.row = 0, self.row + 1
        return super().start(x, components, gamma, generator)

    def step(self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True, losses: bool = True):
        self.at += 1
        rows = slice((self.row - 1) * 40, self.row * 40)  # batches of 40
        K = state.gamma.shape[1]
        component = (self.true_groups[self.at, rows].long() - 1) % K
        gamma = torch.nn.functional.one_hot(component, K).movedim(-1, 1)[:, :, None].float()
        loss = x_next.new_ones(len(x_next))
        return State(self.told[self.at, rows], state.psi, gamma), Info(loss, loss, loss, loss)


def told(properties: list[str]) -> tuple[Knows, object]:
    data = load_split(DATA, "test", 0, size=120)
    rows = torch.arange(120)
    known, groups = data.properties(rows), data.batch(rows).groups
    assert groups is not None
    parts = [known[name].float().reshape(3, 120, 3, -1) for name in properties]
    theta = torch.cat([*parts, uniform(3, 120, 3, 4)], dim=-1) * 2 + 1
    return Knows(torch.nn.functional.pad(theta, (0, 0, 0, 1)), groups), data


CONFIG = EvaluationConfig(components=4, batch_size=40)
PLAIN = EvaluationConfig(components=4, batch_size=40, baselines=False)


def test_what_theta_holds_is_read_and_what_it_does_not_is_not() -> None:
    model, data = told(["position", "size"])
    found = probe(model, data, CONFIG)  # type: ignore[arg-type]
    assert list(found) == ["position", "colour", "shape", "size"]
    assert found["position"].score == found["size"].score == found["colour"].score == "R²"
    assert found["shape"].score == "accuracy"
    for name in ("position", "size"):
        assert found[name].linear > 0.9999
        assert found[name].network > 0.9
    assert abs(found["colour"].linear) < 0.15
    assert found["colour"].network < 0.15
    assert found["shape"].linear < 0.6  # of three
    groups = model.true_groups[2, 60:]
    assert found["position"].objects == sum(len(each[each > 0].unique()) for each in groups)


def test_the_ridge_is_scikit_learns() -> None:
    """Weakly penalised: on ten times as many objects as numbers, the penalty hardly matters."""
    theta, noise = uniform(400, 6), uniform(400, 2, 1)[..., 0]
    target = theta[:, :2] @ torch.tensor([[1.0, 0.5], [-2.0, 1.0]]) + 0.3 * noise
    learn = torch.arange(400) < 200
    found = read_out(theta, target, learn)
    ridge = Ridge(alpha=1e-3).fit(theta[:200].numpy(), target[:200].numpy())
    expected = r2_score(target[200:].numpy(), ridge.predict(theta[200:].numpy()))
    assert found is not None
    assert found.linear == pytest.approx(expected, abs=0.01)
    assert found.network == pytest.approx(expected, abs=0.05)


def test_a_network_reads_what_a_line_cannot() -> None:
    theta = uniform(1200, 2) * 2 - 1
    inside = (theta.square().sum(dim=1) < 0.6).long()
    found = read_out(theta, inside, torch.arange(1200) % 2 == 0)
    assert found is not None
    assert found.linear < 0.7
    assert found.network > 0.93


def test_what_never_differs_is_left_out() -> None:
    assert read_out(uniform(50, 3), torch.ones(50, 2), torch.arange(50) < 25) is None
    assert read_out(uniform(50, 3), torch.ones(50, dtype=torch.int64), torch.arange(50) < 25) is None


def test_objects_are_matched_with_the_component_that_has_most_of_them() -> None:
    groups = torch.tensor([[[1, 1, 1, 0], [3, 3, 0, 0]]])
    gamma = torch.tensor([[[0.6, 0.6, 0.1, 1], [0, 0, 0, 0]], [[0.4, 0.4, 0.9, 0], [0.2, 0.3, 0, 0]],
                          [[0, 0, 0, 0], [0.8, 0.7, 1, 1]]])[None, :, None]  # fmt: skip
    component, seen = match(gamma, groups, 3)
    assert seen.tolist() == [[True, False, True]]
    assert component[0, [0, 2]].tolist() == [1, 2]  # 1.3 against 1.7; 0.5 against 1.5


def test_data_that_know_nothing_are_refused() -> None:
    data = MemoryDataset(torch.zeros(20, 3, 1, 24, 24), torch.ones(20, 3, 24, 24, dtype=torch.uint8))
    model = NeuralEM(ModelConfig(height=24, width=24, convolutions=(2,), hidden=4, theta_size=4))
    with pytest.raises(NeuralEMError, match="probe: these data do not tell"):
        probe(model, data, CONFIG)


def test_scores_with_background_and_by_the_number_of_objects() -> None:
    """A model that is right everywhere scores 1; one that gives the background to object 1 only without it."""
    model, data = told([])
    perfect = evaluate(model, data, PLAIN)  # type: ignore[arg-type]
    assert perfect.with_background["ari"].mean == perfect.last_step["ari"].mean == 1.0
    numbers = [len(each[each > 0].unique()) for each in model.true_groups[1:].transpose(0, 1)]
    assert {int(number): scores["ari"].count for number, scores in perfect.by_objects.items()} == {
        number: numbers.count(number) for number in sorted(set(numbers))
    }
    model.row = 0
    merged = model.true_groups.clamp(min=1)
    wrong = evaluate(Knows(model.told, merged), data, PLAIN)  # type: ignore[arg-type]
    assert wrong.last_step["ari"].mean == 1.0
    assert (wrong.with_background["ari"].mean or 1) < 0.8
    assert from_dict(to_dict(wrong)) == wrong
    text = result_table(wrong)
    assert "with background" in text
    assert "objects seen  sequences" in text
