"""The paper's tables and figures as runs and evaluations, and what came of them beside the paper's numbers."""

from neural_em.reproduce.bouncing_balls import RelationalReproduction
from neural_em.reproduce.paper import COMPARISONS, NUMBERS, Number
from neural_em.reproduce.plan import GROUPS, TRAININGS, Training, chosen
from neural_em.reproduce.work import Reproduction

__all__ = [
    "COMPARISONS",
    "GROUPS",
    "NUMBERS",
    "TRAININGS",
    "Number",
    "RelationalReproduction",
    "Reproduction",
    "Training",
    "chosen",
]
