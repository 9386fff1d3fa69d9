"""An M-step as docs/extending.md has it, in a file of its own: the whole command knows it, in every process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import neural_em
from tests.processes import ENVIRONMENT, SAFETY

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
HEAD = """from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from neural_em.model.networks import Decoder

if TYPE_CHECKING:
    from neural_em.model.config import ModelConfig


"""
SETTINGS = (
    "data.train_size=16", "data.validation_size=8", "training.batch_size=8", "training.epochs=1", "model.theta_size=8",
    "model.m_step=momentum", "model.convolutions=[]", "model.hidden=0", "model.layer_norm=false",
)  # fmt: skip
LAYERS, ENTRY = "from neural_em.model.networks import", '"relational": RelationalMStep'


def test_a_new_m_step_is_one_file_and_one_line(tmp_path: Path) -> None:
    package = tmp_path / "neural_em"
    shutil.copytree(neural_em.__path__[0], package, ignore=shutil.ignore_patterns("pretrained", "__pycache__"))
    shown = re.search(r"^class Momentum.*?(?=\n\n\n)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown
    (package / "model" / "momentum.py").write_text(f"{HEAD}{shown[0]}\n", encoding="utf-8")
    registry = package / "model" / "m_step.py"
    lines = registry.read_text(encoding="utf-8")
    lines = lines.replace(LAYERS, f"from neural_em.model.momentum import Momentum\n{LAYERS}", 1)
    registry.write_text(lines.replace(ENTRY, f'{ENTRY}, "momentum": Momentum', 1), encoding="utf-8")

    def nem(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "neural_em", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, timeout=SAFETY,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = [word for setting in SETTINGS for word in ("--set", setting)]
    nem("train", "static-shapes-quick", "--device", "cpu", "--run", "mine", *options)
    assert "AMI" in nem("evaluate", "mine", "--size", "8")
    assert "m_step: momentum" in (tmp_path / "mine" / "config.yaml").read_text(encoding="utf-8")
