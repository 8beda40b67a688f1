"""Cutting the iterations of a loop at a position."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import Sym, ge0, sym
from tilewright.loops.analysis.bounds import holds
from tilewright.loops.edit import (
    base_name,
    body_of,
    extent_of,
    fresh_var,
    insert_after,
    kind_of,
    loop_var,
    names_in,
    ranges_at,
    refuse,
    rename_vars,
    substitute_in,
)
from tilewright.loops.primitive import primitive


@primitive
def split_range(func: Func, loop: Op, position: Sym | int) -> tuple[Op, Op]:
    """Two loops in place of one; the first of them, up to `position`, keeps the identity of `loop`.

        for i in 0..n { S(i) }    ->    for i in 0..p { S(i) }; for i_1 in 0..n - p { S(i_1 + p) }

    What the position decides, such as `max(i, p)`, `simplify` can then decide in each of them. ScheduleError when the
    loop is not serial, or the position is not within 0..n for certain.
    """
    at = sym(position)
    n, v = extent_of(loop), loop_var(loop)
    if kind_of(loop) != "serial":
        refuse("split_range", loop, f"it is a {kind_of(loop)} loop")
    around = ranges_at(loop)
    if v in at.vars or not (holds(ge0(at), around) and holds(ge0(n - at), around)):
        refuse("split_range", loop, f"position {at} is not known to be within it")
    names = names_in(func)
    second = loop.clone({})
    second.attrs["var"] = fresh_var(names, base_name(v), n - at)
    second.attrs["extent"] = n - at
    substitute_in(body_of(second), {v: second.attrs["var"] + at})
    rename_vars(body_of(second).ops, names)
    loop.attrs["extent"] = at
    loop.attrs["var"] = fresh_var(names, base_name(v), at)
    substitute_in(body_of(loop), {v: loop.attrs["var"]})
    insert_after(loop, [second])
    return loop, second
