"""The body of a primitive in operators of the graph: what it says of one element, said of all of them at once.

Each scalar of the body becomes a tensor over the axes of the result and of the reduction, in which an axis that it does
not depend on has one element. Loads are gathers, unless they read an operand as it lies; what the body checks is left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.exporters.onnx.forms.registry import NoFormError
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product, row_major
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import OPERATORS, Operator
from tilewright.ops.index import gather
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import expand, reshape, shape_of, transpose

_REDUCTIONS = {
    "add": rd.reduce_sum,
    "mul": rd.reduce_prod,
    "min": rd.reduce_min,
    "max": rd.reduce_max,
    "and": rd.reduce_and,
    "or": rd.reduce_or,
}


def in_operators(operator: Operator, operands: Sequence[Value], attrs: dict[str, Any]) -> Value:
    """The result of a primitive for the operands, as other operators give it."""
    computation = operator.compute([v.tensor for v in operands], attrs)
    if computation.tiles:
        raise NoFormError(f"{operator.name} computes tiles of an algorithm of tilewright")
    domain = (*computation.axes, *computation.reduce)
    body = _BodyInOperators(operator, domain, dict(zip(computation.body.args, operands, strict=True)))
    element = body.run(computation.body.ops)
    outer = len(computation.axes)
    if computation.combine:
        element = expand(element, shape=[extent for _, extent in domain])
        axes = tuple(range(outer, len(domain)))
        if axes:
            element = _REDUCTIONS[computation.combine](element, axes=axes, keepdims=False)
    element = _expanded(element, computation.shape)
    return element if element.tensor.dtype == computation.dtype else ew.cast(element, dtype=computation.dtype)


def _expanded(x: Value, shape: Sequence[Sym]) -> Value:
    return x if shape_of(x) == tuple(shape) else expand(x, shape=tuple(shape))


class _BodyInOperators:
    """The scalars of a body as tensors over its axes."""

    def __init__(self, operator: Operator, domain: Sequence[tuple[Sym, Sym]], operands: dict[Value, Value]) -> None:
        self._operator = operator
        self._places = {v: k for k, (v, _) in enumerate(domain)}
        self._extents = [extent for _, extent in domain]
        self._operands = operands
        self._values: dict[Value, Value] = {}
        self._bound: dict[Sym, Value] = {}

    def run(self, ops: Sequence[Op]) -> Value:
        """What the body yields."""
        for op in ops[:-1]:
            self._run(op)
        return self._values[ops[-1].operands[0]]

    def _run(self, op: Op) -> None:
        match op.name:
            case "load":
                self._values[op.result] = self._load(op)
            case "const":
                self._values[op.result] = self._number(op.attrs["value"], op.result.scalar.dtype)
            case "index":
                self._values[op.result] = _cast(self._index(op.attrs["expr"]), op.result.scalar.dtype)
            case "bind":
                self._bound[op.attrs["var"]] = _cast(self._values[op.operands[0]], dt.i64)
            case "check":
                return
            case "cast" | "bitcast":
                source = self._values[op.operands[0]]
                self._values[op.result] = OPERATORS[op.name](source, dtype=op.result.scalar.dtype)
            case _:
                if op.name == self._operator.name and len(op.operands) == len(self._operands):
                    raise NoFormError(f"ONNX has no operator for {op.name} of {op.operands[0].scalar.dtype}")
                if op.name not in SCALAR_OPS or op.name not in OPERATORS:
                    raise NoFormError(f"{self._operator.name} takes '{op.name}', which ONNX does not have")
                self._values[op.result] = OPERATORS[op.name](*[self._values[v] for v in op.operands])

    def _number(self, value: Any, dtype: DType) -> Value:
        return full(value=value, dtype=dtype, shape=(1,) * len(self._extents))

    def _index(self, e: Sym) -> Value:
        """An integer expression as an i64 tensor over the axes."""
        local = [v for v in e.vars if v in self._places or v in self._bound]
        if not local:
            return reshape(dim_value(e), shape=(1,) * len(self._extents))
        args = e.args
        match e.kind:
            case "var":
                return self._variable(e)
            case "add" | "mul":
                return self._polynomial(e)
            case "floordiv":
                a, b = self._index(args[0]), self._index(args[1])
                return ew.div(ew.sub(a, ew.mod(a, b)), b)
            case "mod":
                return ew.mod(self._index(args[0]), self._index(args[1]))
            case "min" | "max":
                return OPERATORS[e.kind](*[self._index(a) for a in args])
            case "ge0" | "eq0":
                return ew.cast(self._holds(e), dtype=dt.i64)
            case "select":
                return ew.select(self._holds(args[0]), self._index(args[1]), self._index(args[2]))
        raise NoFormError(f"the position {e} is not computed by ONNX")

    def _holds(self, e: Sym) -> Value:
        """A condition as a bool tensor."""
        if e.kind in ("ge0", "eq0"):
            left = self._index(e.args[0])
            return (ew.ge if e.kind == "ge0" else ew.eq)(left, full(value=0, dtype=dt.i64, shape=()))
        return ew.ne(self._index(e), full(value=0, dtype=dt.i64, shape=()))

    def _variable(self, v: Sym) -> Value:
        if v in self._bound:
            return self._bound[v]
        place = self._places[v]
        shape = [d if k == place else sym(1) for k, d in enumerate(self._extents)]
        return iota(shape=shape, axis=place)

    def _polynomial(self, e: Sym) -> Value:
        total: Value | None = None
        rest = sym(0)
        for monomial, coefficient in e.terms:
            if not any(v in self._places or v in self._bound for v in monomial.vars):
                rest = rest + monomial * coefficient
                continue
            term: Value | None = None
            for factor in monomial.args if monomial.kind == "mul" else (monomial,):
                found = self._index(factor)
                term = found if term is None else ew.mul(term, found)
            assert term is not None
            if coefficient != 1:
                term = ew.mul(term, full(value=coefficient, dtype=dt.i64, shape=()))
            total = term if total is None else ew.add(total, term)
        assert total is not None
        return total if rest == 0 else ew.add(total, self._index(rest))

    def _load(self, op: Op) -> Value:
        source, idx, guard = self._operands[op.operands[0]], op.attrs["idx"], op.attrs.get("guard", ())
        as_it_lies = self._as_it_lies(source, idx) if not guard else None
        if as_it_lies is not None:
            return as_it_lies
        ones = (1,) * len(self._extents)
        if any(d == 0 for d in shape_of(source)):
            return self._number(op.attrs.get("other", 0), source.tensor.dtype)
        position: Value | None = None
        for i, stride in zip(idx, row_major(shape_of(source)), strict=True):
            if i == 0:
                continue
            step = self._index(i)
            if stride != 1:
                step = ew.mul(step, reshape(dim_value(stride), shape=ones))
            position = step if position is None else ew.add(position, step)
        if position is None:
            position = full(value=0, dtype=dt.i64, shape=ones)
        holds: Value | None = None
        for condition in guard:
            one = self._holds(condition)
            holds = one if holds is None else ew.and_(holds, one)
        if holds is not None:
            position = ew.select(holds, position, full(value=0, dtype=dt.i64, shape=()))
        flat = reshape(source, shape=(product(shape_of(source)),))
        loaded = gather(flat, position, axis=0)
        if holds is None:
            return loaded
        return ew.select(holds, loaded, full(value=op.attrs["other"], dtype=source.tensor.dtype, shape=()))

    def _as_it_lies(self, source: Value, idx: Sequence[Sym]) -> Value | None:
        """The operand with its axes where the body has them; None where it reads other positions than all of them."""
        places: list[int] = []
        for i, d in zip(idx, shape_of(source), strict=True):
            if i in self._places and self._extents[self._places[i]] == d and self._places[i] not in places:
                places.append(self._places[i])
            elif not (i == 0 and d == 1):
                return None
        shape = [sym(1)] * len(self._extents)
        for place in places:
            shape[place] = self._extents[place]
        kept = [k for k, i in enumerate(idx) if i in self._places]
        flat = source if len(kept) == len(idx) else reshape(source, shape=[shape_of(source)[k] for k in kept])
        order = sorted(range(len(places)), key=places.__getitem__)
        moved = flat if order == list(range(len(places))) else transpose(flat, perm=order)
        return moved if shape_of(moved) == tuple(shape) else reshape(moved, shape=shape)


def _cast(x: Value, dtype: DType) -> Value:
    return x if x.tensor.dtype == dtype else ew.cast(x, dtype=dtype)


