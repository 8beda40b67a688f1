"""Whole lines of a contraction's result at a time: the order of row tiles and column tiles where rows lie apart.

    for row tile { for column tile { y[rows, columns] = .. } }

The other way round, pieces of a few cache lines would be written to all rows one after the other, each on a page of its
own: memory takes them two or three times as slowly as long runs.
"""

from __future__ import annotations

from tilewright.cost.gemm.panels import WINDOWS, rows_lie_apart, why_lines_are_not_written
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.edit import extent_of, loop_var
from tilewright.schedule.gemm.gemm_axes import GemmAxes
from tilewright.schedule.steps.access import element_bytes, elements_read, stores_in, stride_in
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def writes_lines(s: Schedule, axes: GemmAxes, target: Target) -> bool:
    """Whether row tiles go outside of column tiles: rows of the result lie apart, and what all columns read stays near
    for the next row tile."""
    if axes.row is None or axes.block is not None:
        return False
    row = loop_var(axes.row)
    steps = [_step(store, row) for store in stores_in(axes.sums.loops[0])]
    if None in steps or not rows_lie_apart(step for step in steps if step is not None):
        return False
    stage = axes.sums.stage
    within = [stage.axes[axes.axis(axes.vector)], *stage.reduce]
    found = [elements_read(load, within) for load in axes.columns]
    elements = [n for n in found if n is not None]
    if len(elements) < len(found):
        s.missed.append("whole lines: how much their columns read is not known")
        return False
    size = sum(elements) * element_bytes(stage.buffer)
    reads = product(extent_of(o) for o in within)
    rereads = reads.is_const and reads.value >= WINDOWS * sum(elements)
    reason = why_lines_are_not_written(size, rereads, target)
    if reason:
        s.missed.append(f"whole lines: {reason}")
    return not reason


def _step(store: Op, row: Sym) -> int | None:
    """Bytes between the rows that a store writes; None where that is not known."""
    step = stride_in(store, row)
    return step.value * element_bytes(store.operands[-1]) if step is not None and step.is_const else None
