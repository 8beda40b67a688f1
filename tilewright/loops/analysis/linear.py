"""Expressions in a loop, taken apart by what is linear in them: what varies, and the factors that stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import ScalarOp, converted_from, scalar_operation
from tilewright.ir.sym import ZERO, Sym


def stores_to(loop: Op, buffer: Value) -> list[Op]:
    """The stores to a buffer in a loop."""
    return [op for op in loop.walk() if op.name == "store" and op.operands[1] is buffer]


@dataclass(frozen=True, eq=False)
class Summand:
    """A summand of a linear expression: what `varies` in the loop (None: 1), times factors that stay, or the negative
    of that."""

    varies: Value | None
    factors: tuple[Value, ...]
    negative: bool


@dataclass(frozen=True, eq=False)
class Linear:
    """Takes expressions apart that are computed in `loop`, in loops of the variables `inside`, for elements at
    `places`."""

    loop: Op
    inside: frozenset[Sym]
    places: tuple[Sym, ...]

    def parts(self, value: Value) -> list[Summand]:
        if self._stays(value):
            return [Summand(None, (value,), False)]
        op = value.op
        assert op is not None, "what does not stay is computed"
        operation = scalar_operation(op)
        if operation.linear == "together" and operation.result == "same":
            found = [
                Summand(p.varies, p.factors, p.negative ^ (_sign(operation, k) < 0))
                for k, v in enumerate(op.operands)
                for p in self.parts(v)
            ]
            return found if sum(p.varies is not None for p in found) == 1 else [Summand(value, (), False)]
        if operation.linear == "each":
            a, b = op.operands
            for varies, factor in ((a, b), (b, a)):
                if self._stays(factor):
                    return [Summand(p.varies, (*p.factors, factor), p.negative) for p in self.parts(varies)]
        return [Summand(value, (), False)]

    def _stays(self, value: Value) -> bool:
        """Whether it is the same in all iterations of the loop, for each element."""
        return all(self._is_same(op) for op in tree_of(value))

    def _is_same(self, op: Op) -> bool:
        if op.name == "const":
            return True
        if op.name != "load":
            is_function = scalar_operation(op).is_pure and scalar_operation(op).arity > 0
            return is_function or converted_from(op.result) is not None
        read = (*op.attrs["idx"], *op.attrs.get("guard", ()))
        moved = self.moved(read, (ZERO,) * len(self.places))
        chosen = {bind.attrs["var"] for bind in self.loop.walk() if bind.name == "bind"}  # not known outside
        changes = self.inside | chosen
        return not stores_to(self.loop, op.operands[0]) and not any(i.vars & changes for i in moved)

    def moved(self, read: Sequence[Sym], places: Sequence[Sym]) -> tuple[Sym, ...]:
        """Expressions of the places of elements at other ones: a variable that moves a place by one makes all the
        difference."""
        found = tuple(read)
        for before, after in zip(self.places, places, strict=True):
            v = next((v for v in sorted(before.vars & self.inside, key=str) if v not in (before - v).vars), None)
            if v is not None:
                found = tuple(i.subs({v: after - (before - v)}) for i in found)
        return found


def _sign(operation: ScalarOp, k: int) -> int:
    """Whether a sum adds its operand of this number (1) or takes it off (-1)."""
    return int(operation.evaluate(*(int(n == k) for n in range(operation.arity))))


def tree_of(value: Value) -> Iterator[Op]:
    """The ops that compute a scalar, from loads on."""
    op = value.op
    assert op is not None
    yield op
    if op.name != "load":
        for v in op.operands:
            yield from tree_of(v)
