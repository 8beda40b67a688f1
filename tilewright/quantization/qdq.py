"""Writing a choice into the model: QuantizeLinear and DequantizeLinear around its layers, casts for bfloat16.

Weights of 8 bits are stored as uint8 with the zero point 128, not as int8 with 0: they mean the same, and on x86
machines without VNNI ONNX Runtime adds pairs of products of the latter in 16 bits, where they saturate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.quantization.methods.integers import QParameters, packed_int4
from tilewright.quantization.network import LayerGroup, Network, attribute

WEIGHT_BLOCK = 32
"""Weights along the inputs that share a scale, of those of 4 bits."""


@dataclass(frozen=True)
class QuantizedWeights:
    """Integers in the layout of the layer's weights, and their parameters: one scale for each channel, or for each
    block of `block` inputs of each channel."""

    integers: np.ndarray
    parameters: QParameters
    block: int = 0

    def floats(self, channel_axis: int) -> np.ndarray:
        """What the integers stand for."""
        scale, zero = self.parameters.scale, self.parameters.zero_point
        if self.block:
            scale, zero = (np.repeat(x, self.block, axis=1 - channel_axis) for x in (scale, zero))
        else:
            scale, zero = self.parameters.shaped(self.integers.ndim, channel_axis)
        return np.asarray((self.integers.astype(np.int32) - zero.astype(np.int32)) * scale, np.float32)


@dataclass(frozen=True)
class UnitCode:
    """How a unit is written: its kind, weights and biases by layer, parameters of what it reads and factors of its
    channels before that. Of bfloat16 the kind says all."""

    kind: str
    weights: Mapping[str, QuantizedWeights] = field(default_factory=dict)
    shifts: Mapping[str, np.ndarray] = field(default_factory=dict)
    activation: QParameters | None = None
    smooth: np.ndarray | None = None


class Writer:
    """Writes units into a copy of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._copy = network.copy()
        self._nodes = {node.name: node for node in self._copy.graph.node}
        self._before: dict[str, list[onnx.NodeProto]] = {}
        self._after: dict[str, list[onnx.NodeProto]] = {}

    def model(self, codes: Mapping[str, UnitCode]) -> onnx.ModelProto:
        """The model with these units in smaller types."""
        for unit in self._network.units:
            if unit.name in codes:
                self._write(unit, codes[unit.name])
        graph = self._copy.graph
        ordered = [
            n
            for node in graph.node
            for n in (*self._before.get(node.name, ()), node, *self._after.get(node.name, ()))
        ]
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del graph.node[:]
        graph.node.extend(kept)
        read = {name for node in graph.node for name in _inputs(node)} | {o.name for o in graph.output}
        tensors = [TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name in read]
        del graph.initializer[:]
        graph.initializer.extend(tensors)
        del graph.value_info[:]
        return self._copy.model

    def _write(self, unit: LayerGroup, code: UnitCode) -> None:
        first = unit.layers[0].node
        before: list[onnx.NodeProto] = []
        data = unit.data
        if code.smooth is not None:
            space = len(self._network.initializers[unit.layers[0].weight].dims) - 2
            shape = (-1, *[1] * space) if unit.layers[0].operator == "Conv" else (-1,)
            factors = self._constant(f"{first}/smooth", code.smooth.astype(np.float32).reshape(shape))
            before.append(
                helper.make_node("Mul", [data, factors], [f"{first}/smoothed"], f"{first}/smoothed")
            )
            data = f"{first}/smoothed"
        if code.activation is not None:
            data = self._quantized(first, data, code.activation, before)
        if code.kind == "bf16":
            before.append(
                helper.make_node(
                    "Cast", [data], [f"{first}/short"], f"{first}/short", to=TensorProto.BFLOAT16
                )
            )
            data = f"{first}/short"
        self._before[first] = before
        for layer in unit.layers:
            node = self._nodes[layer.node]
            node.input[0] = data
            weights = code.weights.get(layer.node)
            if code.kind == "bf16":
                self._short(node)
            elif weights is not None:
                made = self._before.setdefault(layer.node, [])
                node.input[1] = self._weights(layer.node, layer.operator, layer.channel_axis, weights, made)
            shift = code.shifts.get(layer.node)
            if shift is not None:
                self._shift(unit, layer.node, layer.operator, shift)

    def _quantized(self, name: str, data: str, parameters: QParameters, nodes: list[onnx.NodeProto]) -> str:
        scale = self._constant(f"{name}/scale", np.asarray(parameters.scale, np.float32))
        zero = self._constant(f"{name}/zero", np.asarray(parameters.zero_point, parameters.type.name))
        nodes.append(
            helper.make_node("QuantizeLinear", [data, scale, zero], [f"{name}/integers"], f"{name}/quantize")
        )
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [f"{name}/integers", scale, zero], [f"{name}/read"], f"{name}/dequantize"
            )
        )
        return f"{name}/read"

    def _weights(
        self, name: str, operator: str, axis: int, found: QuantizedWeights, nodes: list[onnx.NodeProto]
    ) -> str:
        q, parameters = found.integers, found.parameters
        names = [f"{name}/weights", f"{name}/weight scales", f"{name}/weight zeros"]
        if found.block:
            axis = 1 - axis
            self._int4(names[0], q)
            self._constant(names[1], parameters.scale)
            inputs = names[:2]
            more: dict[str, Any] = {"axis": axis, "block_size": found.block}
        else:
            self._constant(names[0], q.astype(np.uint8))
            self._constant(names[1], parameters.scale)
            self._constant(names[2], parameters.zero_point.astype(np.uint8))
            inputs, more = names, {"axis": axis} if parameters.scale.ndim else {}
        node = helper.make_node(
            "DequantizeLinear", inputs, [f"{name}/weights read"], f"{name}/weights read", **more
        )
        nodes.append(node)
        return f"{name}/weights read"

    def _int4(self, name: str, q: np.ndarray) -> None:
        tensor = TensorProto(name=name, data_type=TensorProto.INT4, dims=q.shape)
        tensor.raw_data = packed_int4(q).tobytes()
        self._copy.graph.initializer.append(tensor)

    def _constant(self, name: str, array: np.ndarray) -> str:
        self._copy.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _short(self, node: onnx.NodeProto) -> None:
        """The layer on bfloat16, and its result as float32 again."""
        name = node.name
        for index in range(1, len(node.input)):
            array = self._network.array(node.input[index])
            tensor = helper.make_tensor(
                f"{name}/{index}", TensorProto.BFLOAT16, array.shape,
                array.astype(ml_dtypes.bfloat16).tobytes(), raw=True,
            )  # fmt: skip
            self._copy.graph.initializer.append(tensor)
            node.input[index] = tensor.name
        output = node.output[0]
        node.output[0] = f"{name}/short sum"
        self._after[name] = [
            helper.make_node("Cast", [node.output[0]], [output], f"{name}/long", to=TensorProto.FLOAT)
        ]

    def _shift(self, unit: LayerGroup, name: str, operator: str, shift: np.ndarray) -> None:
        """Add to the bias where there is one that is the layer's alone, else in a node of its own."""
        layer = next(x for x in unit.layers if x.node == name)
        node = self._nodes[name]
        if layer.bias is not None:
            bias = self._network.array(layer.bias)
            if bias.shape == shift.shape:
                factor = attribute(node, "beta", 1.0) if operator == "Gemm" else 1.0
                moved = self._constant(f"{name}/bias", (bias + shift / factor).astype(np.float32))
                if operator != "MatMul":
                    node.input[2] = moved
                else:
                    (adder,) = self._network.readers[layer.output]
                    adder = self._nodes[adder.name]
                    adder.input[list(adder.input).index(layer.bias)] = moved
                return
        if operator == "Conv" and len(node.input) == 2:
            node.input.append(self._constant(f"{name}/bias", shift.astype(np.float32)))
            return
        shape = (
            (-1, *[1] * (len(self._network.initializers[layer.weight].dims) - 2))
            if operator == "Conv"
            else (-1,)
        )
        term = self._constant(f"{name}/shift", shift.astype(np.float32).reshape(shape))
        output = node.output[0]
        node.output[0] = f"{name}/sum"
        self._after.setdefault(name, []).append(
            helper.make_node("Add", [node.output[0], term], [output], f"{name}/shifted")
        )


def _inputs(node: onnx.NodeProto) -> list[str]:
    found = list(node.input)
    for a in node.attribute:
        for graph in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            found += [output.name for output in graph.output]
            for inner in graph.node:
                found += _inputs(inner)
    return found
