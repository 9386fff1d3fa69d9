"""The paper's tables and figures as runs and evaluations, and what came of them beside the paper's numbers."""

from neural_em.reproduce.bouncing_balls import RelationalReproduction
from neural_em.reproduce.paper import COMPARISONS, NUMBERS
from neural_em.reproduce.plan import GROUPS, TRAININGS
from neural_em.reproduce.work import Reproduction

__all__ = ["COMPARISONS", "GROUPS", "NUMBERS", "TRAININGS", "RelationalReproduction", "Reproduction"]
