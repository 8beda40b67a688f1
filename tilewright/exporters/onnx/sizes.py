"""Sizes as data: expressions of dims become nodes that compute them from the shapes of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from tilewright.exporters.onnx.forms.registry import NoFormError
from tilewright.exporters.onnx.scope import SizeSource
from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

SHAPE_OF_PARTS = 15
"""The operator set from which on `Shape` can give some of the dims."""


def size(w: OnnxWriter, e: Sym) -> str:
    """A vector of one i64 that holds the value of an expression."""
    if e.is_const:
        return w.ints([e.value])
    known = w.scope.sizes.get(e)
    if known is None:
        known = w.scope.sizes[e] = _computed(w, e)
    return known


def vector(w: OnnxWriter, dims: Sequence[Sym]) -> str:
    """The values of expressions as an i64 vector."""
    parts: list[str] = []
    for is_const, group in groupby(dims, lambda d: d.is_const):
        found = list(group)
        parts += [w.ints([d.value for d in found])] if is_const else [size(w, d) for d in found]
    if not parts:
        return w.ints([])
    return parts[0] if len(parts) == 1 else w.node("Concat", *parts, axis=0)


def _computed(w: OnnxWriter, e: Sym) -> str:
    args = e.args
    match e.kind:
        case "var":
            return _read(w, e)
        case "add" | "mul":
            return _polynomial(w, e)
        case "floordiv":
            return _divided(w, *args)
        case "mod":
            return w.node("Mod", size(w, args[0]), size(w, args[1]))
        case "min" | "max":
            return w.node(e.kind.capitalize(), *[size(w, a) for a in args])
        case "ge0":
            return _number(w, w.node("GreaterOrEqual", size(w, args[0]), w.ints([0])))
        case "eq0":
            return _number(w, w.node("Equal", size(w, args[0]), w.ints([0])))
        case "select":
            condition = w.node("Cast", size(w, args[0]), to=w.code(dt.bool_))
            return w.node("Where", condition, size(w, args[1]), size(w, args[2]))
    raise NoFormError(f"the size {e} is not computed by ONNX")


def _number(w: OnnxWriter, condition: str) -> str:
    return w.node("Cast", condition, to=w.code(dt.i64))


def _polynomial(w: OnnxWriter, e: Sym) -> str:
    total: str | None = None
    for monomial, coefficient in e.terms:
        term: str | None = None
        for factor in monomial.args if monomial.kind == "mul" else (monomial,):
            if not factor.is_const:
                found = size(w, factor)
                term = found if term is None else w.node("Mul", term, found)
        if term is None:
            term = w.ints([coefficient])
        elif coefficient != 1:
            term = w.node("Mul", term, w.ints([coefficient]))
        total = term if total is None else w.node("Add", total, term)
    assert total is not None
    return total


def _divided(w: OnnxWriter, a: Sym, b: Sym) -> str:
    """Division that rounds down, where ONNX rounds towards 0."""
    whole, divisor = size(w, a), size(w, b)
    least = a.bounds[0]
    if least is None or least < 0:
        whole = w.node("Sub", whole, w.node("Mod", whole, divisor))
    return w.node("Div", whole, divisor)


def _read(w: OnnxWriter, variable: Sym) -> str:
    source = w.scope.sources.get(variable)
    if source is None:
        raise NoFormError(
            f"nothing in the graph has the size '{variable}' as a dim", "fix the sizes of the inputs with shapes="
        )
    if source.is_element:
        flat = w.node("Reshape", w.node("Cast", source.tensor, to=w.code(dt.i64)), w.ints([-1]))
        return w.node("Gather", flat, w.ints([source.place]), axis=0)
    if w.opset >= SHAPE_OF_PARTS:
        return w.node("Shape", source.tensor, start=source.place, end=source.place + 1)
    return w.node("Gather", w.node("Shape", source.tensor), w.ints([source.place]), axis=0)


def declare_dims(w: OnnxWriter, name: str, shape: Sequence[Sym]) -> None:
    """Variables that are dims of a tensor, and that nothing else has told yet, are read from it."""
    for axis, d in enumerate(shape):
        if d.kind == "var" and d not in w.scope.sources:
            w.scope.sources[d] = SizeSource(name, axis)


def declare_elements(w: OnnxWriter, name: str, variables: np.ndarray) -> None:
    """Variables that are elements of a tensor are read from it."""
    for place, variable in enumerate(variables.flat):
        w.scope.sources.setdefault(variable, SizeSource(name, place, is_element=True))
