"""An ONNX model in the making: the shape of each value is known as soon as its node is added."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from bench.cases import names_of_axes

OPSET, IR_VERSION = 20, 10
MOST_ELEMENTS = 1 << 24
"""Of all values of a model together, weights included."""
MOST_FLOPS = 4e9


class TooLarge(Exception):
    """What was drawn costs more than a case may."""


@dataclass(frozen=True)
class Value:
    """A tensor of the model, with its sizes in the call that is measured."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass
class Draft:
    """The nodes, weights and inputs until now. `has_sizes` says that sizes of its inputs stand in its constants, so
    that they cannot be unknown; `known` has axes of an input whose sizes its operator prescribes."""

    rng: random.Random
    numbers: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    elements: int = 0
    flops: float = 0.0
    has_sizes: bool = False
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def input(self, *shape: int, dtype: str = "float32", below: int = 1000) -> Value:
        """Normal numbers; integers are from 1 to `below`, without it."""
        self._spend(math.prod(shape))
        if np.dtype(dtype).kind in "iu":
            array = self.numbers.integers(1, max(2, below), shape).astype(dtype)
        else:
            array = self.numbers.standard_normal(shape).astype(dtype)
        return self.given(array)

    def given(self, array: np.ndarray, known: tuple[int, ...] = ()) -> Value:
        """An input with these elements, of which the sizes of some axes are always known."""
        name = f"x{len(self.inputs)}"
        self.inputs[name], self.known[name] = array, known
        return Value(name, array.shape, array.dtype)

    def weight(self, *shape: int, scale: float | None = None, dtype: str = "float32") -> Value:
        """Normal numbers that keep the scale of what they are multiplied with."""
        self._spend(math.prod(shape))
        if scale is None:
            scale = 1 / math.sqrt(max(1, math.prod(shape[1:])))
        return self.constant((self.numbers.standard_normal(shape) * scale).astype(dtype))

    def constant(self, array: np.ndarray) -> Value:
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return Value(name, array.shape, array.dtype)

    def integers(self, *elements: int) -> Value:
        """A constant vector, such as a shape."""
        return self.constant(np.array(elements, np.int64))

    def node(self, op: str, *operands: Value | None, domain: str = "", **attributes: Any) -> Value:
        """A node of which the first result is used."""
        return self.node_of_several(op, operands, 1, domain=domain, **attributes)[0]

    def node_of_several(
        self, op: str, operands: Sequence[Value | None], count: int, domain: str = "", **attributes: Any
    ) -> list[Value]:
        """A node with results; an operand of None is left out. Raises TooLarge before a case costs too much, and
        ValueError where the standard does not know a shape or a type."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        inputs = ["" if operand is None else operand.name for operand in operands]
        node = helper.make_node(op, inputs, names, f"{op}_{len(self.nodes)}", domain=domain, **attributes)
        results = self._results(node, [operand for operand in operands if operand is not None])
        for result in results:
            self._spend(math.prod(result.shape))
        self.flops += _flops(op, operands, results[0])
        if self.flops > MOST_FLOPS:
            raise TooLarge
        self.nodes.append(node)
        return results

    def node_of_any_size(self, op: str, *operands: Value, dtype: str, rank: int, **attributes: Any) -> Value:
        """A node whose result, which no node reads, has as many elements as the data say."""
        return self.node_of_shape(op, operands, (0,) * rank, np.dtype(dtype), **attributes)

    def node_of_shape(
        self, op: str, operands: Sequence[Value], shape: tuple[int, ...], dtype: np.dtype[Any], **attributes: Any
    ) -> Value:
        """A node whose result has this shape, which the caller knows: a loop or a branch."""
        self._spend(math.prod(shape))
        name = f"v{len(self.nodes)}_0"
        names = [v.name for v in operands]
        self.nodes.append(helper.make_node(op, names, [name], f"{op}_{len(self.nodes)}", **attributes))
        return Value(name, shape, dtype)

    def _results(self, node: onnx.NodeProto, operands: Sequence[Value]) -> list[Value]:
        types = {v.name: _type(v) for v in operands}
        known = {
            v.name: numpy_helper.from_array(self.weights[v.name], v.name) for v in operands if _small(self, v)
        }
        schema = defs.get_schema(node.op_type, OPSET, node.domain)
        try:
            found: Mapping[str, onnx.TypeProto] = shape_inference.infer_node_outputs(
                schema, node, types, known, opset_imports=[helper.make_opsetid(node.domain, OPSET)]
            )
        except onnx.checker.ValidationError as error:
            raise ValueError(f"{node.op_type} is not defined for these types: {error}") from error
        return [_value(name, found) for name in node.output]

    def may_be_unknown(self) -> bool:
        """Whether some axes of the inputs can be unknown."""
        return not self.has_sizes and any(map(names_of_axes, self.inputs.values()))

    def _spend(self, elements: int) -> None:
        self.elements += elements
        if self.elements > MOST_ELEMENTS:
            raise TooLarge

    def model(self, outputs: Sequence[Value], unknown: bool) -> onnx.ModelProto:
        """All axes but those of channels unknown, if so asked."""
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [self._info(name, array, unknown) for name, array in self.inputs.items()],
            [_output(v) for v in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)

    def _info(self, name: str, array: np.ndarray, unknown: bool) -> onnx.ValueInfoProto:
        axes = set(names_of_axes(array)) - set(self.known[name]) if unknown else set()
        # neither inputs nor axes need share a size: each has a dim of its own
        shape = [f"{name}_{axis}" if axis in axes else size for axis, size in enumerate(array.shape)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _small(draft: Draft, value: Value) -> bool:
    """Whether shapes may depend on the elements of a value."""
    return value.name in draft.weights and value.dtype.kind in "if" and math.prod(value.shape) <= 64


def _type(value: Value) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _value(name: str, types: Mapping[str, onnx.TypeProto]) -> Value:
    tensor = types[name].tensor_type
    if not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
        raise ValueError(f"the shape of {name} is not known")
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    return Value(name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _flops(op: str, operands: Sequence[Value | None], result: Value) -> float:
    if op in ("MatMul", "Gemm") and operands[0] is not None:
        return 2.0 * math.prod(result.shape) * operands[0].shape[-1]
    if op == "Conv" and operands[1] is not None:
        return 2.0 * math.prod(result.shape) * math.prod(operands[1].shape[1:])
    if op == "ConvTranspose" and operands[0] is not None and operands[1] is not None:
        return 2.0 * math.prod(operands[0].shape) * math.prod(operands[1].shape[1:])
    return 0.0


def _output(value: Value) -> onnx.ValueInfoProto:
    """Its sizes follow from those of the inputs."""
    dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(value.name, dtype, [None] * len(value.shape))
