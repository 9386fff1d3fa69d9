"""Nothing is ever unpickled: no such import or call is in the source."""

import ast
from pathlib import Path

import pytest

import neural_em

SOURCE = Path(neural_em.__file__).parent
PICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def calls(tree, attribute):
    return [
        node for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute
    ]  # fmt: skip


def check(tree):
    """Raises an AssertionError where the source could run what a file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & PICKLERS
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in PICKLERS
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False
        if isinstance(node, ast.Name):
            assert node.id not in {"eval", "exec"}
    for call in calls(tree, "load"):
        owner, options = ast.unparse(call.func.value), {k.arg: ast.unparse(k.value) for k in call.keywords}
        if owner == "torch":
            assert options.get("weights_only") == "True"
        if owner in {"np", "numpy"}:
            assert options.get("allow_pickle") == "False"
        assert owner != "yaml"  # safe_load only


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_source_unpickles_nothing(path):
    check(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("source", [
    "import pickle", "import os, pickle as p", "from joblib import load", "torch.load(path)", "np.load(path)",
    "torch.load(path, weights_only=False)", "np.load(path, allow_pickle=True)", "f(x, allow_pickle=flag)",
    "yaml.load(text)", "eval(text)",
])  # fmt: skip
def test_the_check_sees_what_it_looks_for(source):
    with pytest.raises(AssertionError):
        check(ast.parse(source))
