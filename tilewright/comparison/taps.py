"""Models that give their intermediate tensors, and models that take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import ml_dtypes  # noqa: F401  (registers the dtypes of 16 and 8 bits with NumPy)
import numpy as np

from tilewright.api import compile as compile_model
from tilewright.comparison.graph import CoreGraph, IntegerParameters
from tilewright.graph.editing import add_input, build_after, replace_in, set_outputs
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.ops.view import reshape
from tilewright.runtime import Model, TensorInfo

Arrays = Mapping[Value, np.ndarray]


class Tapped:
    """A compiled model whose call gives values of a graph."""

    def __init__(self, module: Module, values: Sequence[Value], inputs: Sequence[Value], threads: int | None) -> None:
        self.compiled: Model = compile_model(module, threads=threads, cache=False)
        self._values, self._inputs = values, inputs

    def __call__(self, given: Arrays) -> dict[Value, np.ndarray]:
        """Those of the inputs, and what is computed."""
        found = self.compiled(*[given[value] for value in self._inputs])
        return {**given, **dict(zip(self._values, found, strict=True))}


def info_of(graph: CoreGraph, value: Value, name: str = "") -> TensorInfo:
    """What a compiled model gives for a value, as far as that is known before it is compiled."""
    if not isinstance(value.type, TensorType):
        return TensorInfo(name, "object", (), "sequence")
    dtype = value.type.dtype if graph.parameters(value) is None else dt.f32
    text = "string" if dtype.kind == "string" else dtype.storage.name
    return TensorInfo(name, text, tuple(d.value if d.is_const else str(d) for d in value.type.shape))


def tapped(graph: CoreGraph, values: Iterable[Value], threads: int | None) -> Tapped:
    """The graph with these values as its outputs; integers are given as the numbers that they stand for."""
    own: dict[Value, Value] = {}
    module = graph.module.copy(own)
    wanted = list(values)
    set_outputs(module, _outputs(graph, module, own, wanted))
    return Tapped(module, wanted, list(graph.inputs.values()), threads)


def layered(graph: CoreGraph, values: Sequence[Value], given: Sequence[Value], threads: int | None) -> Tapped:
    """The graph with these values as its outputs, in which those that are `given` come with the call: each layer reads
    them, and not what the layers before give."""
    own: dict[Value, Value] = {}
    module = graph.module.copy(own)
    outputs = _outputs(graph, module, own, values)
    readers = {value: [op for op in own[value].users if op not in _makers(outputs, own[value])] for value in given}
    for value in given:
        parameters = graph.parameters(value)
        type = value.tensor if parameters is None else TensorType(dt.f32, value.tensor.shape)
        taken = add_input(module, value.name or "given", type)
        if parameters is not None:
            pair = _parameters(parameters, own)
            taken = build_after(own[value], module, partial(_quantized, taken, *pair, value.tensor.dtype))
        replace_in(readers[value], own[value], taken)
    set_outputs(module, outputs)
    return Tapped(module, values, [*graph.inputs.values(), *given], threads)


def _outputs(
    graph: CoreGraph, module: Module, own: Mapping[Value, Value], values: Sequence[Value]
) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for place, value in enumerate(values):
        made, parameters = own[value], graph.parameters(value)
        if parameters is not None:
            made = build_after(made, module, partial(_dequantized, made, *_parameters(parameters, own)))
        found[f"{value.name or 'value'}:{place}"] = made
    return found


def _makers(outputs: Mapping[str, Value], value: Value) -> list[object]:
    """The ops that only make an output of a value."""
    return [v.op for v in outputs.values() if v.op is not None and not v.users and value in v.op.operands]


def _parameters(parameters: IntegerParameters, own: Mapping[Value, Value]) -> tuple[Value, Value]:
    return own[parameters.scale], own[parameters.zero_point]


def _quantized(value: Value, scale: Value, zero: Value, dtype: DType) -> Value:
    return quantize_linear(value, _scalar(scale), _scalar(zero), dtype=dtype)


def _dequantized(value: Value, scale: Value, zero: Value) -> Value:
    return dequantize_linear(value, _scalar(scale), _scalar(zero), dtype=dt.f32)


def _scalar(value: Value) -> Value:
    """One number has no axis, so that it broadcasts."""
    return reshape(value, shape=()) if value.tensor.rank and value.tensor.size == 1 else value
