"""Splitting a loop in two."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import ZERO, Sym, ceildiv, ge0, logical_not, minimum, sym
from tilewright.loops.analysis.deps import accesses, private_buffers, written_buffers
from tilewright.loops.analysis.region import region_of, written_first
from tilewright.loops.edit import (
    TakenNames,
    base_name,
    body_of,
    describe,
    enclosing_loops,
    extent_of,
    fresh_var,
    insert_after,
    kind_of,
    loop_var,
    names_in,
    new_if,
    new_loop,
    put_ops,
    ranges_of,
    refuse,
    rename_vars,
    set_kind,
    substitute_in,
    take_ops,
)
from tilewright.loops.order.parallel import check_independent
from tilewright.loops.primitive import primitive

TAILS = ("guard", "peel", "branch", "short", "overlap")


class Split(NamedTuple):
    """The loops that a split made; `tail` runs the last, incomplete tile (None where there is none), or the smaller
    tiles of the remainder."""

    outer: Op
    inner: Op
    tail: Op | None


@primitive
def split(func: Func, loop: Op, factor: int, tail: str = "guard", remainder: int = 0) -> Split:
    """`v` becomes `factor*vo + vi`; the outer loop keeps the identity (and kind) of `loop`.

        for v in 0..n { S }

    becomes with tail "guard"

        for vo in 0..ceildiv(n, 4) { for vi in 0..4 { if 4*vo + vi < n { S } } }

    with "peel"

        for vo in 0..n // 4 { for vi in 0..4 { S } }
        for vt in 0..n % 4 { S }

    and with "branch" (one outer loop, so that it can still be parallel)

        for vo in 0..ceildiv(n, 4) {
          if 4*vo + 3 < n { for vi in 0..4 { S } }
          if 4*vo + 3 >= n { for vt in 0..n % 4 { S } }
        }

    with "short"

        for vo in 0..ceildiv(n, 4) { for vi in 0..min(4, n - 4*vo) { S } }

    and with "overlap" (for an extent that is never below the factor) the last iteration starts early enough to be
    a whole one, and computes some elements a second time

        for vo in 0..ceildiv(n, 4) { for vi in 0..4 { S at min(4*vo, n - 4) + vi } }

    which is the same as long as an iteration depends on nothing that another writes, nor on what it changes
    itself: a second run must write the same. The outer loop is marked as `overlap`, so that the iterations that
    write one element twice still count as independent.

    With `remainder`, tail "overlap" makes tiles of so many iterations of what whole ones leave (for an extent that is
    never below that), the last of which starts early enough

        for vo in 0..n // 4 { for vi in 0..4 { S } }
        for vt in 0..ceildiv(n % 4, 2) { for vi in 0..2 { S at min(4*(n // 4) + 2*vt, n - 2) + vi } }

    No guard and no tail is made where the factor divides the extent for certain. ScheduleError for a factor
    below 1, an unknown tail, a vector or unrolled loop, for peeling a parallel loop, and for overlapping iterations of
    which a second run might write something else.
    """
    _check(loop, factor, tail, remainder)
    names = names_in(func)
    n, v = extent_of(loop), loop_var(loop)
    exact = n % factor is ZERO
    peels = not exact and (tail == "peel" or remainder > 0)
    iterations = n // factor if exact or peels else ceildiv(n, factor)
    outer = fresh_var(names, f"{base_name(v)}o", iterations)
    shortens = tail == "short" and not exact and not peels
    extent = minimum(factor, n - factor * outer) if shortens else sym(factor)
    inner = fresh_var(names, f"{base_name(v)}i", extent)
    overlaps = tail == "overlap" and not exact and not peels
    base = minimum(factor * outer, n - factor) if overlaps else factor * outer
    left: Op | None = None
    if not exact and remainder:
        left = _remainder_loop(loop, factor, remainder, names)
    elif not exact and tail in ("peel", "branch"):
        start = factor * (n // factor) if tail == "peel" else factor * outer
        left = _tail_loop(loop, start, n % factor, names)
    substitute_in(body_of(loop), {v: base + inner})
    inside = new_loop(inner, extent, take_ops(body_of(loop)), loc=loop.loc)
    loop.attrs["var"], loop.attrs["extent"] = outer, iterations
    put_ops(body_of(loop), [inside])
    if overlaps:
        loop.attrs["overlap"] = True
    elif left is None and not exact and not shortens:
        put_ops(body_of(inside), [new_if([ge0(n - 1 - factor * outer - inner)], take_ops(body_of(inside)))])
    elif left is not None and peels:
        insert_after(loop, [left])
    elif left is not None:
        full = ge0(n - factor - factor * outer)
        put_ops(body_of(loop), [new_if([full], [inside]), new_if([logical_not(full)], [left])])
    return Split(loop, inside, left)


def _check(loop: Op, factor: int, tail: str, remainder: int) -> None:
    if factor < 1 or remainder < 0:
        refuse("split", loop, f"the factor is {min(factor, remainder)}, it must be at least 1")
    if remainder and (tail != "overlap" or kind_of(loop) == "parallel"):
        refuse("split", loop, "smaller tiles at the end need tail 'overlap', and a serial loop")
    if tail not in TAILS:
        refuse("split", loop, f"tail '{tail}' is none of {', '.join(TAILS)}")
    if kind_of(loop) in ("vector", "unroll", "dot"):
        refuse("split", loop, f"it is a {kind_of(loop)} loop already; split it before that")
    if tail == "overlap":
        least = extent_of(loop).bounds[0]
        if least is None or least < (remainder or factor):
            refuse("split", loop, f"tail 'overlap' needs an extent that is never below {remainder or factor}")
        check_repeatable("split", loop)
    if tail == "peel" and kind_of(loop) == "parallel":
        refuse(
            "split", loop, 'peeling would leave work beside the parallel loop; use tail="branch" or "guard"'
        )


def check_repeatable(step: str, loop: Op) -> None:
    """ScheduleError when an iteration that runs a second time may read what the first time wrote, or what another one
    writes: it must overwrite whatever it reads and writes before it reads it."""
    check_independent(step, loop)
    body = accesses(body_of(loop))
    private = private_buffers(body_of(loop))
    for buffer in written_buffers(body) - private:
        found = [a for a in body if a.buffer is buffer]
        if any(not a.write for a in found):
            around = ranges_of([*enclosing_loops(loop), loop])
            if not written_first(found, region_of(step, buffer, found, around), around):
                refuse(
                    step, loop,
                    f"tail 'overlap' runs some iterations twice, and they change {describe(buffer)}, which they read",
                )  # fmt: skip


def _remainder_loop(loop: Op, factor: int, remainder: int, names: TakenNames) -> Op:
    """A copy of the loop for what tiles of `factor` iterations leave, in tiles of `remainder`."""
    n, v = extent_of(loop), loop_var(loop)
    count = ceildiv(n % factor, remainder)
    outer = fresh_var(names, f"{base_name(v)}t", count)
    inner = fresh_var(names, f"{base_name(v)}i", sym(remainder))
    copy = loop.clone({})
    substitute_in(body_of(copy), {v: minimum(factor * (n // factor) + remainder * outer, n - remainder) + inner})
    inside = new_loop(inner, sym(remainder), take_ops(body_of(copy)), loc=loop.loc)
    copy.attrs |= {"var": outer, "extent": count, "overlap": True}
    put_ops(body_of(copy), [inside])
    rename_vars(body_of(inside).ops, names)
    return copy


def _tail_loop(loop: Op, start: Sym, extent: Sym, names: TakenNames) -> Op:
    """A copy of the loop for the iterations from `start` on."""
    copy = loop.clone({})
    v = fresh_var(names, f"{base_name(loop_var(loop))}t", extent)
    substitute_in(body_of(copy), {loop_var(loop): start + v})
    copy.attrs["var"], copy.attrs["extent"] = v, extent
    set_kind(copy, "serial")
    rename_vars(body_of(copy).ops, names)
    return copy
