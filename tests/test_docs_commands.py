"""The page of commands and presets has all of them, as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from neural_em.cli.app import app
from neural_em.experiments import PRESETS
from neural_em.model import PRESETS as NETWORKS

PAGE = (Path(__file__).parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def default(option: Any) -> str:
    """As the help shows it."""
    if isinstance(option.show_default, str):
        return option.show_default
    return "" if option.required or option.default is None or option.default is False else str(option.default)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_with_its_default_and_its_help(name: str) -> None:
    options = [option for option in COMMANDS[name].params if option.opts[0].startswith("--") and option.name != "help"]
    rows = re.findall(r"^\| (`--.*?) \| (.*?) ?\| (.*?) \|$", section(f"nem {name}"), re.MULTILINE)
    expected = [
        (", ".join(f"`{each}`" for each in option.opts), default(option), option.help.rstrip(".")) for option in options
    ]
    assert rows == expected


def test_no_command_that_is_not_there() -> None:
    assert set(re.findall(r"^## nem (.*)$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_every_preset_and_its_numbers() -> None:
    text = (Path(__file__).parent.parent / "docs" / "presets.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == set(PRESETS)
    table: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in text.split("what differs between them:")[1].splitlines():
        if line.startswith("| |"):
            header = [cell.strip() for cell in line.strip("|").split("|")][1:]
        elif line.startswith("|") and "---" not in line:
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            table[name] = table.get(name, {}) | dict(zip(header, cells, strict=True))
    networks = {name: PRESETS[name].model for name in NETWORKS if name in PRESETS}
    assert set(table["M-step"]) == set(networks)
    for name, network in networks.items():
        shown = {row: cells[name] for row, cells in table.items()}
        convolutions = ", ".join(map(str, network.convolutions)) or "none"
        kind = network.noise.kind.replace("-", " ")
        names = {"every": "every step", "mean": "mean of all steps", "last": f"last of {network.steps} steps"}
        steps = names[network.loss_steps]
        training = PRESETS[name].training
        assert shown == {
            "M-step": network.m_step,
            "frames": f"{network.height} x {network.width}",
            "theta": str(network.theta_size),
            "convolutions": convolutions,
            "fully connected": str(network.hidden or "none"),
            "pixels": network.distribution.capitalize(),
            "window": f"{network.window:g}" if network.window else "none",
            "noise": f"{kind}, {network.noise.probability:g}",
            "loss": steps,
            "gradient through gamma": "yes" if network.gamma_gradient else "no",
            "inter-cluster weight": f"{network.inter_weight:g}",
            "components in training": str(training.components),
            "learning rate": f"{training.learning_rate:g}",
        }
