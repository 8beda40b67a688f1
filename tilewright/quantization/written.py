"""Writing a choice into the graph: quantisation and dequantisation around its layers, casts for bfloat16.

Weights of 8 bits are stored as uint8 with the zero point 128, not as int8 with 0: they mean the same, and on x86
machines without VNNI ONNX Runtime adds pairs of products of the latter in 16 bits, where they saturate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.graph.editing import build_before
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value, current_builder
from tilewright.ir.diag import Loc
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.elementwise import add, cast, mul
from tilewright.ops.quant import dequantize_linear, quantize_linear, spread
from tilewright.ops.view import shape_of
from tilewright.quantization.methods.integers import QParameters
from tilewright.quantization.network import Layer, LayerGroup, Network

WEIGHT_BLOCK = 32
"""Weights along the inputs that share a scale, of those of 4 bits."""

STORED = {"uint8": dt.u8, "int8": dt.i8, "uint4": dt.u4, "int4": dt.i4}


@dataclass(frozen=True)
class QuantizedWeights:
    """Integers in the layout of the layer's weights, and their parameters: one scale for each channel, or for each
    block of `block` inputs of each channel, which have no zero points."""

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


def written(network: Network, codes: Mapping[str, UnitCode]) -> Module:
    """A copy of the network's graph with these units in smaller types."""
    own: dict[Value, Value] = {}
    module = network.module.copy(own)
    for unit in network.units:
        if unit.name not in codes:
            continue
        code = codes[unit.name]
        first = own[unit.layers[0].op.result].op
        assert first is not None
        read = build_before(first, module, partial(_read, own[unit.data], unit, code))
        for layer in unit.layers:
            old = own[layer.result]
            assert old.op is not None
            new = build_before(old.op, module, partial(_sums, network, layer, code, read, own))
            new.name = old.name
            old.replace_by(new)
    drop_dead(module)
    return module


def _named(value: Value, name: str) -> Value:
    """A value with a name of its own, which is also that of its node: those of the model stay with its own nodes."""
    value.name = name
    if value.op is not None:
        value.op.loc = Loc(node=name)
    return value


def _read(data: Value, unit: LayerGroup, code: UnitCode) -> Value:
    """What the layers of a unit read."""
    if code.smooth is not None:
        factors = unit.layers[0].along_channels(code.smooth.astype(np.float32))
        data = _named(mul(data, constant(factors, f"{unit.name}/smooth")), f"{unit.name}/smoothed")
    if code.activation is not None:
        dtype = STORED[code.activation.type.name]
        scale = constant(np.asarray(code.activation.scale, np.float32), f"{unit.name}/scale")
        zero = constant(np.asarray(code.activation.zero_point).astype(dtype.storage), f"{unit.name}/zero")
        integers = _named(quantize_linear(data, scale, zero, dtype=dtype), f"{unit.name}/quantized")
        data = _named(dequantize_linear(integers, scale, zero, dtype=dt.f32), f"{unit.name}/read")
    return _named(cast(data, dtype=dt.bf16), f"{unit.name}/short") if code.kind == "bf16" else data


def _sums(network: Network, layer: Layer, code: UnitCode, read: Value, own: Mapping[Value, Value]) -> Value:
    """The result of a layer, with its bias and what is added to that."""
    if code.kind == "bf16":
        array = network.array(layer.weight)
        weights = constant(array.astype(dt.bf16.storage), f"{layer.node}/weights")
    elif layer.node in code.weights:
        weights = _weights(layer, code.weights[layer.node])
    else:
        weights = own[layer.op.operands[1]]
    with current_builder().at(layer.op.loc):
        sums = OPERATORS[layer.op.name](read, weights, **layer.op.attrs)
    sums.name = f"{layer.node}/sum"
    if code.kind == "bf16":
        sums = _named(cast(sums, dtype=dt.f32), f"{layer.node}/long")
    bias = None if layer.bias is None else network.array(layer.bias)
    shift = code.shifts.get(layer.node)
    if shift is None:
        if bias is None:
            return sums
        term = constant(bias, layer.bias or "")
    else:
        shift = layer.along_channels(shift) + (0 if bias is None else bias)
        term = constant(shift.astype(np.float32), f"{layer.node}/bias")
    # ONNX's convolutions have their bias, which may be what was left of a normalisation
    with current_builder().at(current_builder().loc if layer.windows is None else layer.op.loc):
        return add(sums, term)


def _weights(layer: Layer, found: QuantizedWeights) -> Value:
    parameters, axis = found.parameters, layer.channel_axis
    dtype = STORED[parameters.type.name]
    scale, zero = parameters.shaped(found.integers.ndim, axis) if not found.block else (parameters.scale, None)
    integers = constant(found.integers.astype(dtype.storage), f"{layer.node}/weights")
    scales = constant(np.asarray(scale, np.float32), f"{layer.node}/weight scales")
    zeros = constant(np.asarray(0 if zero is None else zero).astype(dtype.storage), f"{layer.node}/weight zeros")
    if found.block:
        scales = spread(scales, 1 - axis, found.block, shape_of(integers)[1 - axis])
    return _named(dequantize_linear(integers, scales, zeros, dtype=dt.f32), f"{layer.node}/weights read")
