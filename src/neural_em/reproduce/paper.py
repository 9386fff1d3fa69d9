"""Every result in the paper, once: its number, or that it is shown in a figure only, and what has to be run for it.

K. Greff, S. van Steenkiste, J. Schmidhuber: Neural Expectation Maximization, NIPS 2017. All of its numbers are means
and deviations over five runs; 'AMI' is normalised by the larger entropy.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Number:
    """One result of the paper."""

    section: str  # the heading under which the page lists it
    where: str  # in the paper
    about: str  # what it is a score of
    training: str  # which of our trainings it needs,
    evaluation: str  # and which of that training's evaluations
    mean: float | None = None  # the paper's number; None where the paper has a figure only
    deviation: float | None = None  # over runs
    score: str = "ami_max"  # or ``upper_bound`` for the error of next-step prediction


STATIC, TABLE, ERRORS, DIGITS = "Static shapes", "Flying shapes", "Next-step prediction", "Flying MNIST"

# objects and K in training, and at the generalisation test; then the table's three columns
TABLE_1 = (
    ((3, 3), (0.969, 0.006), (0.970, 0.005), (3, 5), (0.972, 0.007)),
    ((3, 5), (0.997, 0.001), (0.997, 0.002), (3, 3), (0.914, 0.015)),
    ((5, 3), (0.614, 0.003), (0.614, 0.003), (3, 3), (0.886, 0.010)),
    ((5, 5), (0.878, 0.003), (0.878, 0.003), (3, 5), (0.981, 0.003)),
)


def _table() -> tuple[Number, ...]:
    numbers = []
    for (objects, components), train, test, (other_objects, other_components), other in TABLE_1:
        name = f"flying-shapes-{objects}-{components}"
        trained = f"{objects} objects, K = {components}"
        tested = f"trained on {trained}; tested on {other_objects} objects, K = {other_components}"
        numbers += [
            Number(TABLE, "Table 1, train", trained, name, "train", *train),
            Number(TABLE, "Table 1, test", trained, name, "test", *test),
            Number(TABLE, "Table 1, test generalization", tested, name, "generalisation", *other),
        ]
    return tuple(numbers)


_ERRORS = tuple(
    Number(ERRORS, "Figure 5", f"{model}, {objects} objects", f"flying-shapes-{objects}-{components}", "test",
           score="upper_bound")
    for objects in (3, 4, 5)
    for components, model in ((5, "RNN-EM, K = 5"), (1, "recurrent autoencoder, K = 1"))
)  # fmt: skip

NUMBERS: tuple[Number, ...] = (
    Number(STATIC, "Section 4.1", "RNN-EM", "static-shapes", "test", 0.826, 0.005),
    Number(STATIC, "Section 4.1", "N-EM", "static-shapes-nem", "test", 0.475, 0.043),
    *_table(),
    *_ERRORS,
    Number(DIGITS, "Section 4.3", "two digits", "flying-mnist", "test", 0.819, 0.022),
    Number(DIGITS, "Section 4.3", "two digits, stage-wise", "flying-mnist-staged", "test", 0.917, 0.005),
    Number(DIGITS, "Section 4.3", "three digits, K = 3", "flying-mnist", "three digits", 0.729, 0.019),
    Number(DIGITS, "Section 4.3", "three digits, K = 3, stage-wise", "flying-mnist-staged", "three digits",
           0.838, 0.008),
    Number(DIGITS, "Section 4.3", "two static digits, 50 steps", "flying-mnist", "static digits", 0.619, 0.023),
    Number(DIGITS, "Section 4.3", "two static digits, 50 steps, stage-wise", "flying-mnist-staged", "static digits",
           0.772, 0.008),
    Number(DIGITS, "Figure 6", "two digits, at step 50 of 50", "flying-mnist", "50 steps"),
)  # fmt: skip

BEYOND = "Beyond the paper"
# a training of the paper: ours for the same data and the same tests
_PLUS = {
    **{name: f"{name}-plus" for name in ("static-shapes", "static-shapes-nem")},
    **{f"flying-shapes-{sizes[0]}-{sizes[1]}": f"flying-shapes-plus-{sizes[0]}-{sizes[1]}" for sizes, *_ in TABLE_1},
    "flying-mnist-staged": "flying-mnist-plus",
}
COMPARISONS: tuple[Number, ...] = tuple(
    replace(number, section=BEYOND, about=f"{number.about}, plus", training=_PLUS[number.training])
    for number in NUMBERS
    if number.training in _PLUS and number.mean is not None
)
"""Scores of presets of our own, beside the paper's for the same data."""

# what stands beside Tagger, which the paper quotes: training, what it is, what its name ends in for images of its size
COMPARED: tuple[tuple[str, str, str], ...] = tuple(
    (name, about, ending)
    for endings, rows in (
        (("-20", ""), (
            ("static-shapes-nem", "N-EM"),
            ("static-shapes", "RNN-EM"),
            ("static-shapes-plus", "RNN-EM, plus"),
            ("flying-shapes-3-5", "RNN-EM, trained on flying shapes, K = 5"),
        )),
        (("-20", "-28"), (
            ("tagger", "Tagger, layer norm"),
            ("tagger-batch-norm", "Tagger, batch norm"),
        )),
    )
    for ending in endings
    for name, about in rows
)  # fmt: skip
