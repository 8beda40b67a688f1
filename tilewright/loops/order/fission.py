"""Distributing loops over the parts of their body."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.ir.core import Func, Op, insert_before, substitute
from tilewright.loops.analysis.deps import accesses, conflicts, ordered, separated
from tilewright.loops.edit import (
    base_name,
    block_of,
    body_of,
    bound_in,
    describe,
    enclosing,
    enclosing_loops,
    extent_of,
    fresh_var,
    is_in_run,
    is_inside,
    is_loop,
    kind_of,
    loop_var,
    names_in,
    new_if,
    new_loop,
    outside_values,
    put_ops,
    ranges_at,
    refuse,
    substitute_in,
    vars_read,
)
from tilewright.loops.primitive import primitive


class Fission(NamedTuple):
    """The loops around the first and the second part, outermost first. Those of the second are the original
    ones."""

    before: list[Op]
    after: list[Op]


@primitive
def fission(func: Func, last: Op, depth: int = 1) -> Fission:
    """Give the ops up to `last` a nest of their own: the `depth` innermost loops around them are doubled.

        for i { for j { S; T } }    ->    for i { for j { S } }; for i { for j { T } }      (last=S, depth=2)

    Conditions around the ops are doubled as well. ScheduleError when a scalar of the first part is used in
    the second, when anything stands beside an inner one of these loops, or when the second part may touch
    in one iteration what the first touches in a later one.
    """
    if is_in_run(last):
        refuse("fission", last, "it is in a run, which is done as a whole")
    block = block_of(last)
    cut = block.ops.index(last) + 1
    first, second = block.ops[:cut], block.ops[cut:]
    loops = enclosing_loops(last)[-depth:] if depth > 0 else []
    _check_shape(last, loops, depth)
    for op, _ in outside_values(first):
        refuse("fission", last, f"{describe(op)} gives a value or buffer that is used after it")
    for v in bound_in(first) & vars_read(second):
        refuse("fission", last, f"index variable '{v}' is bound before and used after it")
    if not second:
        refuse("fission", last, "nothing follows it in its loop")
    _check_order(first, second, loops, last)
    names = names_in(func)
    fresh = {loop_var(loop): fresh_var(names, base_name(loop_var(loop)), extent_of(loop)) for loop in loops}
    put_ops(block, second)
    inner = list(first)
    copies: list[Op] = []
    for op in first:
        substitute_in(op, fresh)
    for op in reversed(_around(last, loops)):
        if is_loop(op):
            copy = new_loop(fresh[loop_var(op)], extent_of(op).subs(fresh), inner, kind_of(op), op.loc)
            copies.insert(0, copy)
        else:
            copy = new_if(substitute(op.attrs["guard"], fresh), inner, op.operands, op.loc)
        inner = [copy]
    insert_before(loops[0], inner)
    return Fission(copies, loops)


def _check_shape(last: Op, loops: list[Op], depth: int) -> None:
    if depth < 1 or len(loops) < depth:
        refuse("fission", last, f"there are no {depth} loops around it")
    around = _around(last, loops)
    for op in around:
        if is_loop(op) and kind_of(op) == "parallel":
            refuse("fission", op, "a parallel loop cannot be doubled")
    for op in around[:-1]:
        if len(body_of(op).ops) != 1:
            refuse("fission", op, "it holds more than the next loop; use a smaller depth first")
    for op in around:
        if any(v.op is not None and is_inside(v.op, loops[0]) for v in op.operands):
            refuse("fission", op, "its condition is computed inside of the loops")


def _around(last: Op, loops: list[Op]) -> list[Op]:
    """The loops and the conditions between them and `last`."""
    around = enclosing(last)
    return around[around.index(loops[0]) :]


def _check_order(first: list[Op], second: list[Op], loops: list[Op], last: Op) -> None:
    outer = ranges_at(loops[0])
    for x, y in conflicts(accesses(first), accesses(second)):
        if separated(x, y, loops, outer) == set(loops):
            continue
        if len(loops) > 1 or not ordered(x, y, loops[0], outer):
            refuse(
                "fission",
                last,
                f"{y.place} may touch {describe(x.buffer)} before a later {x.op.name} of it",
            )
