"""The same seed on the same machine gives the same weights, to the bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_em.model import NeuralEM
from neural_em.training import fit


def trained(tiny: Any, path: Path, seed: int, engine: str, **changes: object) -> dict[str, bytes]:
    """The weight files of a run."""
    model = NeuralEM(dataclasses.replace(tiny.model, **changes), seed=seed)
    fit(model, tiny.training, tiny.with_(seed=seed, engine=engine, epochs=2), tiny.validation, path)
    return {name: (path / name).read_bytes() for name in ("best.safetensors", "last.safetensors")}


@pytest.mark.parametrize("engine", ["fast", "plain"])
@pytest.mark.parametrize("m_step", ["recurrent", "gradient"])
def test_the_same_seed_gives_the_same_weights(tiny: Any, tmp_path: Path, engine: str, m_step: str) -> None:
    """Whatever the state of PyTorch's own random numbers is; and another seed gives others."""
    single: dict[str, Any] = {"convolutions": (), "hidden": 0, "layer_norm": False}
    kind = {"m_step": m_step} | ({} if m_step == "recurrent" else single)
    first = trained(tiny, tmp_path / "first", 3, engine, **kind)
    torch.rand(17)
    assert trained(tiny, tmp_path / "again", 3, engine, **kind) == first
    other = trained(tiny, tmp_path / "other", 4, engine, **kind)
    assert all(other[name] != first[name] for name in first)
