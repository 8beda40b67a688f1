"""Indices that data choose, chosen before the loops in which they are the same."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Func, Op, insert_before
from tilewright.ir.sym import ZERO
from tilewright.loops.analysis.deps import accesses, written_buffers
from tilewright.loops.edit import (
    block_of,
    enclosing,
    extent_of,
    is_loop,
    kind_of,
    loop_var,
    substitute_in,
    vars_read,
)
from tilewright.loops.primitive import primitive


@primitive
def choose_before(func: Func, stay: Sequence[Op] = ()) -> Func:
    """Move what binds indices to data, and the checks of these, out of the loops that do not change them, but for those
    that `stay` perfect nests.

        for a { for k { at = bind x[a];  S(w[at, k]) } }    ->    for a { at = bind x[a];  for k { S(w[at, k]) } }

    Conditions stay around what they are around, data that a loop writes are read within it, and each thread has indices
    of its own. A loop of no iterations
    then checks an index that nothing uses.
    """
    for bind in [op for op in func.body.walk() if op.name == "bind"]:
        _move(bind, stay)
    return func


def _move(bind: Op, stay: Sequence[Op]) -> None:
    found = _computed_for(bind)
    read = vars_read(found)
    buffers = {op.operands[0] for op in found if op.name == "load"}
    place: Op | None = None
    for loop in reversed(enclosing(bind)):
        if not is_loop(loop) or loop in stay or kind_of(loop) == "parallel":
            break
        if extent_of(loop) == 1 and loop_var(loop) in read:
            for op in found:
                substitute_in(op, {loop_var(loop): ZERO})
            read = vars_read(found)
        if loop_var(loop) in read or buffers & set(written_buffers(accesses(loop))):
            break
        place = loop
    given = {v.op for op in found for v in op.operands} - {None, *found}
    if place is None or any(place in enclosing(op) for op in given if op is not None):
        return
    for op in found:
        block_of(op).ops.remove(op)
    insert_before(place, found)


def _computed_for(bind: Op) -> list[Op]:
    """The op, what it is computed from in its block, and checks of that, in their order."""
    block = block_of(bind)
    wanted = {bind}
    for op in reversed(block.ops[: block.ops.index(bind)]):
        if any(user in wanted for result in op.results for user in result.users):
            wanted.add(op)
    for op in block.ops:
        if op.name == "check" and op.operands[0].op in wanted:
            wanted.add(op)
    return [op for op in block.ops if op in wanted]

