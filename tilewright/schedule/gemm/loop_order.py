"""Whole lines of a contraction's result at a time: the order of row tiles and column tiles where rows lie apart.

    for row tile { for column tile { y[rows, columns] = .. } }

The other way round, pieces of a few cache lines would be written to all rows in turn, each on a page of its own: memory
takes them two or three times as slowly as long runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.types import product
from tilewright.loops.edit import extent_of, loop_var
from tilewright.loops.lower import Stage
from tilewright.schedule.gemm.gemm_axes import GemmAxes, element_bytes, operands_moving
from tilewright.schedule.steps.access import elements_read, stores_in, stride_in
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

APART = 64
"""Elements from which on rows of the result lie apart."""

L1_SHARE = 0.5
"""Of the first-level cache, for what all columns read, which the next row tile finds there."""

L2_SHARE = 0.25
"""Of the second-level cache, for the same where windows read an element several times for a row."""

WINDOWS = 2
"""Reads of an element for a row that make up for the way from the second-level cache."""


def writes_lines(
    s: Schedule, stage: Stage, axes: GemmAxes, loops: Sequence[Op], axis_of: dict[Op, int], target: Target
) -> bool:
    """Whether row tiles go outside of column tiles: rows of the result, which the nest `loops` writes, lie apart, and
    what all columns read stays near for the next row tile."""
    if axes.row is None or axes.block is not None:
        return False
    row = loop_var(axes.row)
    steps = [stride_in(store, row) for store in stores_in(loops[0])]
    if not all(step is not None and step.is_const and abs(step.value) >= APART for step in steps):
        return False
    within = [stage.axes[axis_of[axes.vector]], *stage.reduce]
    found = [elements_read(load, within) for load in operands_moving(stage, axis_of[axes.vector])]
    elements = [n for n in found if n is not None]
    if len(elements) < len(found):
        s.missed.append("whole lines: how much their columns read is not known")
        return False
    size = sum(elements) * element_bytes(stage.buffer)
    reads = product(extent_of(o) for o in within)
    windows = reads.is_const and reads.value >= WINDOWS * sum(elements)
    if size <= max(L1_SHARE * target.caches.l1d, L2_SHARE * target.caches.l2 if windows else 0):
        return True
    s.missed.append(f"whole lines: the {size} bytes that their columns read do not stay near")
    return False
