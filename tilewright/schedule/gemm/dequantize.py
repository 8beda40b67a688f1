"""Where quantised weights are dequantised: once for a panel of columns, or in registers in each step of the sums.

A panel is filled once and read by all rows; a step in registers needs neither loads nor stores of its elements, but
repeats the conversion for every tile of rows. So it is done where these are one tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.loops.edit import extent_of, loop_var
from tilewright.loops.lower import Lowered, Stage
from tilewright.schedule.steps.access import loads_in, stride_in
from tilewright.schedule.steps.tiling import vectors_of
from tilewright.schedule.trace import Schedule

MOST_UNROLLED = 16
"""Vectors of a panel that are dequantised in one iteration."""


def split_weights(lowered: Lowered) -> tuple[list[Stage], Lowered]:
    """The stages before the first reduction, which compute its operands from constants, and the other stages."""
    first = next((k for k, st in enumerate(lowered.stages) if st.kind == "reduce"), 0)
    return lowered.stages[:first], Lowered(lowered.func, lowered.stages[first:])


def dequantize(s: Schedule, weights: Stage, around: Sequence[Op], step: Op | None, lanes: int) -> list[Op]:
    """Compute the weights for a panel of columns where the loops `around` the sums come to it, or, where `step` is
    given, for each iteration of that innermost loop of the sum, in registers. The loops that do so, the vector last."""
    if step is None:
        loads = [load for load in loads_in(around[0]) if load.operands[0] is weights.buffer]
        panel = [o for o in around if any(stride_in(load, loop_var(o)) != 0 for load in loads)]
        made = s.compute_at(weights.buffer, panel[-1] if panel else around[0], guard="loads")
    else:
        made = s.compute_at(weights.buffer, step, space="reg", guard="loads")
    return vectors_of(s, [made.copies[o] for o in weights.axes], lanes)


def mark_weights(s: Schedule, nest: Sequence[Op]) -> None:
    """The vectors of a step become instructions one after the other, and so do a few of those of a long panel."""
    *around, vector = nest
    if vector.parent is not None:
        s.vectorize(vector)
    if not around or around[-1].parent is None or not extent_of(around[-1]).is_const:
        return
    last = around[-1]
    if extent_of(last).value > MOST_UNROLLED:
        last = s.split(last, next(n for n in range(MOST_UNROLLED, 0, -1) if extent_of(last).value % n == 0)).inner
    s.unroll(last)
