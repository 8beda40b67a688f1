"""Making one loop of two: nested loops into a flat one, neighbouring loops into one with both bodies."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, insert_before
from tilewright.loops.analysis.deps import accesses, conflicts, ordered
from tilewright.loops.edit import (
    base_name,
    block_of,
    body_of,
    describe,
    extent_of,
    fresh_var,
    is_loop,
    kind_of,
    loop_var,
    names_in,
    put_ops,
    ranges_at,
    refuse,
    substitute_in,
    take_ops,
)
from tilewright.loops.order.parallel import check_independent, is_independent
from tilewright.loops.primitive import primitive


@primitive
def collapse(func: Func, outer: Op, inner: Op) -> Op:
    """Two nested loops become one flat loop; it keeps the identity and kind of `outer`.

        for i in 0..m { for j in 0..n { S(i, j) } }    ->    for ij in 0..m*n { S(ij // n, ij % n) }

    ScheduleError when `inner` is not the only op of `outer`, when its extent reads the variable of `outer` or is 0,
    when one of them is a vector or unrolled loop, or when `outer` is parallel and the iterations of `inner`
    are not independent.
    """
    if body_of(outer).ops != [inner] or not is_loop(inner):
        refuse("collapse", outer, f"it must hold exactly {describe(inner)}")
    if loop_var(outer) in extent_of(inner).vars:
        refuse("collapse", inner, f"its extent reads '{loop_var(outer)}'")
    if extent_of(inner) == 0:
        refuse("collapse", inner, "it never runs")
    for loop in (outer, inner):
        if kind_of(loop) in ("vector", "unroll", "dot"):
            refuse("collapse", loop, f"it is a {kind_of(loop)} loop already")
    if kind_of(outer) == "parallel":
        check_independent("collapse", inner)
    if "boustrophedon" in outer.attrs and not is_independent(inner):
        del outer.attrs["boustrophedon"]  # the iterations of the inner loop would run backwards as well
    overlap = _overlap(outer, inner)
    n = extent_of(inner)
    total = extent_of(outer) * n
    flat = fresh_var(names_in(func), f"{base_name(loop_var(outer))}{base_name(loop_var(inner))}", total)
    ops = take_ops(body_of(inner))
    put_ops(body_of(outer), ops)
    substitute_in(body_of(outer), {loop_var(outer): flat // n, loop_var(inner): flat % n})
    outer.attrs["var"], outer.attrs["extent"] = flat, total
    _mark(outer, overlap)
    return outer


def _overlap(first: Op, second: Op) -> bool:
    """Whether the loop made of both may count as one that only computes some values twice: one of them does, and no
    iterations of either meet otherwise."""
    marked = any(loop.attrs.get("overlap") for loop in (first, second))
    return marked and is_independent(first) and is_independent(second)


def _mark(loop: Op, overlap: bool) -> None:
    if overlap:
        loop.attrs["overlap"] = True
    else:
        loop.attrs.pop("overlap", None)


@primitive
def fuse(func: Func, first: Op, second: Op) -> Op:
    """Two neighbouring loops of the same extent become one that runs both bodies; it is `first`.

        for i in 0..n { S(i) }
        for j in 0..n { T(j) }       ->    for i in 0..n { S(i); T(i) }

    What stands between them (buffers, their first values) moves before the first. ScheduleError when they are
    not of the same block, extent and kind, when they are parallel, when something between them has to stay there, or
    when T(i) may touch what S writes (or write what S reads) in a later iteration.
    """
    block = block_of(first)
    if second.parent is not block or block.ops.index(second) <= block.ops.index(first):
        refuse("fuse", first, f"{describe(second)} does not follow it directly")
    if extent_of(first) != extent_of(second) or kind_of(first) != kind_of(second):
        refuse("fuse", first, f"{describe(second)} differs in extent or kind")
    if kind_of(first) == "parallel":
        refuse("fuse", first, f"{describe(second)} waits for all threads of the first")
    between = _movable(first, second)
    overlap = _overlap(first, second)
    v = loop_var(first)
    written = [(op, dict(op.attrs)) for op in body_of(second).walk()]
    substitute_in(body_of(second), {loop_var(second): v})
    a, b = accesses(body_of(first)), accesses(body_of(second))
    outer = ranges_at(first)
    for x, y in conflicts(a, b):
        if not ordered(x, y, first, outer):
            for op, attrs in written:
                op.attrs = attrs
            refuse(
                "fuse", first,
                f"the second's {y.place} of {describe(x.buffer)} may come before a later {x.place}",
            )  # fmt: skip
    block.ops = [op for op in block.ops if op not in between]
    insert_before(first, between)
    ops = take_ops(body_of(second))
    block.ops.remove(second)
    second.parent = None
    put_ops(body_of(first), [*body_of(first).ops, *ops])
    _mark(first, overlap)
    first.attrs.pop("boustrophedon", None)  # in another order an iteration may meet one of the other loop's
    return first


def _movable(first: Op, second: Op) -> list[Op]:
    """The ops between two loops of a block, if they may as well happen before the first."""
    ops = block_of(first).ops
    between = ops[ops.index(first) + 1 : ops.index(second)]
    for op in between:
        if op.blocks or op.name in ("bind", "check"):
            refuse(
                "fuse", first, f"{describe(second)} does not follow it directly, but {describe(op)}"
            )
    for x, y in conflicts(accesses(first), accesses(between)):
        refuse("fuse", first, f"{y.place} after it uses {describe(x.buffer)}, as it does")
    return between
