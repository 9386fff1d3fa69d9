"""Trained models: those shipped inside the package, by name, and those of runs and files, by path."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neural_em.errors import NeuralEMError, refuse, unknown
from neural_em.files import absolute, from_home, told
from neural_em.model import BaseConfig, Model
from neural_em.storage.weights import load, read

FOLDER = Path(__file__).parents[1] / "pretrained"
BEST = "best.safetensors"  # a run folder's result
_SUFFIX = ".safetensors"
_SCORES = {"ami_last": "AMI, last step", "ami_mean": "AMI, mean over steps", "ari_last": "ARI, last step"}


@dataclass(frozen=True)
class Card:
    """What a weight file says of itself."""

    name: str  # of the shipped model, or the path of the file
    path: Path  # of the weight file
    config: BaseConfig  # of the model
    # what was written beside the weights. Of a shipped model: ``about`` (one line), ``command`` (what made it),
    # ``components`` (K in training), ``data`` (fields of a ``DataConfig``) and ``scores`` on data of that kind:
    # ``ami_last``, ``ami_mean``, ``ari_last`` (AMI normalised by the larger entropy)
    notes: dict[str, Any]

    @property
    def components(self) -> int | None:
        """K in training, where the file tells."""
        components = self.notes.get("components")
        known = isinstance(components, int) and not isinstance(components, bool) and components >= 1
        return components if known else None

    @property
    def scores(self) -> dict[str, float]:
        """What the model scored, by a name for people; empty where the file does not tell."""
        for source, kind in (("scores", ""), ("validation", "validation ")):
            found = self.notes.get(source)
            if isinstance(found, dict):
                known = {title: found.get(name) for name, title in _SCORES.items()}
                return {kind + title: float(score) for title, score in known.items() if isinstance(score, int | float)}
        return {}

    def load(self, device: torch.device | str = "cpu") -> Model:
        return load(self.path, device)


def models() -> list[Card]:
    """The models shipped with the package, by name."""
    return [shipped(name) for name in _names()]


def pretrained(name: str, device: torch.device | str = "cpu") -> Model:
    """Loads a model that is shipped with the package; ``nem models`` lists them.

    Args:
        name: such as ``"flying-shapes"``.
        device: where to put it.
    """
    return shipped(name).load(device)


def shipped(name: str) -> Card:
    """The shipped model of that name."""
    if not (names := _names()):
        raise NeuralEMError(f"model {name!r}: this version of the package ships no models")
    if name not in names:
        unknown("model", name, names)
    return _card(name, FOLDER / f"{name}{_SUFFIX}")


def lasting_name(name: str | os.PathLike[str]) -> str:
    """A model's name that means the same from every folder: a shipped one's, or an absolute path."""
    if not os.fspath(name):
        refuse("weights", "a shipped model, a run folder or a weight file", repr(os.fspath(name)))
    return os.fspath(name) if _is_shipped(name) else absolute(name)


def find_model(name: str | os.PathLike[str]) -> Card:
    """A model by what a user calls it: a shipped one's name, a run folder (its best weights), or a weight file."""
    if _is_shipped(name):
        return shipped(os.fspath(name))
    path = from_home(name)
    with told(name, "read"):
        there, folder = path.exists(), path.is_dir()
    if folder:
        if not (path / BEST).is_file():
            parts = sorted(part.parent.name for part in path.glob(f"*/{BEST}"))
            got = f"a folder of runs: {', '.join(parts)}" if parts else f"a folder without {BEST}"
            refuse(f"{path}", "a run folder with its weights", got)
        return _card(str(path), path / BEST)
    if there:
        return _card(str(path), path)
    names = ", ".join(_names()) or "none in this version"
    refuse("model", f"a shipped model ({names}), a run folder or a weight file", repr(os.fspath(name)))


def _names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob(f"*{_SUFFIX}"))


def _is_shipped(name: str | os.PathLike[str]) -> bool:
    return isinstance(name, str) and Path(name).name == name and (FOLDER / f"{name}{_SUFFIX}").is_file()


def _card(name: str, path: Path) -> Card:
    config, notes, _ = read(path)
    return Card(name, path, config, notes)
