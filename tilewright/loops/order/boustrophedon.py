"""Running a loop from its first iteration and from its last in turns."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.loops.edit import describe, extent_of, is_inside, kind_of, loop_var, refuse
from tilewright.loops.order.parallel import check_independent
from tilewright.loops.primitive import primitive


@primitive
def boustrophedon(func: Func, loop: Op, around: Op) -> Op:
    """Run the iterations of `loop` from the last one to the first in every other iteration of the loop `around` it.

        for t { for j { S(t, j) } }    ->    for t { for j with {alternate=t} { S(t, j) } }

    What the last iterations of `loop` left in a cache that is too small for all of them is so the first that is read in
    the next iteration of `around`. ScheduleError when `loop` is not within `around`, is neither serial nor parallel, or
    when two of its iterations may touch the same element of a buffer that one of them writes.
    """
    if not is_inside(loop, around):
        refuse("boustrophedon", loop, f"it is not in {describe(around)}")
    if kind_of(loop) not in ("serial", "parallel"):
        refuse("boustrophedon", loop, f"it is a {kind_of(loop)} loop")
    if extent_of(loop) == 1:
        refuse("boustrophedon", loop, "it has one iteration")
    check_independent("boustrophedon", loop)
    loop.attrs["boustrophedon"] = loop_var(around)
    return loop
