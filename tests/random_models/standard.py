"""What the standard forbids, and ONNX Runtime or the package's reference make something of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    fits = FITS.get(node.op_type)
    if fits is not None and not fits(attrs, [arrays.get(name) for name in node.input]):
        raise Refused
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


def _is_recurrent(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """The package's reference does not read the hidden size, and broadcasts the bias."""
    hidden, bias = operands[2].shape[-1], operands[3] if len(operands) > 3 else None
    return attrs.get("hidden_size", hidden) == hidden and (bias is None or bias.shape[1] == 2 * operands[2].shape[1])


def _has_rows(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """ONNX Runtime reads as many rows of an affine map as the size has axes, wherever they lie."""
    rank = operands[1].size - 2
    return operands[0].shape[1:] == (rank, rank + 1)


def _has_blocks(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """The package's reference takes scales of fewer blocks than there are."""
    size, axis = attrs.get("block_size", 0), attrs.get("axis", 1)
    x, scale = operands[:2]
    return not size or scale.ndim != x.ndim or -(-x.shape[axis] // size) == scale.shape[axis]


def _has_parts(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """ONNX Runtime takes no sizes for equal ones."""
    return len(operands) < 2 or operands[1] is None or operands[1].size > 0


def _is_square(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """ONNX Runtime lets queries see keys up to their own number, and the last one all, where there are more keys."""
    q, k = operands[:2]
    return not attrs.get("unidirectional") or k is None or k.ndim != 3 or q.shape[1] == k.shape[1]


def _is_of_a_batch(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """ONNX Runtime begins a shorter batch of what is added again."""
    x, added = operands[:2]
    return added.ndim != 3 or added.shape[0] in (1, x.shape[0])


def _has_a_region(attrs: Mapping[str, Any], operands: Operands) -> bool:
    """ONNX Runtime takes the whole image where a region is left out."""
    is_region = attrs.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    return not is_region or operands[1] is not None


Operands = Sequence[Any]
"""Arrays, and None for those that are left out."""

FITS: Mapping[str, Callable[[Mapping[str, Any], Operands], bool]] = {
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _is_recurrent), "AffineGrid": _has_rows, "Split": _has_parts,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _is_of_a_batch),
    "QuantizeLinear": _has_blocks, "DequantizeLinear": _has_blocks, "MultiHeadAttention": _is_square,
    "Resize": _has_a_region,
}  # fmt: skip
"""Whether operands fit each other where an engine does not look."""

UNCHECKED: Mapping[str, Callable[[Mapping[str, Any], np.ndarray, np.ndarray], bool]] = {
    "Compress": _is_inside, "MaxUnpool": _finds_places, "GatherBlockQuantized": _finds_slices,
}  # fmt: skip
"""Operators whose indexes ONNX Runtime does not check, and whether those of the second operand are in range."""
