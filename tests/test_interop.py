"""Models from the authors' variables: layouts, names, and what is refused. Their numbers are in test_golden."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_em import NeuralEMError
from neural_em.interop import from_authors, from_authors_layout, parameters_by_authors_name
from neural_em.model import NeuralEM, preset

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "static-shapes": "static_rnn_em", "static-shapes-nem": "static_n_em",
    "flying-shapes": "flying_shapes", "flying-mnist": "flying_mnist",
}  # fmt: skip


def variables(name, seed=0):
    """Random arrays under the names and in the shapes of the authors' checkpoints."""
    spec = json.loads(str(np.load(GOLDEN / f"{CASES[name]}_100.npz")["spec"]))
    r = np.random.default_rng(seed)
    return {v["name"]: r.normal(size=v["shape"]).astype(np.float32) for v in spec["variables"]}


@pytest.mark.parametrize("name", CASES)
def test_every_variable_lands_in_a_parameter_of_its_own(name):
    arrays = variables(name)
    model = from_authors(name, arrays)
    assert model.config == preset(name)
    ours = sorted(float(p.detach().double().sum()) for p in model.parameters())
    theirs = sorted(float(a.sum(dtype=np.float64)) for a in arrays.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert len(parameters_by_authors_name(model)) == len(arrays) == len(ours)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_the_variables_does_not_matter(name):
    arrays = variables(name)
    a, b = from_authors(name, arrays), from_authors(name, dict(reversed(arrays.items())))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_layouts():
    convolution, dense, vector = np.zeros((4, 4, 2, 3)), np.zeros((5, 7)), np.arange(4.0)
    convolution[1, 2, 0, 2], dense[3, 6] = 1, 1
    assert from_authors_layout(torch.from_numpy(convolution))[2, 0, 1, 2] == 1
    assert from_authors_layout(torch.from_numpy(convolution)).shape == (3, 2, 4, 4)
    assert from_authors_layout(torch.from_numpy(dense))[6, 3] == 1
    assert from_authors_layout(torch.from_numpy(vector)).tolist() == [0, 1, 2, 3]


def test_the_tied_weight_of_n_em_is_not_transposed():
    arrays = variables("static-shapes-nem")
    weight = from_authors("static-shapes-nem", arrays).m_step.decoder.dense[0].weight
    (theirs,) = (array for name, array in arrays.items() if name.endswith("input/weights"))
    np.testing.assert_array_equal(weight.detach().numpy(), theirs)


def test_a_scope_before_the_names_will_do():
    """Checkpoints carry the scope of whatever graph they were saved from."""
    arrays = variables("static-shapes")
    model = from_authors("static-shapes", {f"some/scope/{name}": array for name, array in arrays.items()})
    other = from_authors("static-shapes", arrays)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))


def test_the_model_does_not_share_the_callers_memory():
    arrays = variables("static-shapes-nem")
    model = from_authors("static-shapes-nem", arrays)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for array in arrays.values():
        array.fill(7)
    assert all(torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))


NAME = "NEM/OutputWrapper0/fully_connected/weights"
ONE = r"^variables: expected one that matches "
THIS = r"^variables\['NEM/OutputWrapper0/fully_connected/weights'\]: expected "
WRONG = {
    "missing": (lambda v: v.pop(NAME), ONE + r"'.*OutputWrapper0.*weights\$', got none in \["),
    "twice": (lambda v: v.update({f"copy/{NAME}": v[NAME]}), ONE + r".*, got NEM/.*, copy/NEM/"),
    "too many": (lambda v: v.update(power=0.9), r"^variables: expected only those of static-shapes, got power$"),
    "transposed": (lambda v: v.update({NAME: v[NAME].T}), THIS + r"shape \(784, 250\) .*, got \(250, 784\)$"),
    "not a number": (lambda v: v[NAME].fill(np.nan), THIS + "finite numbers, got not-a-number or infinity$"),
    "infinite": (lambda v: v[NAME].fill(np.inf), THIS + "finite numbers"),
    "text": (lambda v: v.update({NAME: "weights"}), THIS + "an array of numbers, got str$"),
    "ragged": (lambda v: v.update({NAME: [[1.0], [1.0, 2.0]]}), THIS + "an array of numbers, got list$"),
    "another model's": (lambda v: (v.clear(), v.update(variables("flying-shapes"))), r"basic_rnn_cell.*expected shape"),
    "empty": (lambda v: v.clear(), ONE),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_variables_are_refused(case):
    change, message = WRONG[case]
    arrays = variables("static-shapes")
    change(arrays)
    with pytest.raises(NeuralEMError, match=message) as error:
        from_authors("static-shapes", arrays)
    assert "\n" not in str(error.value)


def test_an_unknown_preset_is_refused():
    with pytest.raises(NeuralEMError, match=r"^preset: expected one of .*, got 'flying_shapes'; did you mean"):
        from_authors("flying_shapes", variables("flying-shapes"))


@pytest.mark.parametrize("name", CASES)
def test_the_patterns_name_every_parameter_once(name):
    model = NeuralEM(preset(name))
    named = parameters_by_authors_name(model)
    assert {id(p) for p in named.values()} == {id(p) for p in model.parameters()}
    assert len(named) == len(list(model.parameters()))
