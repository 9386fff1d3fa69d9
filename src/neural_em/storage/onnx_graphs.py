"""ONNX graphs: the exported step with names for people, and the unroll as a loop around it."""

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
    """An exported program as an ONNX model with these names, and its free sizes called ``batch`` and ``components``."""
    # onnxscript's optimizer takes the layer norm's epsilon for zero and drops it: equal numbers become not-a-number
    made = torch.onnx.export(
        program, dynamo=True, opset_version=_OPSET, input_names=inputs, output_names=outputs, verbose=False,
        optimize=False,
    )  # fmt: skip
    assert made is not None
    model = made.model_proto  # made anew at each asking
    graph = model.graph
    words = dict(zip((dim.dim_param for dim in _sizes(graph.input[0])), ("batch", "components"), strict=False))
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in _sizes(value):
            if dim.dim_param in words:
                dim.dim_param = words[dim.dim_param]
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]  # where on whose disk each line of code was
    return model


def looped(start: Any, step: Any, config: BaseConfig) -> Any:
    """The unroll: the start's graph, then the step's as the body of a Scan over the frames, weights outside of it."""
    start = onnx.compose.add_prefix(start, "start_").graph
    outputs = [value.name for value in step.graph.output]
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
    numbers = {"zero": [0], "one": [1], "far": [2**62]}
    constants = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Slice", ["x", "zero", "one", "zero"], ["first_frames"]),
        helper.make_node("Squeeze", ["first_frames", "zero"], ["start_first_frame"]),
        helper.make_node("Identity", ["gamma"], ["start_gamma"]),
        *start.node,
        *(helper.make_node("Identity", [each.name], [each.name.removeprefix("start_")]) for each in start.output),
        helper.make_node("Slice", ["x", "one", "far", "zero"], ["x_next"]),
        helper.make_node(
            "Scan", ["theta", "psi", "gamma", "x_noisy", "x_next"],
            [f"{name}_last" for name in outputs[:_STATES]] + outputs, body=_body(step.graph), num_scan_inputs=2,
        ),
    ]  # fmt: skip
    weights = [*start.initializer, *step.graph.initializer, *constants]
    graph = helper.make_graph(nodes, "unroll", _values(inputs), _values(results), weights)
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


def _values(shapes: dict[str, list[Any]]) -> list[Any]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def _sizes(value: Any) -> list[Any]:
    return list(value.type.tensor_type.shape.dim)
