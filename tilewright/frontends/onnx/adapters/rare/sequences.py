"""Sequences: those that are known when compiling are gone when the model runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.frontends.unroll import stacked
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.types import ANY_DIM, HostType, TensorType, Type, tensor
from tilewright.ops.composites.sequences import (
    element_of,
    elements_of,
    general,
    joined,
    sequence,
    single,
)
from tilewright.ops.composites.text import moved
from tilewright.ops.define import constant
from tilewright.ops.define.staged import host
from tilewright.ops.view import concat, reshape, shape_of, split

MAX_PIECES = 256
"""A tensor is split into more than this by the host."""


@adapter("SequenceEmpty")
def sequence_empty(node: Node) -> Value:
    return sequence([], HostType("nothing", node.dtype_attr("dtype", dt.f32)))


@adapter("SequenceConstruct", takes="all")
def sequence_construct(node: Node) -> Value:
    return sequence(node.operands)


@adapter("SequenceLength", takes="host")
def sequence_length(node: Node) -> Value:
    elements = elements_of(node.input(0))
    if elements is not None:
        return constant(np.array(len(elements), np.int64), "length")
    return host("sequence_length", [node.input(0)], [tensor(dt.i64, ())])[0]


def _position(node: Node, k: int, beyond: int = 0) -> int | None:
    """Operand `k`, a position in the known sequence that is operand 0 (or `beyond` its last): from 0 on; None where
    one of both is not known."""
    elements, given = elements_of(node.input(0)), node.constant_or_none(k)
    if elements is None or given is None:
        return None
    size, position = len(elements), int(given.reshape(()))
    if not -size <= position < size + beyond:
        raise ModelError(f"{node.op}: position {position} of a sequence of {size} elements")
    return position % (size + beyond) if position >= 0 else position + size


@adapter("SequenceAt", takes="host")
def sequence_at(node: Node) -> Value:
    position, elements = _position(node, 1), elements_of(node.input(0))
    if position is not None and elements is not None:
        return elements[position]
    return host("sequence_at", node.operands, [single(node.translation.new_size, element_of(node.input(0)))])[0]


@adapter("SequenceInsert", takes="host")
def sequence_insert(node: Node) -> Value:
    target, value = node.input(0), node.input(1)
    elements = elements_of(target)
    position = _position(node, 2, beyond=1) if node.optional(2) is not None else len(elements or ())
    if elements is not None and position is not None:
        return sequence([*elements[:position], value, *elements[position:]])
    element = joined(element_of(target), general(value.type))
    operands = [v for v in node.inputs if v is not None]
    return host("sequence_insert", operands, [HostType("sequence", None, element)])[0]


@adapter("SequenceErase", takes="host")
def sequence_erase(node: Node) -> Value:
    target = node.input(0)
    elements = elements_of(target)
    position = _position(node, 1) if node.optional(1) is not None else len(elements or ()) - 1
    if elements and position is not None:
        return sequence([*elements[:position], *elements[position + 1 :]], element_of(target))
    return host("sequence_erase", [v for v in node.inputs if v is not None], [target.type])[0]


@adapter("ConcatFromSequence", takes="host")
def concat_from_sequence(node: Node) -> Value:
    target, is_new = node.input(0), node.flag("new_axis")
    elements, element = elements_of(target), element_of(target)
    if not isinstance(element, TensorType):
        parameters = {"axis": node.attr("axis"), "new_axis": is_new}
        return host("concatenate_sequence", [target], [element], parameters)[0]
    axis = node.axis(node.attr("axis"), element.rank + is_new)
    if elements:

        def write(values: Sequence[Value | None]) -> list[Value | None]:
            given = [v for v in values if v is not None]
            if is_new:
                return [stacked(given, axis)]
            return [concat(*given, axis=axis) if len(given) > 1 else given[0]]

        (result,) = moved(elements, write)
        assert result is not None
        return result
    others = element.shape[axis + (not is_new) :]
    type = TensorType(element.dtype, (*element.shape[:axis], ANY_DIM, *others))
    parameters = {"axis": axis, "new_axis": is_new}
    return host("concatenate_sequence", [target], [single(node.translation.new_size, type)], parameters)[0]


@adapter("SplitToSequence", takes="all")
def split_to_sequence(node: Node) -> Value:
    x, axis = node.input(0), node.axis_attr()
    keeps = node.flag("keepdims") or node.optional(1) is not None
    sizes = _sizes(node, axis)
    if sizes is None:
        element: Type = _piece(node.type(0), axis, keeps)
        parameters = {"axis": axis, "keeps_axis": keeps}
        operands = [v for v in node.inputs if v is not None]
        return host("split_to_sequence", operands, [HostType("sequence", None, element)], parameters)[0]

    def write(values: Sequence[Value | None]) -> list[Value | None]:
        (given,) = values
        assert given is not None
        found = split(given, sizes=tuple(sizes), axis=axis) if len(sizes) > 1 else [given]
        shapes = [shape_of(v) for v in found]
        return [
            v if keeps else reshape(v, shape=(*s[:axis], *s[axis + 1 :])) for v, s in zip(found, shapes, strict=True)
        ]

    return sequence([v for v in moved([x], write) if v is not None])


def _sizes(node: Node, axis: int) -> list[int] | None:
    """How long the pieces are; None where that is known only when the model runs."""
    size, given = node.shape(0)[axis], node.constant_or_none(1)
    if not size.is_const or (node.optional(1) is not None and given is None):
        return None
    if given is None or not given.ndim:
        length = 1 if given is None else int(given)
        if length < 1:
            raise ModelError(f"SplitToSequence: pieces of {length} elements")
        whole, left = divmod(size.value, length)
        sizes = [length] * whole + [left] * bool(left)
    else:
        sizes = [int(n) for n in given]
        if min(sizes, default=0) < 0 or sum(sizes) != size.value:
            raise ModelError(f"SplitToSequence: {node.type(0)} along axis {axis} into pieces of {sizes}")
    return sizes if 0 < len(sizes) <= MAX_PIECES else None


def _piece(type: TensorType, axis: int, keeps: bool) -> Type:
    """The type of a piece of which the length along `axis` is not known, or which has no such axis."""
    own = (ANY_DIM,) if keeps else ()
    return general(TensorType(type.dtype, (*type.shape[:axis], *own, *type.shape[axis + 1 :])))
