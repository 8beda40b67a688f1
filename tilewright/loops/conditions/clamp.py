"""Indices that stay within their limits, where conditions only keep loads from what does not matter."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import Sym, ge0, minimum
from tilewright.ir.symbolic.prove import affine_in
from tilewright.loops.analysis.bounds import holds
from tilewright.loops.edit import body_of, loop_var, ranges_at
from tilewright.loops.primitive import primitive


@primitive
def clamp(func: Func, loop: Op) -> Op:
    """Loads that may give any value where their conditions do not hold read the last element for which these do, as far
    as the conditions limit the variable of `loop` from above.

        for i in 0..6 { S(x[6*io + i, k if 6*io + i < n]) }

    becomes, where 6*io < n for certain,

        for i in 0..6 { S(x[6*io + min(i, n - 6*io - 1), k]) }

    so that the loops within decide nothing. A condition stays where no iteration is known to obey it.
    """
    v = loop_var(loop)
    for load in [op for op in body_of(loop).walk() if op.name == "load"]:
        if "guard" in load.attrs and "other" not in load.attrs:
            _clamp_load(load, v)
    return loop


def _clamp_load(load: Op, v: Sym) -> None:
    ranges = ranges_at(load)
    limits = {c: _limit_of(c, v) for c in load.attrs["guard"]}
    obeyed = {c: b for c, b in limits.items() if b is not None and holds(ge0(b), ranges)}
    if not obeyed:
        return
    nearest = {v: minimum(v, *obeyed.values())}
    load.attrs["idx"] = tuple(i.subs(nearest) for i in load.attrs["idx"])
    load.attrs["guard"] = tuple(c.subs(nearest) for c in load.attrs["guard"] if c not in obeyed)
    if not load.attrs["guard"]:
        del load.attrs["guard"]


def _limit_of(condition: Sym, v: Sym) -> Sym | None:
    """The greatest value of `v` that obeys the condition; None where it is no upper limit."""
    if condition.kind != "ge0":
        return None
    affine = affine_in(condition.args[0], v)
    return affine[1] if affine is not None and affine[0] == -1 else None
