"""Positive factors that pass through operators: f(s x) = s f(x), for a factor s of each place along an axis.

It follows from definitions: each value of a body, and of a composite, is unaffected by the factors, or has those of an
axis, or nothing is known of it. Zero and the infinities are both: a factor does not change them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define.operator import OPERATORS, Compute, Operator

Number = int | float | bool


@dataclass(frozen=True)
class _Factors:
    """What factors do to a value: `axis` is the one along which it has them. Without one they do nothing, as they do
    nothing to numbers that are the same with them (`either`); or nobody knows (`is_lost`)."""

    axis: int | None = None
    either: bool = False
    is_lost: bool = False

    @property
    def is_fixed(self) -> bool:
        return self.axis is None and not self.is_lost


_FIXED, _EITHER, _LOST = _Factors(), _Factors(either=True), _Factors(is_lost=True)
_SAME = frozenset({"add", "sub", "min", "max"})
_KEEPING = frozenset({"neg", "abs"})
_COMPARING = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_OF_SIGNS = frozenset({"sign", "is_nan", "is_inf"})


def axis_of_factors(op: Op, axis: int, number_of: Callable[[Value], Number | None]) -> int | None:
    """The axis of the first result along which it has the positive factors that stand along an axis of operand 0; None
    where it has them nowhere, or not for certain. `number_of` tells the number that all elements of a value are."""
    operator = OPERATORS.get(op.name)
    types = [v.type for v in op.operands]
    if operator is None or not types or not all(isinstance(t, TensorType) for t in types):
        return None
    given = [_Factors(axis) if v is op.operands[0] else _number(number_of(v)) for v in op.operands]
    return _of_operator(operator, types, op.attrs, given).axis  # type: ignore[arg-type]


def _number(n: Number | None) -> _Factors:
    return _FIXED if n is None or (n != 0 and not math.isinf(n)) else _EITHER


def _of_operator(
    operator: Operator, types: Sequence[TensorType], attrs: dict[str, Any], given: Sequence[_Factors]
) -> _Factors:
    if operator.name == "full":
        return _number(attrs["value"])
    if all(g.is_fixed and not g.either for g in given):
        return _FIXED
    if operator.kind == "primitive":
        return _Body(operator.compute(types, attrs), given).result()
    if operator.kind == "irregular":
        return _FIXED if all(g.is_fixed for g in given) else _LOST
    block = Block(operator.application(types, attrs).types)
    with Builder(block, Module()):
        results = operator.expand(block.args, operator.application(types, attrs).attrs)
    known = dict(zip(block.args, given, strict=True))
    for op in block.ops:
        parts = [known[v] for v in op.operands]
        part = OPERATORS.get(op.name)
        if part is None:  # a constant
            found = _FIXED if not parts else _LOST
        else:
            found = _of_operator(part, [v.tensor for v in op.operands], op.attrs, parts)
        known.update(dict.fromkeys(op.results[1:], _FIXED if all(p.is_fixed for p in parts) else _LOST))
        known[op.results[0]] = found
    return known[results[0]]


class _Body:
    """The body of a primitive, read from its loads to what it yields."""

    def __init__(self, compute: Compute, given: Sequence[_Factors]) -> None:
        self._compute = compute
        self._given = dict(zip(compute.body.args, given, strict=True))
        self._axes = {(v, extent): k for k, (v, extent) in enumerate(compute.axes)}
        self._moving: set[Sym] = set()  # variables that factors change
        self._known: dict[Value, _Factors] = {}
        for op in compute.body.ops:
            if op.name == "bind" and not self._known[op.operands[0]].is_fixed:
                self._moving.add(op.attrs["var"])
            elif op.results:
                self._known[op.result] = self._element(op)

    def result(self) -> _Factors:
        found = _same([self._known[v] for v in self._compute.body.ops[-1].operands])
        reduces = self._compute.combine in ("", "add", "min", "max")
        plain = reduces and not self._compute.tiles and self._compute.replacement is None
        return found if plain or found.is_fixed else _LOST

    def _element(self, op: Op) -> _Factors:
        if op.name == "load":
            return self._load(op)
        if op.name == "index":
            return _LOST if self._moving & op.attrs["expr"].vars else _FIXED
        if op.name == "const":
            return _number(op.attrs["value"])
        return _of_scalar(op, [self._known[v] for v in op.operands])

    def _load(self, op: Op) -> _Factors:
        own, guard = self._given[op.operands[0]], op.attrs.get("guard", ())
        places = frozenset[Sym]().union(*(e.vars for e in (*op.attrs["idx"], *guard)))
        if own.is_lost or self._moving & places:
            return _LOST
        if own.axis is not None:
            size = op.operands[0].tensor.shape[own.axis]
            axis = self._axes.get((op.attrs["idx"][own.axis], size))
            own = _LOST if axis is None else _Factors(axis)
        return _same([own, _number(op.attrs["other"])]) if guard else own


def _same(parts: Sequence[_Factors]) -> _Factors:
    """Of one of some values, or of their sum."""
    found = {p for p in parts if not p.either}
    if len(found) > 1:
        return _LOST
    return found.pop() if found else _EITHER


def _of_scalar(op: Op, parts: Sequence[_Factors]) -> _Factors:
    if any(p.is_lost for p in parts):
        return _LOST
    if op.name in _SAME or op.name in _KEEPING:
        return _same(parts)
    if op.name in _COMPARING:
        return _LOST if _same(parts).is_lost else _FIXED
    if op.name == "select":
        return _same(parts[1:]) if parts[0].is_fixed else _LOST
    if op.name in ("mul", "div") and parts[1].is_fixed and not parts[1].either:
        return parts[0]
    if op.name == "mul" and parts[0].is_fixed and not parts[0].either:
        return parts[1]
    if op.name == "cast" and op.result.scalar.dtype.is_float and op.operands[0].scalar.dtype.is_float:
        return parts[0]
    return _FIXED if op.name in _OF_SIGNS or all(p.is_fixed for p in parts) else _LOST
