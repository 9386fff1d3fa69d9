"""The authors' variables: builds a model from a dictionary of their names to arrays.

Their layout is channels last: convolutions (4,4,in,out), dense weights in x out, the recurrent weight
[input; state] x units. Names are matched by their endings and their order in the network.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neural_em.errors import refuse
from neural_em.model import NeuralEM, build, preset
from neural_em.model.m_step import GradientMStep, RecurrentMStep
from neural_em.model.networks import Activation
from neural_em.model.relational import RelationalMStep

__all__ = ["from_authors"]


def from_authors(preset_name: str, variables: Mapping[str, Any]) -> NeuralEM:
    """The preset's model with the authors' weights.

    Args:
        preset_name: ``static-shapes``, ``static-shapes-nem``, ``flying-shapes`` or ``flying-mnist``; ``bouncing-balls``
            is R-NEM, with attention or without, as the variables have it.
        variables: the authors' variable names to arrays.
    """
    config, unused = preset(preset_name), {str(name): array for name, array in variables.items()}
    if config.m_step == "relational":  # attention adds two layers before the recurrent one
        config = replace(config, attention=any("NPE/fully_connected_5/" in name for name in unused))
    model = build(config)
    assert isinstance(model, NeuralEM)
    for name, parameter in parameters_by_authors_name(model).items():
        found = [key for key in unused if re.search(name, key)]
        if len(found) != 1:
            refuse("variables", f"one that matches {name!r}", ", ".join(found) or f"none in {sorted(unused)}")
        array = finite_array(found[0], unused.pop(found[0]))
        if "NEMCell" not in name:  # N-EM's tied weight is named as an encoder's: in x out is the decoder's out x in
            array = from_authors_layout(array)
        if array.shape != parameter.shape:
            refuse(f"variables[{found[0]!r}]", f"shape {tuple(parameter.shape)} in our layout", tuple(array.shape))
        with torch.no_grad():
            parameter.copy_(array)
    if unused:
        refuse("variables", f"only those of {preset_name}", ", ".join(sorted(unused)))
    return model


def finite_array(name: str, values: Any) -> Tensor:
    """The values as float32, if they are finite numbers."""
    try:
        array = np.array(values, dtype=np.float32)  # a copy: what cannot be written makes torch warn
    except (TypeError, ValueError):
        refuse(f"variables[{name!r}]", "an array of numbers", type(values).__name__)
    if not np.isfinite(array).all():
        refuse(f"variables[{name!r}]", "finite numbers", "not-a-number or infinity")
    return torch.from_numpy(array)


def from_authors_layout(array: Tensor) -> Tensor:
    """Convolutions (kh,kw,in,out) to (out,in,kh,kw), dense weights in x out to out x in, vectors as they are."""
    if array.dim() == 4:
        return array.permute(3, 2, 0, 1).contiguous()
    return array.T.contiguous() if array.dim() == 2 else array


def parameters_by_authors_name(model: NeuralEM) -> dict[str, nn.Parameter]:
    """A pattern for the authors' name of each parameter, in their order."""
    m_step = model.m_step
    if isinstance(m_step, GradientMStep):
        weight = m_step.decoder.dense.get_parameter("0.weight")
        return {r"NEMCell/lr/scalar$": m_step.learning_rate, r"NEMCell/input/weights$": weight}
    assert isinstance(m_step, RecurrentMStep | RelationalMStep)
    encoder = (*m_step.encoder.convolutions, *m_step.encoder.hidden)
    decoder = (*m_step.decoder.dense, *m_step.decoder.convolutions)
    # the authors' reshapes count as layers: one before the convolutions, and another to normalise the input
    first = 1 + model.config.normalize_input if m_step.encoder.convolutions else 0
    recurrent = _entries(r"basic_rnn_cell/", m_step.recurrence)
    if isinstance(m_step, RelationalMStep):
        recurrent = _relations(m_step)
    norm = _entries(r"LayerNormR0/LayerNorm/", m_step.output)
    return dict(chain(_layers(encoder, "Input", "I", first), recurrent, norm, _layers(decoder, "Output", "O", 0)))


def _layers(layers: tuple[nn.Module, ...], side: str, letter: str, first: int) -> Iterator[tuple[str, nn.Parameter]]:
    """The authors' names of one side's layers, numbered from ``first`` with a gap where images become vectors."""
    number = first - 1
    was_image: bool | None = None
    for layer in layers:
        if isinstance(layer, Activation):
            yield from _entries(rf"LayerNorm{letter}{number}/LayerNorm/", layer)
            continue
        image = layer.get_parameter("weight").dim() == 4
        number += 2 if was_image is not None and was_image != image else 1
        was_image = image
        yield from _entries(rf"{side}Wrapper{number}/(Conv|fully_connected)/", layer)


def _relations(m_step: RelationalMStep) -> Iterator[tuple[str, nn.Parameter]]:
    """The authors' names of the interaction's layers, numbered from the second on, and of the recurrent layer."""
    part = m_step.interaction
    layers = [*part.encode, part.pair, part.core, *part.effect, *(part.attend or ()), m_step.recurrence]
    number = -1
    for layer in layers:
        norm = isinstance(layer, Activation)
        number += not norm
        suffix = f"_{number}" if number else ""
        yield from _entries(rf"NPE/{'LayerNorm' if norm else 'fully_connected'}{suffix}/", layer)


def _entries(prefix: str, layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The authors' names of a layer's parameters; an activation without a norm has none."""
    theirs = {"weight": "weights", "bias": "biases", "scale": "gamma", "offset": "beta"}
    for name, parameter in layer.named_parameters(recurse=False):
        yield rf"{prefix}{theirs[name]}$", parameter
