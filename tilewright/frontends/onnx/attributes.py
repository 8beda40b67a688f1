"""Attributes of a node as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import AttributeProto

from tilewright.frontends.errors import shown
from tilewright.ir.diag import ModelError

Bindings = Mapping[str, AttributeProto]
"""Attributes of a call, which the body of a function may refer to."""


def resolve(node: onnx.NodeProto, bound: Bindings) -> dict[str, AttributeProto]:
    """The node's attributes by name; references to the enclosing function's attributes are followed, and left
    out where the call does not give them."""
    found: dict[str, AttributeProto] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise ModelError(f"attribute '{shown(attribute.name)}' is given twice")
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in bound:
            found[attribute.name] = bound[attribute.ref_attr_name]
    return found


def value_of(attribute: AttributeProto) -> Any:
    """int, float, str, tuple of them, TensorProto or GraphProto."""
    kind = attribute.type
    try:
        if kind == AttributeProto.INT:
            return int(attribute.i)
        if kind == AttributeProto.FLOAT:
            return float(attribute.f)
        if kind == AttributeProto.STRING:
            return attribute.s.decode("utf-8")
        if kind == AttributeProto.INTS:
            return tuple(int(i) for i in attribute.ints)
        if kind == AttributeProto.FLOATS:
            return tuple(float(f) for f in attribute.floats)
        if kind == AttributeProto.STRINGS:
            return tuple(s.decode("utf-8") for s in attribute.strings)
    except UnicodeDecodeError as e:
        raise ModelError(f"attribute '{shown(attribute.name)}' is not UTF-8 text") from e
    if kind == AttributeProto.TENSOR:
        return attribute.t
    if kind == AttributeProto.GRAPH:
        return attribute.g
    if kind == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor
    raise ModelError(f"attribute '{shown(attribute.name)}' has an unknown type ({kind})")
