"""ONNX graphs: the exported step with names for people, and the unroll as a loop around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from neural_em.model import BaseConfig

_OPSET = 20
_STATES = 3  # of a step's outputs, the first so many are what the next step reads


def named(program: Any, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
    """An exported step as an ONNX model with these names, and its free sizes called ``batch`` and ``components``."""
    # onnxscript's optimizer takes the layer norm's epsilon for zero and drops it: equal numbers become not-a-number
    made = torch.onnx.export(
        program, dynamo=True, opset_version=_OPSET, input_names=inputs, output_names=outputs, verbose=False,
        optimize=False,
    )  # fmt: skip
    assert made is not None
    step = made.model_proto
    words = dict(zip((dim.dim_param for dim in _sizes(step.graph.input[0])), ("batch", "components"), strict=False))
    for value in (*step.graph.input, *step.graph.output, *step.graph.value_info):
        for dim in _sizes(value):
            if dim.dim_param in words:
                dim.dim_param = words[dim.dim_param]
    for part in (step, step.graph, *step.graph.node, *step.graph.value_info, *step.graph.input, *step.graph.output):
        del part.metadata_props[:]  # where on whose disk each line of code was
    return step


def looped(step: Any, config: BaseConfig, background: torch.Tensor | None = None) -> Any:
    """The unroll: the step's graph as the body of a Scan over the frames, its weights and prior outside of it."""
    body = step.graph
    outputs = [value.name for value in body.output]
    frame = [config.channels, config.height, config.width]
    tails = {outputs[0]: [config.theta_size], outputs[1]: frame, outputs[2]: [1, *frame[1:]]}
    inputs = {
        "x": ["frames", "batch", *frame],
        "x_noisy": ["steps", "batch", *frame],
        "gamma": ["batch", "components", *tails[outputs[2]]],
    }
    results: dict[str, list[Any]] = {
        name: ["steps", "batch", *(["components", *tails[name]] if name in tails else [])] for name in outputs
    }
    nodes, constants = _start(config, background)
    nodes += [
        helper.make_node("Slice", ["x", "one", "far", "zero"], ["x_next"]),
        helper.make_node(
            "Scan", ["theta", "psi", "gamma", "x_noisy", "x_next"],
            [f"{name}_last" for name in outputs[:_STATES]] + outputs, body=_body(body), num_scan_inputs=2,
        ),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "unroll", _values(inputs), _values(results), [*body.initializer, *constants])
    return helper.make_model(graph, opset_imports=list(step.opset_import), ir_version=step.ir_version)


def write(model: Any, path: Path) -> None:
    """Writes a model that ONNX's own checker has passed."""
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))


def _body(graph: Any) -> Any:
    """The step with its new state given out twice: for the next step, and for whoever watches."""
    states, losses = list(graph.output)[:_STATES], list(graph.output)[_STATES:]
    copies = [helper.make_node("Identity", [value.name], [f"{value.name}_watched"]) for value in states]
    watched = [helper.make_value_info(f"{value.name}_watched", value.type) for value in states]
    inputs = [value for value in graph.input if value.name != "prior"]  # which is the same for all steps
    return helper.make_graph([*graph.node, *copies], "em_step", inputs, [*states, *watched, *losses])


def _start(config: BaseConfig, background: torch.Tensor | None) -> tuple[list[Any], list[Any]]:
    """Nodes and constants that make the first theta and psi, for as many samples and components as gamma has."""
    nodes, constants = _zeros(config)
    if isinstance(config.prior, str):
        nodes[-1].output[0] = "zeros"  # what follows adds the prior to
    if config.prior == "median":
        middle = (config.height * config.width - 1) // 2
        numbers = {"pixels": [0, 0, -1], "upto": [middle + 1], "middle": [middle], "three": [3]}
        constants += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
        nodes += [
            helper.make_node("Slice", ["x", "zero", "one", "zero"], ["first_frames"]),
            helper.make_node("Squeeze", ["first_frames", "zero"], ["first_frame"]),
            helper.make_node("Reshape", ["first_frame", "pixels"], ["first_pixels"]),
            helper.make_node("TopK", ["first_pixels", "upto"], ["lower", "lower_places"], largest=0, sorted=1),
            helper.make_node("Slice", ["lower", "middle", "upto", "two"], ["median"]),
            helper.make_node("Unsqueeze", ["median", "three"], ["prior"]),
        ]
    elif background is not None:
        constants.append(numpy_helper.from_array(background.unsqueeze(0).numpy(), "prior"))
    if isinstance(config.prior, str):
        nodes.append(helper.make_node("Unsqueeze", ["prior", "one"], ["prior_of_components"]))
        nodes.append(helper.make_node("Add", ["zeros", "prior_of_components"], ["psi"]))
    return nodes, constants


def _zeros(config: BaseConfig) -> tuple[list[Any], list[Any]]:
    """Nodes and constants that make theta and psi of zeros, for as many samples and components as gamma has."""
    numbers = {
        "zero": [0], "one": [1], "two": [2], "far": [2**62],
        "theta_tail": [config.theta_size], "psi_tail": [config.channels, config.height, config.width],
    }  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["gamma"], ["gamma_shape"]),
        helper.make_node("Slice", ["gamma_shape", "zero", "two"], ["head"]),
    ]
    for name in ("theta", "psi"):
        nodes.append(helper.make_node("Concat", ["head", f"{name}_tail"], [f"{name}_shape"], axis=0))
        nodes.append(helper.make_node("ConstantOfShape", [f"{name}_shape"], [name]))
    return nodes, [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]


def _values(shapes: dict[str, list[Any]]) -> list[Any]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def _sizes(value: Any) -> list[Any]:
    return list(value.type.tensor_type.shape.dim)
