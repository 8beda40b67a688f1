"""Rows that are prefetched: while one is computed, the next is read from L3 or memory.

    for i { for j { max = .. x[i, j] }; for j { prefetch x[i + 1, j]; y[i, j] = exp(x[i, j] - max); .. }; .. }

A core looks some two hundred instructions ahead, less than a row: left alone it waits for memory in the first pass over
each row, and memory waits for the core in the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.rows import is_prefetched
from tilewright.ir.core import Op, Value
from tilewright.loops.edit import body_of, buffer_type, is_loop, kind_of, loop_var
from tilewright.loops.kernel_info import operands_of
from tilewright.schedule.steps.access import loads_in, perfect_nest, stride_in
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def prefetch_next_rows(s: Schedule, row: Op, loop: Op, target: Target) -> None:
    """Where `row` passes several times over what it reads, prefetch that of the next iteration of `loop` (`row`, or the
    loop around interleaved rows) in the pass that computes most, which has the most time for it. Of rows that are a
    large part of L1 nothing is prefetched: the next one would take the place of the current one."""
    passes = [op for op in body_of(row).ops if is_loop(op) and kind_of(op) == "serial"]
    if len(passes) < 2:
        return  # the hardware follows what is read once
    operands = operands_of(s.func)
    for load in _longest_reads(passes, operands).values():
        distance = stride_in(load, loop_var(loop))
        if distance is None or not distance.is_const or not distance.value:
            continue
        size = distance.value * buffer_type(load.operands[0]).dtype.bytes
        if not is_prefetched(size, target):
            s.missed.append(f"the next {size} bytes of rows are not prefetched: they are too many")
            continue
        with s.noting("the next row is not prefetched"):
            s.prefetch(load, loop, nearest=True)


def _longest_reads(passes: Sequence[Op], operands: Sequence[Value]) -> dict[Value, Op]:
    """A load of each of the operands, in the longest of the passes that have one."""
    ordered = sorted(passes, key=_length)
    return {op.operands[0]: op for o in ordered for op in loads_in(o) if op.operands[0] in operands}


def _length(one_pass: Op) -> int:
    """How much a pass computes for each element, in ops."""
    return sum(1 for _ in perfect_nest(one_pass)[-1].walk())
