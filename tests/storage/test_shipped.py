"""Every shipped model keeps the score it states, on sequences that nobody has seen.

`mnist/` holds every fifth of MNIST's 10,000 test digits (Y. LeCun, C. Cortes, C. Burges; CC BY-SA 3.0).
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neural_em import config as configs
from neural_em.data import DataConfig, load_split
from neural_em.data.silhouettes import family_pictures
from neural_em.evaluation import EvaluationConfig, Result, evaluate
from neural_em.model.fast import accelerate
from neural_em.storage.pretrained import Card, models

FEW = {"flying-shapes": 40, "static-shapes": 200, "flying-mnist": 60, "coloured-shapes": 40, "sprites": 12,
       "objects": 16, "bouncing-balls": 12}  # fmt: skip
MANY = {"flying-shapes": 300, "static-shapes": 6000, "flying-mnist": 1500, "coloured-shapes": 400, "sprites": 100,
        "objects": 150, "bouncing-balls": 100}  # fmt: skip
MNIST = Path(__file__).parent / "mnist"
UNSEEN = 20261115  # a seed of data that no training used


def scores_on_fresh_data(card: Card, sequences: dict[str, int]) -> Result:
    data = configs.from_dict(DataConfig, card.notes["data"])
    data = replace(data, mnist=str(MNIST)) if data.kind == "flying-mnist" else data
    fresh = load_split(data, "test", UNSEEN, "cpu", size=sequences[data.kind])
    settings = EvaluationConfig(components=card.components, batch_size=100, baselines=False)
    return evaluate(accelerate(card.load()), fresh, settings)


@pytest.mark.parametrize("card", models(), ids=lambda card: card.name)
def test_keeps_its_score_on_some_fresh_data(card: Card) -> None:
    """Within five standard errors of so few sequences."""
    scores = np.array(scores_on_fresh_data(card, FEW).per_sequence["ami_max"])
    error = scores.std() / math.sqrt(len(scores))
    assert abs(scores.mean() - card.notes["scores"]["ami_last"]) < 5 * error + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("card", models(), ids=lambda card: card.name)
def test_keeps_its_score_on_fresh_data(card: Card) -> None:
    result = scores_on_fresh_data(card, MANY)
    scores = np.array(result.per_sequence["ami_max"])
    error = max(0.01, 3 * scores.std() / math.sqrt(len(scores)))
    assert result.last_step["ami_max"].mean == pytest.approx(card.notes["scores"]["ami_last"], abs=error)
    assert result.mean_over_steps["ami_max"].mean == pytest.approx(card.notes["scores"]["ami_mean"], abs=error)


@pytest.mark.slow
def test_objects_groups_kinds_that_it_never_saw() -> None:
    """Better than what learns nothing, which is told where objects are: k-means has as many components."""
    (card,) = (each for each in models() if each.name == "objects")
    kinds, usual = ("star", "heart"), configs.from_dict(DataConfig, card.notes["data"])
    new, known = (family_pictures(each).cells[1:].flatten(1) for each in (kinds, usual.shapes))
    assert not (new[:, None] == known).all(dim=2).any()  # a square, say, is a polygon
    data = replace(usual, shapes=kinds, objects=3)  # one object is always right where it is told from the ground
    fresh = load_split(data, "test", UNSEEN, "cpu", size=60)
    result = evaluate(accelerate(card.load()), fresh, EvaluationConfig(components=8, batch_size=20))
    best = max(result.baselines[name]["ami_max"].mean or 0 for name in ("connected components", "k-means"))
    assert (result.last_step["ami_max"].mean or 0) > best + 0.2


def test_the_models_are_small_and_say_where_they_come_from():
    cards = models()
    names = [card.name for card in cards]
    one_channel = ["flying-mnist", "flying-mnist-plus", "flying-shapes", "static-shapes", "static-shapes-plus"]
    assert names == sorted([*one_channel, "coloured-shapes", "sprites", "objects", "bouncing-balls"])
    assert sum(card.path.stat().st_size for card in cards) < 65e6
    for card in cards:
        assert card.notes["command"].startswith("nem train ")
        many = 10_000 if card.name in one_channel else 1_000 if card.name == "objects" else 2_000
        assert card.notes["scores"]["sequences"] == many
