"""Splitting a loop so that its inner iterations lie far apart."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import ZERO, sym
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
from tilewright.loops.order.parallel import check_independent
from tilewright.loops.order.split import Split, check_repeatable
from tilewright.loops.primitive import primitive

STEP = "strided_split"


@primitive
def strided_split(func: Func, loop: Op, parts: int, overlap: bool = False) -> Split:
    """`v` becomes `vo + n/parts * vi`; the outer loop keeps the identity (and kind) of `loop`.

        for v in 0..n { S }    ->    for vo in 0..n // 2 { for vi in 0..2 { S at vo + n // 2 * vi } }

    With `overlap` the number of parts need not divide the extent: each part but the last goes on into the next one, and
    these iterations run twice, as for `split`

        for v in 0..n { S }    ->    for vo in 0..n // 2 + n % 2 { for vi in 0..2 { S at vo + n // 2 * vi } }

    ScheduleError when the number of parts is below 1 or does not divide the extent, for a vector or unrolled loop, and
    when two iterations may touch the same element of a buffer that one of them writes, or change what they read in two
    runs.
    """
    n, v = extent_of(loop), loop_var(loop)
    exact = n % sym(parts) is ZERO if parts > 0 else False
    if kind_of(loop) not in ("serial", "parallel"):
        refuse(STEP, loop, f"it is a {kind_of(loop)} loop")
    if parts < 1 or not (exact or overlap):
        refuse(STEP, loop, f"{parts} parts do not divide its extent")
    if not exact and (n.bounds[0] or 0) < parts:
        refuse(STEP, loop, f"it may have fewer iterations than {parts}")
    check_independent(STEP, loop) if exact else check_repeatable(STEP, loop)
    names = names_in(func)
    distance = n // parts
    iterations = distance if exact else n - (parts - 1) * distance
    outer = fresh_var(names, f"{base_name(v)}o", iterations)
    inner = fresh_var(names, f"{base_name(v)}i", sym(parts))
    substitute_in(body_of(loop), {v: outer + distance * inner})
    inside = new_loop(inner, sym(parts), take_ops(body_of(loop)), loc=loop.loc)
    loop.attrs["var"], loop.attrs["extent"] = outer, iterations
    put_ops(body_of(loop), [inside])
    if not exact:
        loop.attrs["overlap"] = True
    return Split(loop, inside, None)
