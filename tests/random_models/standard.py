"""What the standard forbids, and ONNX Runtime or the package's reference make something of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper


class Refused(Exception):
    """The step does not fit what there is, or what it gives is not good for tests."""


Arrays = Mapping[str, np.ndarray]


def check_node(node: onnx.NodeProto, arrays: Arrays) -> None:
    """Refuse a node whose operands, of which `arrays` has some, are none that the standard has a meaning for."""
    _check_axes(node, arrays)
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    given = [arrays[name] for name in node.input[:3] if name in arrays]
    if node.op_type in ("RNN", "GRU", "LSTM") and attrs.get("hidden_size", given[2].shape[-1]) != given[2].shape[-1]:
        raise Refused  # the package's reference does not read the attribute
    if node.op_type in UNCHECKED and len(given) > 1 and not UNCHECKED[node.op_type](attrs, *given[:2]):
        raise Refused


def _check_axes(node: onnx.NodeProto, arrays: Arrays) -> None:
    """Refuse axes of which one is named twice; ONNX Runtime reduces that axis once."""
    schema = onnx.defs.get_schema(node.op_type) if not node.domain and onnx.defs.has(node.op_type) else None
    k = next((k for k, o in enumerate(schema.inputs if schema else ()) if o.name == "axes"), len(node.input))
    if k >= len(node.input) or node.input[k] not in arrays or node.input[0] not in arrays:
        return
    axes = arrays[node.input[k]].reshape(-1)
    rank = arrays[node.input[0]].ndim + (axes.size if node.op_type == "Unsqueeze" else 0)
    if len({int(a) % max(rank, 1) for a in axes}) < axes.size:
        raise Refused


def _is_inside(attrs: Mapping[str, Any], x: np.ndarray, condition: np.ndarray) -> bool:
    """Whether Compress takes elements that there are."""
    size = x.shape[attrs["axis"]] if "axis" in attrs else x.size
    return not condition[size:].any()


def _finds_places(attrs: Mapping[str, Any], x: np.ndarray, places: np.ndarray) -> bool:
    """Whether MaxUnpool puts elements into the tensor that its window gives."""
    kernel = attrs["kernel_shape"]
    count = len(kernel)
    strides, pads = attrs.get("strides", [1] * count), attrs.get("pads", [0] * 2 * count)
    space = [(d - 1) * strides[k] + kernel[k] - pads[k] - pads[k + count] for k, d in enumerate(x.shape[2:])]
    size = math.prod((*x.shape[:2], *space))
    return bool(((places >= 0) & (places < size)).all())


def _finds_slices(attrs: Mapping[str, Any], data: np.ndarray, indices: np.ndarray) -> bool:
    """Whether GatherBlockQuantized takes slices that there are."""
    size = data.shape[attrs.get("gather_axis", 0)]
    return bool(((indices >= -size) & (indices < size)).all())


UNCHECKED: Mapping[str, Callable[[Mapping[str, Any], np.ndarray, np.ndarray], bool]] = {
    "Compress": _is_inside, "MaxUnpool": _finds_places, "GatherBlockQuantized": _finds_slices,
}  # fmt: skip
"""Operators whose indexes ONNX Runtime does not check, and whether those of the second operand are in range."""
