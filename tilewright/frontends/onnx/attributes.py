"""Attributes of a node as Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import AttributeProto

from tilewright.frontends.problems import shown
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


_VALUES: Mapping[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.STRING: lambda a: a.s.decode(),
    AttributeProto.INTS: lambda a: tuple(a.ints),
    AttributeProto.FLOATS: lambda a: tuple(a.floats),
    AttributeProto.STRINGS: lambda a: tuple(s.decode() for s in a.strings),
    AttributeProto.TENSOR: lambda a: a.t,
    AttributeProto.GRAPH: lambda a: a.g,
    AttributeProto.SPARSE_TENSOR: lambda a: a.sparse_tensor,
    AttributeProto.TYPE_PROTO: lambda a: a.tp,
}


def checked_flag(op: str, name: str, value: Any) -> bool:
    """The value of an attribute that is 0 or 1; ModelError for others."""
    if value not in (0, 1):
        raise ModelError(f"{op}: the attribute '{name}' is 0 or 1, not {value}")
    return bool(value)


def value_of(attribute: AttributeProto) -> Any:
    """int, float, str, tuple of them, TensorProto, GraphProto or TypeProto."""
    if attribute.type not in _VALUES:
        raise ModelError(f"attribute '{shown(attribute.name)}' has an unknown type ({attribute.type})")
    try:
        return _VALUES[attribute.type](attribute)
    except UnicodeDecodeError as e:
        raise ModelError(f"attribute '{shown(attribute.name)}' is not UTF-8 text") from e
