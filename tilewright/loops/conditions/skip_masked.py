"""Leaving out the end of rows that a condition on positions masks, such as the keys behind a query."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.scalar import COMPUTING, converted_from, identity, scalar_operation
from tilewright.ir.sym import ZERO, Sym, affine_in, ge, ge0, maximum, minimum, upper
from tilewright.ir.symbolic.reach import fits_64_bits, limits
from tilewright.loops.analysis.bounds import holds
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import (
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    is_inside,
    is_loop,
    kind_of,
    loop_var,
    places_of,
    ranges_at,
    ranges_of,
    refuse,
)
from tilewright.loops.primitive import primitive

STEP = "skip_masked"

_WITHOUT_EFFECT = COMPUTING | {"load", "const", "index", "alloc", "for", "if", "prefetch", "lanes_reduce"}


@primitive
def skip_masked(func: Func, loop: Op, buffer: Value, multiple: int = 1) -> Sym:
    """Let an iteration of `loop` leave out the positions along the last axis of `buffer` behind the last that one of
    its rows selects, rounded up to a `multiple`; the number of those that are left. One is left at least, as what rows
    become that select nothing, such as NaN, comes of masked elements.

        for o in 0..n {
          for i in 0..4 { for j in 0..m { t[i, j] = select(4*o + i >= j, s[4*o + i, j], -inf) } }
          for i in 0..4 { for j in 0..m { a[i] = max(a[i], t[i, j]) } }
          for i in 0..4 { for j in 0..m { e[i, j] = exp(t[i, j] - a[i]) } }
          for i in 0..4 { for j in 0..m { y[4*o + i] += e[i, j] * v[j] } }
        }

    becomes the same with `for j in 0..min(m, 4*o + 4)`: what follows from the masked elements is neutral to whatever
    reads it. Other numbers that are added to infinite ones, or multiplied by zeros, count as finite. ScheduleError
    where anything else depends on the masked elements, or none are known to be.
    """
    masked = _Masked(loop, multiple)
    masked.begin(buffer)
    for inner in [op for op in loop.walk() if is_loop(op) and op is not loop]:
        masked.follow(inner)
    masked.finish()
    return masked.limit


@dataclass(eq=False)
class _Masked:
    """What is known of positions from `limit` on: the value of all elements of some buffers, and of which loops the
    iterations that read or write them are left out, each with the positions of one iteration."""

    loop: Op
    multiple: int
    limit: Sym = ZERO
    values: dict[Value, float] = field(default_factory=dict)
    followed: dict[Op, int] = field(default_factory=dict)

    def begin(self, buffer: Value) -> None:
        """Start with what the only store to a buffer selects."""
        store = self._only_store(buffer)
        position = store.attrs["idx"][-1] if store.attrs["idx"] else ZERO
        along = self._along(store, position)
        found = _where_masked(store.operands[0], position)
        if along is None or found is None:
            refuse(STEP, buffer, "no condition on positions selects its elements up to one of each row")
        value, end = found
        inner = [o for o in enclosing_loops(store) if is_inside(o, self.loop)]
        last = upper(end, ranges_of(inner))
        if last is None or last.vars & {loop_var(o) for o in inner}:
            refuse(STEP, buffer, f"the last of {end} is not known")
        self.limit = (maximum(last, 1) + (self.multiple - 1)) // self.multiple * self.multiple
        outer, size = along
        if not fits_64_bits(self.limit + max(size, self.multiple)):
            refuse(STEP, buffer, f"positions up to {last} may need more than 64 bits")
        if holds(ge(self.limit, size * extent_of(outer)), ranges_at(self.loop)):
            refuse(STEP, buffer, "no position is masked in all of its rows")
        for op in outer.walk():
            made = op.operands[1].op if op.name == "store" and op is not store else op
            if made is None or (made.name == "alloc" and not is_inside(made, outer)):
                refuse(STEP, outer, "it computes something else, too")
        self._check_ops(outer)
        self.followed[outer] = size
        self.values[buffer] = value

    def follow(self, loop: Op) -> None:
        """See what becomes of masked elements in a loop over their positions."""
        loads = [op for op in loop.walk() if op.name == "load" and op.operands[0] in self.values]
        along = [self._along(op, op.attrs["idx"][-1]) for op in loads]
        if not loads or any(a is None or a[0] is not loop for a in along):
            return
        sizes = {a[1] for a in along if a is not None}
        places = {op.attrs["idx"][-1] for op in loads}
        if len(sizes) > 1 or len(places) > 1 or self.multiple % max(sizes):
            refuse(STEP, loop, f"it reads {max(sizes)} positions at once")
        self._check_ops(loop)
        for store in [op for op in loop.walk() if op.name == "store"]:
            self._store(store, loop, *places)
        self.followed[loop] = max(sizes)

    def finish(self) -> None:
        """Leave them out, if all that reads them does."""
        for buffer in self.values:
            for op in places_of(buffer):
                around = enclosing_loops(op)
                if op.name != "prefetch" and not any(o in self.followed for o in around):
                    refuse(STEP, buffer, "it is read elsewhere, too")
            if any(user not in places_of(buffer) for user in buffer.users):
                refuse(STEP, buffer, "it is not only read and written")
        for loop, size in self.followed.items():
            loop.attrs["extent"] = minimum(extent_of(loop), (self.limit + (size - 1)) // size)

    def _only_store(self, buffer: Value) -> Op:
        stores = [op for op in places_of(buffer) if op.name == "store"]
        if buffer.op is None or not is_inside(buffer.op, self.loop):
            refuse(STEP, buffer, f"it is not of one iteration of {describe(self.loop)}")
        if len(stores) != 1:
            refuse(STEP, buffer, "it is not written in one place")
        return stores[0]

    def _along(self, op: Op, position: Sym) -> tuple[Op, int] | None:
        """The outermost serial loop within that moves a position, and by how many: positions of its iteration v are
        v times as many, or more."""
        loops = [o for o in enclosing_loops(op) if is_inside(o, self.loop) and loop_var(o) in position.vars]
        if not loops or kind_of(loops[0]) != "serial":
            return None
        found = affine_in(position, loop_var(loops[0]))
        if found is None or not found[0].is_const or found[0].value < 1 or found[1].vars - set(map(loop_var, loops)):
            return None
        return (loops[0], found[0].value) if holds(ge0(found[1]), ranges_of(loops)) else None

    def _check_ops(self, loop: Op) -> None:
        for op in loop.walk():
            if op.name not in _WITHOUT_EFFECT and op.name != "store":
                refuse(STEP, loop, f"it has a {op.name}")

    def _store(self, store: Op, loop: Op, position: Sym) -> None:
        """A store in a loop whose iterations are left out: it must not matter, or be of elements that are masked."""
        buffer, idx = store.operands[1], store.attrs["idx"]
        added = accumulation_of(store)
        if added is not None:
            neutral = identity(added.combine.name, buffer_type(buffer).dtype)
            if self._value(added.value) != neutral or any(loop_var(loop) in i.vars for i in idx):
                refuse(STEP, buffer, "masked elements are not neutral to what is accumulated")
            return
        value = self._value(store.operands[0])
        if value is None or math.isnan(value) or not idx or idx[-1] is not position or buffer in self.values:
            refuse(STEP, buffer, "what it becomes of masked elements is not known")
        self._only_store(buffer)
        self.values[buffer] = value

    def _value(self, value: Value) -> float | None:
        """What a scalar is where the elements that it is computed of are masked; None where that is not known."""
        op = value.op
        if op is None:
            return None
        if op.name == "load":
            return self.values.get(op.operands[0])
        if op.name == "const":
            return float(op.attrs["value"])
        if (source := converted_from(value)) is not None:
            return self._value(source) if source.scalar.dtype.is_float and value.scalar.dtype.is_float else None
        known = [self._value(v) for v in op.operands]
        said = scalar_operation(op)
        if said.conditions:
            return known[1] if known[1] == known[2] else None
        numbers = [k for k in known if k is not None]
        if len(numbers) < len(known) or not known:
            return _of_some(op, known)
        with np.errstate(all="ignore"):
            return float(said.evaluate(*map(np.float64, numbers))) if said.is_pure and said.arity else None


def _of_some(op: Op, known: list[float | None]) -> float | None:
    """What an operation gives where some of its operands are known, and the others are finite."""
    said = scalar_operation(op)
    for k, value in enumerate(known):
        if value is None:
            continue
        if said.absorbing is not None and value == said.absorbing:
            return value
        if said.linear == "together" and said.arity == 2 and math.isinf(value):
            return float(said.evaluate(value, 0.0) if k == 0 else said.evaluate(0.0, value))
    return None


def _where_masked(value: Value, position: Sym) -> tuple[float, Sym] | None:
    """What a value is from a position on, and from which."""
    op = value.op
    if op is None or scalar_operation(op).conditions != 1:
        return None
    condition, chosen, other = op.operands
    constant = float(other.op.attrs["value"]) if other.op is not None and other.op.name == "const" else None
    inner = _where_masked(chosen, position)
    end = _end_of(condition, position)
    if constant is None or math.isnan(constant):
        return None
    if end is None:
        return inner if inner is not None and inner[0] == constant else None
    return constant, end if inner is None or inner[0] != constant else minimum(end, inner[1])


def _end_of(condition: Value, position: Sym) -> Sym | None:
    """The position from which on a condition does not hold."""
    op = condition.op
    if op is None or len(op.operands) != 2:
        return None
    said = scalar_operation(op)
    if said.absorbing == 0 and said.result == "same":  # of two conditions
        ends = [e for v in op.operands if (e := _end_of(v, position)) is not None]
        return minimum(*ends) if ends else None
    a, b = map(_whole, op.operands)
    if a is None or b is None or not said.signs:
        return None
    for sign, distance in ((1, a - b), (-1, b - a)):
        rest = distance + position
        if -sign not in said.signs and sign in said.signs and not rest.vars & position.vars:
            return rest + (1 if 0 in said.signs else 0)
    return None


def _whole(value: Value) -> Sym | None:
    """An integer as an expression of dims and loops; None where it may be too large for its dtype, and wrap."""
    dtype = value.scalar.dtype
    found = _exactly(value) if dtype.is_int else None
    if found is None:
        return None
    least, greatest = limits(found)
    range_of = np.iinfo(dtype.storage)
    return found if range_of.min <= least and greatest <= range_of.max else None


def _exactly(value: Value) -> Sym | None:
    op = value.op
    if op is None:
        return None
    if op.name == "index":
        found: Sym = op.attrs["expr"]
        return found
    if op.name == "const":
        return ZERO + int(op.attrs["value"])
    if (source := converted_from(value)) is not None:
        return _whole(source)
    said = scalar_operation(op)
    operands = [_whole(v) for v in op.operands]
    if said.linear != "together" or said.arity != 2 or operands[0] is None or operands[1] is None:
        return None
    return operands[0] + operands[1] * int(said.evaluate(0, 1))
