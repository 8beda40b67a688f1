"""Checks of quantisation that a model brings along: parameters that no integer can be read by."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.quantization.methods.integers import TYPES, check_parameters
from tilewright.quantization.network import attribute
from tilewright.runtime.errors import InputError

_PAIRS = ("QuantizeLinear", "DequantizeLinear")
_NAMES: dict[int, str] = {
    TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8",
    TensorProto.UINT4: "uint4",
    TensorProto.INT4: "int4",
}


def check_quantised(model: onnx.ModelProto) -> None:
    """InputError for scales that are zero, NaN or not as many as the channels, zero points out of range, and packed
    integers of a wrong length, each with the node."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = attribute(node, "value", None)
            if isinstance(value, TensorProto):
                tensors[node.output[0]] = value
    for node in model.graph.node:
        if node.op_type in _PAIRS and len(node.input) > 1:
            _check(node, tensors)


def _check(node: onnx.NodeProto, tensors: dict[str, TensorProto]) -> None:
    where = f"node '{node.name or node.output[0]}' ({node.op_type})"
    data = tensors.get(node.input[0])
    zero_name = node.input[2] if len(node.input) > 2 else ""
    zero_tensor = tensors.get(zero_name)
    kind = (data if node.op_type == "DequantizeLinear" else None) or zero_tensor
    named = _NAMES.get(kind.data_type, "") if kind is not None else ""
    for name in node.input:
        if name in tensors:
            _check_length(tensors[name], where)
    if node.input[1] not in tensors:
        return
    scale = numpy_helper.to_array(tensors[node.input[1]])
    if named not in TYPES and named:
        return
    zero = np.zeros((), np.int64)
    if zero_tensor is not None:
        zero = np.asarray(numpy_helper.to_array(zero_tensor)).astype(np.int64)
    channels = None
    if data is not None and scale.ndim == 1 and not attribute(node, "block_size", 0):
        axis = attribute(node, "axis", 1)
        if not -len(data.dims) <= axis < len(data.dims):
            raise InputError(f"axis {axis} of a tensor of rank {len(data.dims)}", where=where)
        channels = data.dims[axis]
    check_parameters(scale, zero, TYPES[named or "int8"], channels=channels, where=where)


def _check_length(tensor: TensorProto, where: str) -> None:
    """Packed integers of 4 bits: two in a byte."""
    if tensor.data_type not in (TensorProto.INT4, TensorProto.UINT4):
        return
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if tensor.HasField("raw_data") and len(tensor.raw_data) != (count + 1) // 2:
        raise InputError(
            f"{count} integers of 4 bits are stored in {len(tensor.raw_data)} bytes, and take {(count + 1) // 2}",
            where=where,
            hint="two are packed in a byte; the last byte of an odd number is half empty",
        )
