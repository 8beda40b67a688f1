"""Optionals."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.frontends.onnx.types import element_type
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.types import HostType, tensor
from tilewright.ops.composites.sequences import element_of, elements_of, optional, single
from tilewright.ops.define import constant
from tilewright.ops.define.staged import host


@adapter("Optional", takes="all")
def optional_(node: Node) -> Value:
    if node.optional(0) is not None:
        return optional(node.input(0))
    return optional(None, element_type(node.attr("type"), f"attribute 'type' of {node.op}"))


def _is_optional(value: Value) -> bool:
    return isinstance(value.type, HostType) and value.type.kind == "optional"


@adapter("OptionalHasElement", takes="all")
def optional_has_element(node: Node) -> Value:
    value = node.optional(0)
    if value is not None and _is_optional(value) and elements_of(value) is None:
        return host("optional_has_element", [value], [tensor(dt.bool_, ())])[0]
    is_empty = value is None or (_is_optional(value) and not elements_of(value))
    return constant(np.array(not is_empty), "has_element")


@adapter("OptionalGetElement", takes="all")
def optional_get_element(node: Node) -> Value:
    value = node.input(0)
    if not _is_optional(value):
        return value
    elements = elements_of(value)
    if elements is None:
        return host("optional_get_element", [value], [single(node.translation.new_size, element_of(value))])[0]
    if not elements:
        raise ModelError("OptionalGetElement of an optional that is empty")
    return elements[0]
