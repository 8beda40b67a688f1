"""Loops of a known, small length, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontends.translation import Translation
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.types import TensorType
from tilewright.ops.composites.text import moved
from tilewright.ops.define import constant
from tilewright.ops.define.staged import BRANCH
from tilewright.ops.view import concat, reshape, section, shape_of, unsqueeze

MAX_TRIPS = 256
"""Iterations of a loop that is unrolled at most."""

MAX_OPS = 4096
"""Nor are those that would become more operators."""

BRANCH_OPS = 256
"""What a branch that is taken when the model runs counts for: each of its ways is compiled as a program of its own."""

Body = Callable[..., tuple[Value, ...]]


def unrolled(
    translation: Translation,
    trips: int | None,
    condition: Value,
    state: Sequence[Value],
    body: Body,
    rows: int,
) -> tuple[Value, ...] | str:
    """What all trips of a loop compute; why it stays a loop where its end is not known, or it is too long."""
    start = translation.mark()
    collected: list[tuple[Value, ...]] = []
    while len(collected) != trips:
        known = translation.constant_of(condition)
        written = _weight(translation.builder.block.ops[start.ops :])
        expected = written if trips is None or not collected else written // len(collected) * trips
        if known is None or len(collected) == MAX_TRIPS or (trips or 0) > MAX_TRIPS or expected > MAX_OPS:
            translation.rewind(start)
            if known is None:
                return "whether there is another trip is known in calls only"
            if expected > MAX_OPS:
                return f"its trips would be some {expected} operators, and {MAX_OPS} are the most that are written out"
            return f"it has more than {MAX_TRIPS} trips, which are the most that are written out"
        if not known.any():
            break
        trip = constant(np.array(len(collected), np.int64), "trip")
        condition, *results = body(trip, condition, *state)
        state, row = results[: len(state)], results[len(state) :]
        collected.append(tuple(row))
    if rows and not collected:
        translation.rewind(start)
        return "it makes no trip, and what one would give is known of its body alone"
    for value in collected[0] if collected else ():
        require_tensor(translation, value)
    return (*state, *[_stacked(column) for column in zip(*collected, strict=True)])


def _weight(ops: Sequence[Op]) -> int:
    return len(ops) + BRANCH_OPS * sum(op.name == BRANCH for op in ops)


def require_tensor(translation: Translation, row: Value) -> TensorType:
    """The type of what a loop collects; UnsupportedError for anything but tensors."""
    if isinstance(row.type, TensorType):
        return row.type
    raise UnsupportedError(
        f"{translation.builder.loc.op} collects values of type {row.type}", hint="carry a sequence from trip to trip"
    )


def _stacked(rows: Sequence[Value]) -> Value:
    (result,) = moved(rows, lambda values: [stacked([v for v in values if v is not None], 0)])
    assert result is not None
    return result


def stacked(values: Sequence[Value], axis: int) -> Value:
    """The values along a new axis."""
    rank = len(shape_of(values[0])) + 1
    wide = [unsqueeze(v, axes=(axis % rank,)) for v in values]
    return concat(*wide, axis=axis % rank) if len(wide) > 1 else wide[0]


def element(x: Value, axis: int, position: int) -> Value:
    """x[position] along `axis`, without that axis."""
    shape = shape_of(x)
    one = x if shape[axis] == 1 else section(x, axis, position, 1)
    return reshape(one, shape=(*shape[:axis], *shape[axis + 1 :]))
