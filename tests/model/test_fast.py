"""The fast path is held to the authors' numbers and to the plain path."""

import pytest
import torch

from neural_em import randomness
from neural_em.model import NeuralEM, preset
from neural_em.model.fast import accelerate
from tests.model.test_golden import CASES, check, unrolled

PRESETS = ("static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist")


@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_implementation(case):
    check(*unrolled(case, accelerate))
