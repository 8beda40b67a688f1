"""Splitting a loop of unknown extent in parts that are as long as each other."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import ceildiv, maximum, minimum
from tilewright.loops.edit import (
    base_name,
    body_of,
    extent_of,
    fresh_var,
    kind_of,
    loop_var,
    names_in,
    new_loop,
    put_ops,
    refuse,
    substitute_in,
    take_ops,
)
from tilewright.loops.order.split import Split, check_repeatable
from tilewright.loops.primitive import primitive

STEP = "split_evenly"


@primitive
def split_evenly(func: Func, loop: Op, most: int, least: int = 0) -> Split:
    """`v` becomes a part and a place in it, for the fewest parts of at most so many iterations; the outer loop keeps
    the identity of `loop`.

        for v in 0..n { S }

    becomes, with most=64, least=4 and size = max(4, ceildiv(n, ceildiv(n, 64))),

        for vo in 0..ceildiv(n, size) { for vi in 0..size { S at min(size*vo, n - size) + vi } }

    All parts have the same length: the last one starts early enough, and computes some elements a second time, as with
    tail "overlap" of `split`. Nothing is divided by 0 for a loop that never runs. ScheduleError for parts of less than
    one iteration, for a loop that is not serial, for an extent that depends on other loops or may be below `least`, and
    for iterations of which a second run might write something else.
    """
    n, v = extent_of(loop), loop_var(loop)
    if most < max(1, least):
        refuse(STEP, loop, f"its parts have at most {most} iterations, it must be at least {max(1, least)}")
    if kind_of(loop) != "serial":
        refuse(STEP, loop, f"it is a {kind_of(loop)} loop; split it before that")
    if not n.vars <= set(func.dims):
        refuse(STEP, loop, f"its extent {n} depends on more than dims")
    if (n.bounds[0] or 0) < least:
        refuse(STEP, loop, f"its extent may be below {least}")
    check_repeatable(STEP, loop)
    names = names_in(func)
    size = maximum(least, ceildiv(n, maximum(1, ceildiv(n, most))))
    parts = ceildiv(n, maximum(1, size))
    outer = fresh_var(names, f"{base_name(v)}o", parts)
    inner = fresh_var(names, f"{base_name(v)}i", size)
    substitute_in(body_of(loop), {v: minimum(size * outer, n - size) + inner})
    inside = new_loop(inner, size, take_ops(body_of(loop)), loc=loop.loc)
    loop.attrs |= {"var": outer, "extent": parts, "overlap": True}
    put_ops(body_of(loop), [inside])
    return Split(loop, inside, None)
