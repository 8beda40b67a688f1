"""Models that give their intermediate tensors, and models that take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import ml_dtypes  # noqa: F401  (registers the dtypes of 16 and 8 bits with NumPy)
import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.api import compile as compile_model
from tilewright.comparison.graph import CoreGraph
from tilewright.runtime import Model

Arrays = Mapping[str, np.ndarray]

VALUE = ":value"
"""Appended to the name of a tensor of integers: the numbers that these stand for."""

GIVEN = ":given"
"""Appended to the name of a tensor that is given with the call."""


class Tapped:
    """A compiled model whose call gives tensors by name."""

    def __init__(self, model: onnx.ModelProto, names: Sequence[str], threads: int | None) -> None:
        self.names = list(names)
        self.compiled: Model = compile_model(model, threads=threads, cache=False)

    def __call__(self, feed: Arrays) -> dict[str, np.ndarray]:
        found = self.compiled(*[feed[info.name] for info in self.compiled.inputs])
        return dict(zip(self.names, found, strict=True))


def tapped(model: onnx.ModelProto, graph: CoreGraph, names: Sequence[str], threads: int | None) -> Tapped:
    """The model with these tensors as its outputs."""
    copy = _copy(model)
    _set_outputs(copy.graph, graph, names)
    return Tapped(copy, names, threads)


def layered(
    model: onnx.ModelProto, graph: CoreGraph, names: Sequence[str], given: Arrays, feed: Arrays, threads: int | None
) -> Tapped:
    """The model with these tensors as its outputs, in which those that are `given` come with the call: each layer reads
    them, and not what the layers before give. Shapes are those of the arrays."""
    copy = _copy(model)
    taken = {name: f"{name}{GIVEN}" for name in given}
    for node in copy.graph.node:
        for place, name in enumerate(node.input):
            if name in taken:
                node.input[place] = taken[name]
    first: list[onnx.NodeProto] = []
    for name, array in given.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        parameters = graph.parameters(name)
        source = taken[name] if parameters is None else f"{taken[name]}{VALUE}"
        copy.graph.input.append(helper.make_tensor_value_info(source, kind, list(array.shape)))
        if parameters is not None:
            operands = [source, parameters.scale, *filter(None, [parameters.zero_point])]
            first.append(helper.make_node("QuantizeLinear", operands, [taken[name]]))
    for value in copy.graph.input:
        if value.name in feed:
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, list(feed[value.name].shape)))
    _set_outputs(copy.graph, graph, names)
    _put_first(copy.graph, first)
    return Tapped(copy, names, threads)


def given_feed(feed: Arrays, given: Arrays, graph: CoreGraph) -> dict[str, np.ndarray]:
    """What a call of a layered model takes."""
    ends = {name: GIVEN if graph.parameters(name) is None else f"{GIVEN}{VALUE}" for name in given}
    return {**feed, **{f"{name}{ends[name]}": array for name, array in given.items()}}


def may_be_given(graph: CoreGraph, name: str) -> bool:
    """Whether all that reads a tensor are nodes of the graph itself, and not of graphs in these."""
    return all(name in node.input for node in graph.readers.get(name, ()))


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    return copy


def _set_outputs(graph: onnx.GraphProto, core: CoreGraph, names: Iterable[str]) -> None:
    known = {value.name: value for value in (*graph.output, *graph.input)}
    kept = {name: value.SerializeToString() for name, value in known.items()}
    del graph.output[:]
    for name in names:
        parameters = core.parameters(name)
        if parameters is not None:
            operands = [name, parameters.scale, *filter(None, [parameters.zero_point])]
            graph.node.append(helper.make_node("DequantizeLinear", operands, [f"{name}{VALUE}"]))
            graph.output.append(helper.make_tensor_value_info(f"{name}{VALUE}", TensorProto.FLOAT, None))
        elif name in kept:
            graph.output.append(onnx.ValueInfoProto.FromString(kept[name]))
        else:
            graph.output.append(helper.make_empty_tensor_value_info(name))


def _put_first(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    if not nodes:
        return
    others = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend([*nodes, *others])
