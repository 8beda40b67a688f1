"""Taking the first and last iterations out of a loop."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, insert_before
from tilewright.ir.sym import sym
from tilewright.loops.edit import (
    body_of,
    extent_of,
    fresh_var,
    insert_after,
    iteration_of,
    kind_of,
    loop_var,
    names_in,
    refuse,
    substitute_in,
)
from tilewright.loops.primitive import primitive


@primitive
def peel(func: Func, loop: Op, first: int = 0, last: int = 0) -> Op:
    """Write the first and last iterations out beside the loop, where their conditions are decided.

        for i in 0..n { S(i) }    ->    S(0); for i in 0..n - 2 { S(i + 1) }; S(n - 1)        (first=1, last=1)

    The loop keeps its identity. ScheduleError when it is not serial, or may have no more than `first + last`
    iterations; of a number that is not constant, so many are enough.
    """
    n = extent_of(loop)
    if kind_of(loop) != "serial":
        refuse("peel", loop, f"it is a {kind_of(loop)} loop")
    if first < 0 or last < 0:
        refuse("peel", loop, f"{first} first and {last} last iterations are asked for")
    if (n.bounds[0] or 0) < first + last + n.is_const:
        refuse("peel", loop, f"its number of iterations must be above {first + last} for certain")
    names = names_in(func)
    before = [op for k in range(first) for op in iteration_of(loop, sym(k), names)]
    after = [op for k in range(last, 0, -1) for op in iteration_of(loop, n - k, names)]
    left = n - first - last
    v = fresh_var(names, loop_var(loop).name, left)
    substitute_in(body_of(loop), {loop_var(loop): v + first})
    loop.attrs["var"], loop.attrs["extent"] = v, left
    insert_before(loop, before)
    insert_after(loop, after)
    return loop
