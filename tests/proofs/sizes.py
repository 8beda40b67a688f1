"""Expressions of symbolic integers as terms of z3, each operation as it is defined."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import z3

from tilewright.ir.sym import Sym


class Sizes:
    """Variables of sizes as unknown integers, with their bounds as facts."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.variables: dict[Sym, Any] = {}

    def variable(self, v: Sym) -> Any:
        if v not in self.variables:
            low, high = v.bounds
            self.variables[v] = made = z3.Int(v.name)
            self.facts += [made >= low] if low is not None else []
            self.facts += [made <= high] if high is not None else []
        return self.variables[v]

    def term(self, e: Sym, bound: Mapping[Sym, Any]) -> Any:
        """`e` with the terms of `bound` for its variables."""
        if e.is_const:
            return z3.IntVal(e.value)
        if e.kind == "var":
            return bound[e] if e in bound else self.variable(e)
        parts = [self.term(a, bound) for a in e.args]
        match e.kind:
            case "add":
                return z3.Sum(parts)
            case "mul":
                return z3.Product(parts)
            case "floordiv":
                return floor_div(*parts)
            case "mod":
                return parts[0] - parts[1] * floor_div(*parts)
            case "min":
                return reduce(lambda a, b: z3.If(a <= b, a, b), parts)
            case "max":
                return reduce(lambda a, b: z3.If(a >= b, a, b), parts)
            case "ge0":
                return z3.If(parts[0] >= 0, 1, 0)
            case "eq0":
                return z3.If(parts[0] == 0, 1, 0)
            case "select":
                return z3.If(parts[0] != 0, parts[1], parts[2])
        raise AssertionError(f"no term for {e.kind}")

    def holds(self, condition: Sym, bound: Mapping[Sym, Any]) -> Any:
        """A condition, which is 0 or 1, as a proposition."""
        if condition.is_const:
            return z3.BoolVal(condition.value != 0)
        parts = [self.term(a, bound) for a in condition.args]
        if condition.kind == "ge0":
            return parts[0] >= 0
        if condition.kind == "eq0":
            return parts[0] == 0
        return self.term(condition, bound) != 0


def floor_div(x: Any, q: Any) -> Any:
    """x / q rounded down; division of z3 rounds such that what remains is not negative."""
    if z3.is_int_value(q):
        return x / q if q.as_long() > 0 else (-x) / -q
    return z3.If(q > 0, x / q, (-x) / -q)
