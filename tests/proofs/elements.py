"""An element of the result of a program as a term of z3, read off the operators' own definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import z3

from tests.proofs.arithmetics import Moves
from tests.proofs.sizes import Sizes
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ops.define import OPERATORS

UNROLLED = 32
"""Terms of a sum of a known number of terms that are written out."""


class NotStated(Exception):
    """A program holds what has no term."""


@dataclass(frozen=True, eq=False)
class Reduction:
    """An unknown in the place of a reduction, and what is reduced, under the conditions `path`."""

    combine: str
    places: tuple[Any, ...]
    extents: tuple[Any, ...]
    element: Any
    path: tuple[Any, ...]
    unknown: Any

    @cached_property
    def ranges(self) -> list[Any]:
        rows = zip(self.places, self.extents, strict=True)
        return [z3.And(place >= 0, place < extent) for place, extent in rows]


@dataclass
class Elements:
    """Terms of the elements of one program's values."""

    arithmetic: Moves
    sizes: Sizes
    side: str
    module: Module
    reductions: list[Reduction] = field(default_factory=list)
    loaded: list[Any] = field(default_factory=list)
    """The terms of elements of operands."""
    _expanded: dict[Op, Sequence[Value]] = field(default_factory=dict)

    def element(self, value: Value, at: Sequence[Any], path: tuple[Any, ...] = (), depth: int = 0) -> Any:
        """The element of a tensor at this place, where the conditions of `path` hold, inside of `depth` reductions."""
        op = value.op
        if op is None or op.name == "constant":
            return self._operand(value, at)
        if op.name not in OPERATORS:
            raise NotStated(f"{op.name} is no operator")
        operator = OPERATORS[op.name]
        if operator.kind == "composite":
            if op not in self._expanded:
                with Builder(Block(), Module(), op.loc):
                    self._expanded[op] = operator.expand(op.operands, op.attrs)
            return self.element(self._expanded[op][op.results.index(value)], at, path, depth)
        if operator.kind != "primitive":
            raise NotStated(f"{op.name} has loops of its own")
        compute = operator.compute([v.tensor for v in op.operands], op.attrs)
        if compute.tiles:
            raise NotStated(f"{op.name} computes tiles")
        bound = {v: place for (v, _), place in zip(compute.axes, at, strict=True)}
        scalars = _Scalars(self, op, compute.body)
        result = compute.body.ops[-1].operands[0]
        if not compute.combine:
            return scalars.term(result, bound, path, depth)
        places = tuple(z3.Int(f"r{depth}_{k}") for k in range(len(compute.reduce)))
        extents = tuple(self.sizes.term(extent, bound) for _, extent in compute.reduce)
        lengths = [extent.value if extent.is_const else None for _, extent in compute.reduce]
        is_short = all(n is not None for n in lengths) and _count(lengths) <= UNROLLED
        if self.arithmetic.unrolls and is_short:
            terms = [
                scalars.term(result, bound | _places(compute.reduce, map(z3.IntVal, where)), path, depth)
                for where in product(*(range(n) for n in lengths if n is not None))
            ]
            neutral = self.arithmetic.literal(compute.neutral, compute.acc)
            total, *others = terms or [neutral]
            for term in others:
                total = self.arithmetic.apply(compute.combine, [total, term], compute.acc, compute.acc)
            return self.arithmetic.cast(total, compute.acc, compute.dtype)
        inner = bound | _places(compute.reduce, places)
        element = scalars.term(result, inner, path, depth + 1)
        unknown = z3.Const(f"{compute.combine} {self.side}{len(self.reductions)}", element.sort())
        self.reductions.append(Reduction(compute.combine, places, extents, element, path, unknown))
        return self.arithmetic.cast(unknown, compute.acc, compute.dtype)

    def _operand(self, value: Value, at: Sequence[Any]) -> Any:
        name = value.op.attrs["name"] if value.op is not None else value.name
        array = self.module.constants.get(name) if value.op is not None else None
        if array is not None and array.size == 1:
            return self.arithmetic.literal(array.reshape(-1)[0].item(), value.tensor.dtype)
        sort = self.arithmetic.sort(value.tensor.dtype)
        function = z3.Function(name, *[z3.IntSort()] * len(at), sort)
        made = function(*at)
        self.loaded.append(made)
        return made


def _count(lengths: Sequence[int | None]) -> int:
    total = 1
    for n in lengths:
        total *= n or 0
    return total


def _places(axes: Sequence[tuple[Sym, Sym]], places: Any) -> dict[Sym, Any]:
    return {v: place for (v, _), place in zip(axes, places, strict=True)}


@dataclass(frozen=True)
class _Scalars:
    """Terms of what the body of an operator's definition computes."""

    elements: Elements
    op: Op
    body: Block

    def term(self, scalar: Value, bound: Mapping[Sym, Any], path: tuple[Any, ...], depth: int) -> Any:
        made = scalar.op
        assert made is not None
        arithmetic, sizes, dtype = self.elements.arithmetic, self.elements.sizes, scalar.scalar.dtype
        if made.name == "load":
            return self._load(made, bound, path, depth)
        if made.name == "const":
            return arithmetic.literal(made.attrs["value"], dtype)
        if made.name == "index":
            expr: Sym = made.attrs["expr"]
            if dtype.kind == "bool":
                return sizes.holds(expr, bound)
            return arithmetic.index(sizes.term(expr, bound), dtype)
        source = made.operands[0].scalar.dtype
        if made.name == "cast":
            return arithmetic.cast(self.term(made.operands[0], bound, path, depth), source, dtype)
        if made.name == "select":
            condition = self.term(made.operands[0], bound, path, depth)
            chosen = self.term(made.operands[1], bound, (*path, condition), depth)
            other = self.term(made.operands[2], bound, (*path, z3.Not(condition)), depth)
            return z3.If(condition, chosen, other)
        operands = [self.term(v, bound, path, depth) for v in made.operands]
        try:
            return arithmetic.apply(made.name, operands, source, dtype)
        except KeyError:
            raise NotStated(f"there is no term for {made.name}") from None

    def _load(self, load: Op, bound: Mapping[Sym, Any], path: tuple[Any, ...], depth: int) -> Any:
        sizes = self.elements.sizes
        value = self.op.operands[self.body.args.index(load.operands[0])]
        at = [sizes.term(i, bound) for i in load.attrs["idx"]]
        conditions = tuple(sizes.holds(c, bound) for c in load.attrs.get("guard", ()))
        found = self.elements.element(value, at, (*path, *conditions), depth)
        if not conditions:
            return found
        other = self.elements.arithmetic.literal(load.attrs.get("other", 0), value.tensor.dtype)
        return z3.If(z3.And(*conditions), found, other)
