"""What a GPU may do lasts as long as the context does."""

import pytest
import torch

from neural_em.training.device import of_evaluation, products

GPU = torch.device("cuda")  # flags can be set without one


def flags():
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize(
    ("precision", "deterministic", "inside"),
    [
        ("auto", False, ("high", True, 0, True)),
        ("bf16", False, ("high", True, 0, True)),
        ("float32", False, ("highest", False, 0, True)),
        ("tf32", True, ("high", True, 1, False)),
    ],
)
def test_flags_are_set_and_put_back(precision, deterministic, inside, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    before, seen = flags(), []
    with pytest.raises(KeyError):
        fail_inside(precision, deterministic, seen)
    assert seen == [inside]
    assert flags() == before


def fail_inside(precision, deterministic, seen):
    with products(precision, GPU, deterministic):
        seen.append(flags())
        raise KeyError


def test_a_cpu_is_left_alone():
    before = flags()
    with products("tf32", torch.device("cpu"), deterministic=True):
        assert flags() == before


def test_nothing_is_evaluated_in_bfloat16():
    assert [of_evaluation(each) for each in ("auto", "float32", "bf16")] == ["auto", "float32", "auto"]
