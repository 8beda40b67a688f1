"""Calls, branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxlib.mlir import ir

from tilewright.frontends import control_flow
from tilewright.frontends.problems import Problems
from tilewright.frontends.stablehlo.adapters.elementwise import direction_of
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.types import constant_of, tensor_type
from tilewright.frontends.stablehlo.values import ComplexPair, Held, LoopRows, ReadRowsError, as_value, flat
from tilewright.frontends.translation import type_of
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import ZERO, Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.binding import is_input_value
from tilewright.ops.source import dim_value, number_like
from tilewright.ops.view import reshape, reverse, shape_of


@adapter("func.call", "call")
def _call(node: ProgramOp) -> Sequence[Held]:
    return node.importer.called(node.text("callee"), node.operands, node.frame)


# Branches


def _regrouped(values: Sequence[Value], like: Sequence[bool]) -> list[Held]:
    """Tensors and pairs of them, of which `like` tells which is complex."""
    found: list[Held] = []
    rest = list(values)
    for is_complex in like:
        found.append(ComplexPair(rest.pop(0), rest.pop(0)) if is_complex else rest.pop(0))
    return found


def _way(node: ProgramOp, k: int) -> Callable[[], tuple[Value, ...]]:
    def written() -> tuple[Value, ...]:
        return tuple(v for held in node.written(node.region(k), ()) for v in flat(held))

    return written


def _results(node: ProgramOp, values: Sequence[Value]) -> list[Held]:
    return _regrouped(values, [t.is_complex for t in node.types])


@adapter("if")
def _if(node: ProgramOp) -> Sequence[Held]:
    return _results(node, control_flow.branch(node.translation, node.x(0), _way(node, 0), _way(node, 1)))


@adapter("case")
def _case(node: ProgramOp) -> Sequence[Held]:
    """One branch after the other is asked for; a number that none has takes the last one."""
    which, count = node.x(0), len(node.operation.regions)
    if not count:
        raise ModelError("a case has no branches")

    def from_branch(k: int) -> Callable[[], tuple[Value, ...]]:
        if k == count - 1:
            return _way(node, k)

        def written() -> tuple[Value, ...]:
            is_it = ew.eq(which, number_like(k, which))
            return control_flow.branch(node.translation, is_it, _way(node, k), from_branch(k + 1))

        return written

    return _results(node, from_branch(0)())


# Loops


@dataclass
class Loop:
    """A loop as it is written: which states never change, which counts trips, which are filled row by row."""

    states: list[Held]
    fixed: frozenset[int]
    counter: int | None
    trips: Sym | None
    start: int
    rows: set[int] = field(default_factory=set)
    backward: dict[int, bool] = field(default_factory=dict)
    misread: set[int] = field(default_factory=set)

    @property
    def carried(self) -> list[int]:
        return [k for k in range(len(self.states)) if k not in self.fixed and k not in self.rows and k != self.counter]


@adapter("while")
def _while(node: ProgramOp) -> Sequence[Held]:
    condition, body = node.region(0), node.region(1)
    states = list(node.operands)
    for state in states:
        flat(state)  # rows of a loop around this one are none of its own
    *_, end = body.operations
    returned = list(end.operation.operands)
    if len(returned) != len(states):
        raise ModelError(f"a loop of {len(states)} states gives {len(returned)}")
    fixed = frozenset(k for k, v in enumerate(returned) if v == body.arguments[k])
    counter, trips, start = _counted(node, condition, body, returned)
    found = Loop(states, fixed, counter, trips, start)
    found.rows = {
        k for k in found.carried
        if trips is not None and trips != 0
        and isinstance(states[k], Value) and _is_first_dim(as_value(states[k]), trips)
    }  # fmt: skip
    while True:
        mark = node.translation.mark()
        try:
            return _written(node, found, condition, body)
        except ReadRowsError as error:
            node.translation.rewind(mark)
            found.rows -= {error.state, *found.misread}
            found.backward.clear()
            found.misread.clear()


def _is_first_dim(value: Value, size: Sym) -> bool:
    shape = shape_of(value)
    return bool(shape) and bool(shape[0] == size)


def _counted(
    node: ProgramOp, condition: ir.Block, body: ir.Block, returned: Sequence[ir.Value]
) -> tuple[int | None, Sym | None, int]:
    """The state that counts trips from a known number on, by ones, as long as it is below another, the trips, and the
    number that it begins with."""
    *_, end = condition.operations
    op = _op(end.operation.operands[0])
    if op is None or op.name != "stablehlo.compare" or direction_of(op.attributes["comparison_direction"]) != "LT":
        return None, None, 0
    left, right = op.operands
    arguments = list(condition.arguments)
    if left not in arguments:
        return None, None, 0
    k = arguments.index(left)
    limit = _number(node, right, arguments)
    start = node.translation.constant_of(as_value(node.held(k))) if isinstance(node.held(k), Value) else None
    step = _op(returned[k])
    if limit is None or start is None or step is None or step.name != "stablehlo.add":
        return None, None, 0
    for a, b in (tuple(step.operands), tuple(step.operands)[::-1]):
        if a == body.arguments[k] and _number(node, b, ()) == 1:
            first = int(start.reshape(()))
            return k, s.maximum(limit - first, 0), first
    return None, None, 0


def _number(node: ProgramOp, value: ir.Value, arguments: Sequence[ir.Value]) -> Sym | None:
    """An integer that is known before the loop: a constant, or what a state that never changes begins with."""
    op = _op(value)
    held: Held | None
    if value in arguments:
        k = list(arguments).index(value)
        *_, end = node.region(1).operations
        if end.operation.operands[k] != node.region(1).arguments[k]:
            return None
        held = node.held(k)
    elif op is not None and op.name == "stablehlo.constant":
        if tensor_type(value.type).shape or not tensor_type(value.type).dtype.is_int:
            return None
        return sym(int(constant_of(op).array.reshape(())))
    else:
        try:
            held = node.frame.find(value)
        except ModelError:  # defined in the region
            return None
    return _symbol(node, held) if isinstance(held, Value) else None


def _symbol(node: ProgramOp, value: Value) -> Sym | None:
    """One integer that follows from numbers and dims."""
    type = type_of(value)
    if type.size != 1 or not type.dtype.is_int:
        return None
    found = node.translation.symbols_of(value)
    if found is None or any(is_input_value(v) for v in found.reshape(-1)[0].vars):
        return None
    symbol: Sym = found.reshape(-1)[0]
    return symbol


def _op(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _written(node: ProgramOp, loop: Loop, condition: ir.Block, body: ir.Block) -> list[Held]:
    shapes = {k: [type_of(v) for v in flat(loop.states[k])] for k in loop.carried}
    rows = sorted(loop.rows)

    def states_of(trip: Value | None, carried: Sequence[Value]) -> list[Held]:
        found, rest = list(loop.states), list(carried)
        for k in loop.carried:
            parts = [rest.pop(0) for _ in shapes[k]]
            found[k] = ComplexPair(*parts) if len(parts) == 2 else parts[0]
        for k in rows:
            found[k] = LoopRows(k, as_value(loop.states[k]), loop.misread)
        if loop.counter is not None and trip is not None:
            dtype = type_of(as_value(loop.states[loop.counter])).dtype
            count = trip if type_of(trip).dtype == dtype else ew.cast(trip, dtype=dtype)
            found[loop.counter] = ew.add(count, number_like(loop.start, count)) if loop.start else count
        return found

    def goes_on(states: Sequence[Held]) -> Value:
        (found,) = node.written(condition, states)
        return as_value(found)

    def trip(position: Value, holds: Value, *carried: Value) -> tuple[Value, ...]:
        states = states_of(position, carried)
        with node.importer.rows_of() as places:
            results = _body(node, loop, body, states)
        made = [v for k in loop.carried for v in flat(results[k])]
        collected = []
        for k in rows:
            row = results[k]
            if not isinstance(row, LoopRows) or row.state != k or row.update is None:
                raise ReadRowsError(k)
            backward = _is_backward(node, places[k], states[loop.counter or 0], loop)
            if backward is None or loop.backward.setdefault(k, backward) != backward:
                raise ReadRowsError(k)
            collected.append(row.update)
        return (holds if loop.trips is not None else goes_on(results), *made, *collected)

    initial = [v for k in loop.carried for v in flat(loop.states[k])]
    if loop.trips is not None and loop.trips == 0:
        return list(loop.states)
    limit = None if loop.trips is None else _integer(loop.trips)
    begins = None if loop.trips is not None else goes_on(loop.states)
    found = control_flow.loop(node.translation, limit, begins, initial, trip, len(rows))
    results = states_of(None, found[: len(initial)])
    for k, row in zip(rows, found[len(initial) :], strict=True):
        ordered = reverse(row, axes=(0,)) if loop.backward[k] else row
        shape = shape_of(as_value(loop.states[k]))
        results[k] = ordered if shape_of(ordered) == shape else reshape(ordered, shape=shape)
    if loop.counter is not None:
        dtype = type_of(as_value(loop.states[loop.counter])).dtype
        last = sym(loop.start) if loop.trips is None else loop.trips + loop.start
        results[loop.counter] = ew.cast(_integer(last), dtype=dtype)
    return results


def _body(node: ProgramOp, loop: Loop, body: ir.Block, states: Sequence[Held]) -> list[Held]:
    """What a trip gives; ReadRowsError where it has read what it was to write."""
    translation = node.translation
    outer, translation.problems = translation.problems, Problems()
    try:
        return node.written(body, states)
    finally:
        found, translation.problems = translation.problems, outer
        if loop.misread:
            raise ReadRowsError(min(loop.misread))
        outer.extend(found)


def _integer(symbol: Sym) -> Value:
    if symbol.is_const:
        return constant(np.array(symbol.value, np.int64), "trips")
    return dim_value(symbol)


def _is_backward(node: ProgramOp, place: Value, counter: Held, loop: Loop) -> bool | None:
    """Whether a row is the one of the trip, counted from the end; None where it is another."""
    found = _affine(node, place, as_value(counter), 0)
    if found is None or loop.trips is None:
        return None
    factor, shift = found
    if factor == 1 and shift == -loop.start:
        return False
    return True if factor == -1 and shift == loop.trips + (loop.start - 1) else None


_MOST_STEPS = 40


def _affine(node: ProgramOp, value: Value, counter: Value, depth: int) -> tuple[int, Sym] | None:
    """Factor and shift by which an integer follows from the counter."""
    if value is counter:
        return 1, ZERO
    op = value.op
    if op is None or depth > _MOST_STEPS:
        return None
    if op.name in ("cast", "reshape"):
        return _affine(node, op.operands[0], counter, depth + 1)
    if op.name in ("add", "sub"):
        a, b = (_affine(node, v, counter, depth + 1) for v in op.operands)
        if a is None or b is None:
            return None
        sign = 1 if op.name == "add" else -1
        return a[0] + sign * b[0], a[1] + sign * b[1]
    if op.name == "select":
        return _not_below_zero(node, op.operands, counter, depth)
    known = _symbol(node, value)
    return None if known is None else (0, known)


def _not_below_zero(
    node: ProgramOp, operands: Sequence[Value], counter: Value, depth: int
) -> tuple[int, Sym] | None:
    """`i + n` where i is below 0, else i: of a counter it is i."""
    condition, _, plain = operands
    if condition.op is None or condition.op.name != "lt":
        return None
    tested, zero = condition.op.operands
    found, limit = _affine(node, tested, counter, depth + 1), _affine(node, zero, counter, depth + 1)
    other = _affine(node, plain, counter, depth + 1)
    return found if found is not None and limit == (0, ZERO) and found == other else None
