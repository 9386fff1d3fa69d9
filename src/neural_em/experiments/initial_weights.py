"""The weights of a trained model that training begins with."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from neural_em import config as configs
from neural_em.errors import NeuralEMError, refuse
from neural_em.files import checksum
from neural_em.model import BaseConfig, build
from neural_em.presets import PRESETS, Experiment
from neural_em.storage.pretrained import find_model


def first_weights(experiment: Experiment) -> tuple[dict[str, Tensor], str]:
    """What the experiment, or its first stage, begins with, and what the log should say of it."""
    source, first = experiment.weights or "", experiment.parts()[0]
    wanted = first.model
    card = find_model(source)
    model = card.load()
    if _shapes(model.config) != _shapes(wanted):
        expected, got = _in_the_way(wanted, model.config)
        refuse("weights", f"those of a model with {expected}", f"{source} with {got}")
    here, there = (configs.flat(config) for config in (wanted, model.config))
    here["components"] = first.training.components
    there["components"] = card.components or here["components"]  # a file need not tell
    other = ", ".join(f"{name} {there[name]} (here {here[name]})" for name in here if here[name] != there[name])
    text = f"starts from the weights of {source} (sha256 {checksum(card.path)[:16]})"
    return model.state_dict(), f"{text}, which were trained with {other}" if other else text


def rate_note(experiment: Experiment) -> str:
    """At which rate trained weights are trained on; where nobody has set it, also how to make it gentler."""
    rate, known = experiment.training.learning_rate, PRESETS.get(experiment.name)
    text = f"begins at a learning rate of {rate:g}; Adam's averages start anew"
    gentler = f" (gentler: --set training.learning_rate={rate / 10:g})"
    return text + gentler if known and known.training.learning_rate == rate else text


def _shapes(config: BaseConfig) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in build(config).state_dict().items()}


def _in_the_way(wanted: BaseConfig, given: BaseConfig) -> tuple[str, str]:
    """The fields that make other weights, as they are wanted and as they are given."""
    if wanted.kind != given.kind:
        return f"kind {wanted.kind}", f"kind {given.kind}"

    def matters(name: str) -> bool:
        change: Any = {name: getattr(wanted, name)}
        try:
            return _shapes(replace(given, **change)) != _shapes(given)
        except NeuralEMError:  # not without another change
            return True

    differing = [each.name for each in fields(wanted) if getattr(wanted, each.name) != getattr(given, each.name)]
    names = [name for name in differing if matters(name)] or differing
    expected, got = (", ".join(f"{name} {getattr(config, name)}" for name in names) for config in (wanted, given))
    return expected, got
