"""Keeping an intermediate in the memory of the result that it becomes."""

from __future__ import annotations

from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym, ge0
from tilewright.loops.analysis.bounds import Box, holds
from tilewright.loops.analysis.deps import Access, accesses
from tilewright.loops.analysis.region import covers
from tilewright.loops.edit import (
    ancestor_in,
    block_of,
    bound_in,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    loop_var,
    places_of,
    ranges_at,
    refuse,
)
from tilewright.loops.kernel_info import results_of
from tilewright.loops.primitive import primitive

STEP = "compute_in"


@primitive
def compute_in(func: Func, buffer: Value, output: Value) -> Value:
    """Use the part of `output` that a local buffer ends up in instead of the buffer.

        t = alloc f32[n]
        for j in 0..n { t[j] = S(j) }
        for j in 0..n { y[i, j] = T(t[j]) }

    becomes

        for j in 0..n { y[i, j] = S(j) }
        for j in 0..n { y[i, j] = T(y[i, j]) }

    ScheduleError when dtypes or ranks differ, when the output is used otherwise, when an element of the buffer is
    needed after its place in the output has got its last value, when the buffer is not certainly inside of the
    output, when the last stage does not give each of its elements a last value exactly once, or inside of a loop that
    computes elements twice.
    """
    alloc = buffer.op
    if alloc is None or alloc.name != "alloc":
        refuse(STEP, buffer, "it is an argument of the kernel")
    if output not in results_of(func):
        refuse(STEP, output, "it is not an output of the kernel")
    if buffer_type(buffer).dtype != buffer_type(output).dtype:
        refuse(STEP, buffer, f"{describe(output)} has another dtype")
    if any(loop.attrs.get("overlap") for loop in enclosing_loops(alloc)):
        refuse(
            STEP, buffer, "iterations that compute an element twice would see one another's intermediate values"
        )
    block = block_of(alloc)
    found = accesses(block)
    last = _only_store(func, output, found)
    own = [a for a in found if a.buffer is buffer]
    start = _place(buffer, last, own)
    final = ancestor_in(last.op, block)
    for a in own:
        after = ancestor_in(a.op, block)
        if after is final and not _just_before(a, last):
            refuse(STEP, buffer, f"{a.place} is in the loops that give {describe(output)} its last value")
        assert after is not None and final is not None
        if block.ops.index(after) > block.ops.index(final):
            refuse(STEP, buffer, f"{a.place} comes after {describe(output)} has its last value")
    _check_inside(buffer, output, start, last)
    _check_replaced(buffer, output, start, last)
    for op in places_of(buffer):
        op.set_operands([*op.operands[:-1], output])
        op.attrs["idx"] = tuple(i + s for i, s in zip(op.attrs["idx"], start, strict=True))
    alloc.erase()
    return output


def _only_store(func: Func, output: Value, found: list[Access]) -> Access:
    """The one access of the output, an unconditional store beside the buffer."""
    users = [a for a in accesses(func.body) if a.buffer is output]
    here = [a for a in found if a.buffer is output]
    if len(users) != 1 or len(here) != 1 or not here[0].write or here[0].conditional:
        refuse(STEP, output, "it must have a single store, in the block of the buffer and under no condition")
    return here[0]


def _place(buffer: Value, last: Access, own: list[Access]) -> tuple[Sym, ...]:
    """Where in the output the buffer begins, from the element that the last stage turns into each result."""
    if any(a.op.name == "lanes_reduce" for a in own):
        refuse(STEP, buffer, "it is a register of lanes")
    moving = {loop_var(o) for o in last.loops}
    assert buffer.op is not None
    for a in own:
        if a.write or a.op.parent is not last.op.parent or len(a.idx) != len(last.idx):
            continue
        start = tuple(y - i for y, i in zip(last.idx, a.idx, strict=True))
        if any(s.vars & bound_in(block_of(buffer.op).ops) for s in start):
            refuse(STEP, buffer, "its place in the output depends on data")
        if not any(s.vars & moving for s in start):
            return start
    refuse(STEP, buffer, "the result is not computed from just the element at its own place")


def _just_before(a: Access, last: Access) -> bool:
    """Whether `a` reads the element that `last` writes next, in the same iteration of the same loops."""
    if a.write or a.op.parent is not last.op.parent or a.conditional:
        return False
    ops = block_of(a.op).ops
    moving = {loop_var(o) for o in last.loops}
    offsets = [y - i for y, i in zip(last.idx, a.idx, strict=True)]
    return ops.index(a.op) < ops.index(last.op) and not any(o.vars & moving for o in offsets)


def _check_replaced(buffer: Value, output: Value, start: tuple[Sym, ...], last: Access) -> None:
    """The last stage must leave no intermediate value in the output, where another iteration may have put a result, and
    must not take a result for an intermediate value."""
    if not covers(last, Box(start, buffer_type(buffer).shape)):
        refuse(STEP, buffer, f"not every element of it gets a last value in {describe(output)}")
    moving = frozenset[Sym]().union(*(i.vars for i in last.idx))
    for loop in last.loops:
        if loop_var(loop) not in moving and extent_of(loop) != 1:
            refuse(STEP, buffer, f"{describe(loop)} computes each result several times")


def _check_inside(buffer: Value, output: Value, start: tuple[Sym, ...], last: Access) -> None:
    around = ranges_at(last.op)
    for s, size, limit in zip(start, buffer_type(buffer).shape, buffer_type(output).shape, strict=True):
        if not (holds(ge0(s), around) and holds(ge0(limit - s - size), around)):
            refuse(
                STEP,
                buffer,
                f"it is not certain that {size} elements from {s} are inside of {describe(output)}",
            )
