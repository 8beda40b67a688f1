"""Branches, loops, and sizes that data decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.exporters.onnx.forms.registry import NoFormError, form
from tilewright.exporters.onnx.sizes import declare_elements
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.types import HostType, TensorType, Type

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


@form("measure")
def measure(w: OnnxWriter, op: Op) -> tuple[str, ...]:
    """From here on the variables are elements of the tensor."""
    variables = np.empty(len(op.attrs["variables"]), object)
    variables[:] = op.attrs["variables"]
    declare_elements(w, w.name(op.operands[0]), variables)
    return ()


@form("assume")
def assume(w: OnnxWriter, op: Op) -> tuple[str, ...]:
    """What is taken for granted is not checked by ONNX."""
    return ()


@form("branch")
def branch(w: OnnxWriter, op: Op) -> tuple[str, ...]:
    then, other = (w.block(b, f"{w.label}/{way}") for b, way in zip(op.blocks, ("then", "else"), strict=True))
    condition = w.name(op.operands[0])
    return w.several("If", len(op.results), condition, then_branch=then, else_branch=other)


@form("loop")
def loop(w: OnnxWriter, op: Op) -> tuple[str, ...]:
    states, given = op.operands[2:], op.blocks[0].ops[-1].operands[1:]
    for before, after in zip(states, given, strict=False):
        if getattr(before.type, "kind", "") != getattr(after.type, "kind", ""):
            raise NoFormError(f"a loop of ONNX does not carry {before.type} into a trip, and {after.type} out of it")
    body = w.block(op.blocks[0], f"{w.label}/body")
    count = op.attrs["states"]
    names = w.several("Loop", len(op.results), *map(w.name, op.operands), body=body)
    rows = zip(names[count:], op.results[count:], strict=True)
    return (*names[:count], *[_rows(w, *row) for row in rows])


def _rows(w: OnnxWriter, name: str, value: Value) -> str:
    """The rows of all trips. In ONNX Runtime those of no trip have sizes of 0 in place of dims that are no numbers,
    even where these are known before the loop."""
    shape = value.tensor.shape[1:]
    if all(d.is_const for d in shape) or any(v not in w.scope.sources for d in shape for v in d.vars):
        return name
    trips = w.node("Gather", w.node("Shape", name), w.ints([0]), axis=0)
    return w.node("Reshape", name, w.node("Concat", trips, w.dims(shape), axis=0), allowzero=1)


@form("host")
def host(w: OnnxWriter, op: Op) -> str | tuple[str, ...]:
    """Functions of the host that are operators of ONNX."""
    function = op.attrs["function"]
    if any(_is_text(v.type) for v in (*op.operands, *op.results)):
        raise NoFormError("strings are not converted")
    if function not in _FUNCTIONS:
        raise NoFormError(f"'{function}' of the host has no form in ONNX")
    return _FUNCTIONS[function](w, op)


def _is_text(type: Type) -> bool:
    if isinstance(type, HostType):
        return type.dtype is dt.string or (type.element is not None and _is_text(type.element))
    return isinstance(type, TensorType) and type.dtype is dt.string


Function = Callable[["OnnxWriter", Op], str | tuple[str, ...]]


def _named(name: str, *parameters: tuple[str, str]) -> Function:
    """The ONNX operator with the operands of the function, whose parameters are attributes: (ours, of ONNX)."""

    def write(w: OnnxWriter, op: Op) -> tuple[str, ...]:
        attrs = {theirs: _attribute(op.attrs[ours]) for ours, theirs in parameters}
        return w.several(name, len(op.results), *map(w.name, op.operands), **attrs)

    return write


def _attribute(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _sequence(w: OnnxWriter, op: Op) -> str:
    if op.operands:
        return w.node("SequenceConstruct", *map(w.name, op.operands))
    type = op.result.type
    assert isinstance(type, HostType)
    dtype = getattr(type.element, "dtype", None)
    if dtype is None:
        raise NoFormError(f"an empty {type} has no form in ONNX")
    return w.node("SequenceEmpty", dtype=w.code(dtype))


def _optional(w: OnnxWriter, op: Op) -> str:
    if op.operands:
        return w.node("Optional", w.name(op.operands[0]))
    type = op.result.type
    assert isinstance(type, HostType) and type.element is not None
    return w.node("Optional", type=w.type(type.element))


_FUNCTIONS: dict[str, Function] = {
    "sequence": _sequence,
    "sequence_length": _named("SequenceLength"),
    "sequence_at": _named("SequenceAt"),
    "sequence_insert": _named("SequenceInsert"),
    "sequence_erase": _named("SequenceErase"),
    "concatenate_sequence": _named("ConcatFromSequence", ("axis", "axis"), ("new_axis", "new_axis")),
    "split_to_sequence": _named("SplitToSequence", ("axis", "axis"), ("keeps_axis", "keepdims")),
    "optional": _optional,
    "optional_has_element": _named("OptionalHasElement"),
    "optional_get_element": _named("OptionalGetElement"),
    "unique": _named("Unique", ("axis", "axis"), ("in_order", "sorted")),
}
