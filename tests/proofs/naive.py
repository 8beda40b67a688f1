"""Integer arithmetic of z3 under the names of symbolic integers: each operation as it is defined, none simplified."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import z3

from tests.proofs.of_sizes import Expression, SizeStatement
from tests.proofs.prover import Verdict
from tests.proofs.sizes import Sizes, floor_div
from tilewright.ir.sym import Sym


@dataclass(frozen=True)
class Term:
    """A term with Python's operators."""

    z3: Any

    def __add__(self, other: Any) -> Term:
        return Term(self.z3 + plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Term:
        return Term(self.z3 - plain(other))

    def __rsub__(self, other: Any) -> Term:
        return Term(plain(other) - self.z3)

    def __mul__(self, other: Any) -> Term:
        return Term(self.z3 * plain(other))

    __rmul__ = __mul__

    def __neg__(self) -> Term:
        return Term(-self.z3)

    def __floordiv__(self, other: Any) -> Term:
        return Term(floor_div(self.z3, plain(other)))

    def __mod__(self, other: Any) -> Term:
        q = plain(other)
        return Term(self.z3 - q * floor_div(self.z3, q))


def plain(x: Any) -> Any:
    return x.z3 if isinstance(x, Term) else z3.IntVal(x)


class Room:
    """Functions of `tilewright.ir.sym` on terms."""

    @staticmethod
    def minimum(*operands: Any) -> Term:
        return Term(reduce(lambda a, b: z3.If(a <= b, a, b), map(plain, operands)))

    @staticmethod
    def maximum(*operands: Any) -> Term:
        return Term(reduce(lambda a, b: z3.If(a >= b, a, b), map(plain, operands)))

    @staticmethod
    def ge0(x: Any) -> Term:
        return Term(z3.If(plain(x) >= 0, z3.IntVal(1), z3.IntVal(0)))

    @staticmethod
    def eq0(x: Any) -> Term:
        return Term(z3.If(plain(x) == 0, z3.IntVal(1), z3.IntVal(0)))

    @staticmethod
    def logical_not(x: Any) -> Term:
        return Room.eq0(x)

    @staticmethod
    def select(condition: Any, a: Any, b: Any) -> Term:
        return Term(z3.If(plain(condition) != 0, plain(a), plain(b)))


def check_size(statement: SizeStatement, canonical: Sym | None = None) -> Verdict:
    """Whether the canonical form, or another in its place, has the value of the expression for all numbers."""
    form = statement.canonical() if canonical is None else canonical
    return compare_sizes(statement.expression, statement.variables, form, statement.ranges)


def compare_sizes(
    expression: Expression, variables: tuple[Sym, ...], form: Sym, ranges: Any, milliseconds: int = 5000
) -> Verdict:
    """Whether `form` has the value of an expression wherever the variables are in their bounds and ranges."""
    sizes = Sizes()
    terms = [Term(sizes.variable(v)) for v in variables]
    wanted, found = plain(expression(Room, *terms)), sizes.term(form, {})
    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    for v, (low, high) in ranges.items():
        at = sizes.variable(v)
        solver.add(at >= sizes.term(low, {}), at <= sizes.term(high, {}))
    solver.add(*sizes.facts)
    if solver.check() == z3.unsat:
        return Verdict("unknown", "no numbers meet the conditions")
    solver.add(wanted != found)
    result = solver.check()
    if result == z3.unsat:
        return Verdict("proved")
    return Verdict("unknown", "timeout") if result == z3.unknown else Verdict("refuted", str(solver.model()))
