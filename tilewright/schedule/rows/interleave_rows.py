"""Rows that are interleaved: while one adds up its lanes, or divides by its sum, there is another to go on with."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tilewright.cost.rows import come_from_memory, interleaved_rows
from tilewright.ir.core import Op
from tilewright.ir.types import product
from tilewright.loops.edit import (
    body_of,
    buffer_type,
    enclosing_loops,
    extent_of,
    is_inside,
    is_loop,
    loop_var,
)
from tilewright.loops.kernel_info import operands_of
from tilewright.schedule.rows.prefetch_rows import prefetch_next_rows
from tilewright.schedule.steps.access import known, perfect_nest, stores_in, variables
from tilewright.schedule.steps.vectorize import innermost_loops
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def row_loop(s: Schedule) -> Op | None:
    """The loop whose iterations each work on one row, several stages long; None for a kernel that is no such nest."""
    outermost = [op for op in s.func.body.ops if op.name != "return"]
    if len(outermost) != 1 or not is_loop(outermost[0]):
        return None
    row = perfect_nest(outermost[0])[-1]
    return row if any(is_loop(op) for op in body_of(row).ops) else None


@dataclass(frozen=True)
class Interleaving:
    """How many rows run in turns, and how many of them lie far apart (1: they are neighbours)."""

    count: int = 1
    apart: int = 1


def rows_to_interleave(s: Schedule, row: Op | None, target: Target) -> Interleaving:
    """How many iterations of the loop of rows are interleaved; what speaks against it is noted as missed."""
    if row is None:
        return Interleaving()
    lengths = [_length(loop, row) for loop in innermost_loops(s) if is_inside(loop, row)]
    if not all(lengths):
        s.missed.append("rows run one by one: their length is not known")
        return Interleaving()
    longest = max(lengths)
    rows = product(extent_of(o) for o in [*enclosing_loops(row), row])
    far, once = _comes_from_memory(s, target), _is_read_once(row)
    count = interleaved_rows(longest, _widest(s), known(rows), far, _halves(row), once, target)
    if count < 2:
        s.missed.append(f"rows run one by one: there are {rows}, of up to {longest} elements")
        return Interleaving()
    if not far or not extent_of(row).is_const:
        return Interleaving(count)
    return Interleaving(count, count if once else gcd(extent_of(row).value, count))


def interleave_rows(s: Schedule, row: Op, rows: Interleaving, target: Target) -> None:
    """Interleave rows: where they are neighbours, the last few run one by one. Prefetch the next ones meanwhile."""
    if rows.count == 1:
        prefetch_next_rows(s, row, row, target)
        return
    if rows.apart > 1:
        parts = s.strided_split(row, rows.apart, overlap=extent_of(row).value % rows.apart != 0)
    else:
        parts = s.split(row, rows.count, tail="branch")
    prefetch_next_rows(s, parts.inner, parts.outer, target)
    with s.noting("rows run one by one"):
        s.unroll_and_jam(parts.inner)


def _is_read_once(row: Op) -> bool:
    """Whether a row is read in one pass that writes no row, but a sum or the like."""
    passes = [op for op in body_of(row).ops if is_loop(op)]
    inner = {loop_var(op) for op in body_of(row).walk() if is_loop(op)}
    written = {v for store in stores_in(row) for v in variables(store.attrs["idx"])}
    return len(passes) == 1 and not inner & written


def _widest(s: Schedule) -> int:
    """Bytes of the widest element that a kernel reads or writes."""
    return max(buffer_type(v).dtype.bytes for v in s.func.args)


def _halves(row: Op) -> bool:
    return extent_of(row).is_const and extent_of(row).value % 2 == 0


def _comes_from_memory(s: Schedule, target: Target) -> bool:
    """Whether an operand is known to come from beyond a core's caches."""
    operands = operands_of(s.func)
    sizes = [product(buffer_type(v).shape) * buffer_type(v).dtype.bytes for v in operands]
    return come_from_memory([size.value for size in sizes if size.is_const], target)


def _length(loop: Op, row: Op) -> int:
    """Elements of a row that an innermost loop goes through at most; 0 where that is not known."""
    extents = [extent_of(o).bounds[1] for o in [loop, *enclosing_loops(loop)] if is_inside(o, row)]
    return prod(e for e in extents if e is not None) if None not in extents else 0
