"""If, loops and scans: what is known is decided now, loops of a known length are unrolled.

A body is a function that writes a subgraph for its arguments and gives its results; the operators are called what the
current node is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.binding import is_input_value
from tilewright.ops.view import concat, reshape, shape_of, slice_, unsqueeze

MAX_TRIPS = 256
"""Iterations of a loop that is unrolled at most."""

Body = Callable[..., tuple[Value, ...]]


def branch(translation: Translation, condition: Value, then: Body, other: Body) -> tuple[Value, ...]:
    """The branch that a known condition takes; otherwise both, and a choice between their results."""
    op, type = translation.builder.loc.op, type_of(condition)
    if type.size != 1:
        raise ModelError(f"the condition of {op} must be one bool, it is {type}")
    known = translation.constant_of(condition)
    if known is not None:
        return then() if known.any() else other()
    start = translation.mark()
    taken, untaken = translation.attempt(then), translation.attempt(other)
    if isinstance(taken, TilewrightError) or isinstance(untaken, TilewrightError):
        which, failed = ("then", taken) if isinstance(taken, TilewrightError) else ("else", untaken)
        assert isinstance(failed, TilewrightError)
        reason = f"both branches of {op} would be computed, but not the {which}-branch: {failed.what}"
    else:
        if len(taken) != len(untaken):
            raise ModelError(f"the branches of {op} have {len(taken)} and {len(untaken)} outputs")
        reason = ""
        for a, b in zip(map(type_of, taken), map(type_of, untaken), strict=True):
            differ = f"the branches of {op} give {a} and {b}"
            if a.dtype != b.dtype:
                raise ModelError(differ)
            if a.shape != b.shape and not reason:
                reason = f"{differ}: the shape would depend on data"
        if not reason:
            scalar = reshape(condition, shape=())
            return tuple(ew.select(scalar, a, b) for a, b in zip(taken, untaken, strict=True))
    translation.rewind(start)
    return then() if _decided(translation, condition, reason) else other()


def _decided(translation: Translation, condition: Value, reason: str) -> bool:
    """What the condition is taken to be in all calls, where it follows from dims; `reason` is why it must be."""
    symbols = translation.symbols_of(condition)
    if symbols is not None:
        symbol = s.truth(symbols.reshape(-1)[0])
        if not any(is_input_value(v) for v in symbol.vars):
            return translation.choose(symbol)
    raise translation.must_be_known(condition, reason)


def loop(
    translation: Translation,
    trips: int | None,
    condition: Value | None,
    state: Sequence[Value],
    body: Body,
    rows: int,
) -> tuple[Value, ...]:
    """A loop of known length: (trip, condition, *state) -> (condition, *state, *one of each of the `rows`)."""
    op = translation.builder.loc.op
    condition = constant(np.array(True), "condition") if condition is None else condition
    collected: list[tuple[Value, ...]] = []
    while _goes_on(translation, condition) and len(collected) != trips:
        if len(collected) == MAX_TRIPS:
            raise UnsupportedError(f"a {op} of more than {MAX_TRIPS} trips is not unrolled")
        trip = constant(np.array(len(collected), np.int64), "trip")
        condition, *results = body(trip, condition, *state)
        state, row = results[: len(state)], results[len(state) :]
        collected.append(tuple(row))
    if rows and not collected:
        raise UnsupportedError(
            f"output {len(state)} of {op} collects the results of no trip: its shape is not known"
        )
    return (*state, *[stacked(column, 0) for column in zip(*collected, strict=True)])


def _goes_on(translation: Translation, condition: Value) -> bool:
    op = translation.builder.loc.op
    if type_of(condition).dtype != dt.bool_:
        raise ModelError(f"the condition of {op} must be bool, it is {condition.type}")
    known = translation.constant_of(condition)
    if known is None:
        raise translation.must_be_known(
            condition,
            f"a {op} that ends by a computed condition is not supported, but if it is known when compiling",
        )
    return bool(known.any())


def scan(
    translation: Translation,
    state: Sequence[Value],
    scanned: Sequence[tuple[Value, int, bool]],
    body: Body,
    outputs: Sequence[tuple[int, bool]],
) -> tuple[Value, ...]:
    """A scan over axes of a known length: (*state, *elements) -> (*state, *one of each output). Of what is scanned
    and of the outputs the axis is given, and whether they go backward along it."""
    op, size = translation.builder.loc.op, shape_of(scanned[0][0])[scanned[0][1]]
    if not size.is_const:
        raise UnsupportedError(
            f"a {op} over {size} elements: only a known number is unrolled", hint=translation.fixing(size)
        )
    if not 1 <= size.value <= MAX_TRIPS:
        raise UnsupportedError(f"a {op} over {size} elements is not unrolled (1 to {MAX_TRIPS} are)")
    collected = []
    for trip in range(size.value):
        elements = [element(x, axis, size.value - 1 - trip if back else trip) for x, axis, back in scanned]
        results = body(*state, *elements)
        state, row = results[: len(state)], results[len(state) :]
        collected.append(row)
    columns = zip(zip(*collected, strict=True), outputs, strict=True)
    return (*state, *[stacked(c[::-1] if back else c, axis) for c, (axis, back) in columns])


def stacked(values: Sequence[Value], axis: int) -> Value:
    """The values along a new axis."""
    rank = len(shape_of(values[0])) + 1
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    wide = [unsqueeze(v, axes=(axis % rank,)) for v in values]
    return concat(*wide, axis=axis % rank) if len(wide) > 1 else wide[0]


def element(x: Value, axis: int, position: int) -> Value:
    """x[position] along `axis`, without that axis."""
    shape = shape_of(x)
    starts = tuple(sym(position if k == axis else 0) for k in range(len(shape)))
    sizes: tuple[Sym, ...] = (*shape[:axis], sym(1), *shape[axis + 1 :])
    one = x if shape[axis] == 1 else slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
    return reshape(one, shape=(*shape[:axis], *shape[axis + 1 :]))
