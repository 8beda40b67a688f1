"""Broadcasting over dims that are not known when compiling: what two of them mean together.

A dim `a` beside a dim `b` may be the same size, or one of them may be 1. There are two programs for that. The one that
is used for nearly all calls takes them to be equal, and checks it. Where `both_meanings` is in effect while a model is
imported, the program is for all sizes: the common dim of `a` and `b` is `select(a == 1, b, a)`, and operands are
stretched to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tilewright.ir.sym import Sym, eq, logical_and, logical_or, may_be_one_beside, select, sure_broadcast, sym


@dataclass(frozen=True, slots=True)
class OpenDims:
    """Two dims that an operator broadcasts, and of which it is not known whether they are equal. They are taken for
    equal, unless they are `stretched`; `may_be_one` says that one of them may also be 1 while the other is not."""

    a: Sym
    b: Sym
    may_be_one: bool
    stretched: bool = False


_BOTH: ContextVar[bool] = ContextVar("both_meanings", default=False)
_NOTES: ContextVar[list[OpenDims] | None] = ContextVar("open_dims", default=None)


@contextmanager
def both_meanings() -> Iterator[None]:
    """Within, dims that are not known to be equal are not taken to be, where one of them may be 1."""
    token = _BOTH.set(True)
    try:
        yield
    finally:
        _BOTH.reset(token)


def have_both_meanings() -> bool:
    return _BOTH.get()


@contextmanager
def open_dims() -> Iterator[list[OpenDims]]:
    """Within, the dims of which it is not known whether they are equal are listed."""
    found: list[OpenDims] = []
    token = _NOTES.set(found)
    try:
        yield found
    finally:
        _NOTES.reset(token)


def note(found: Iterable[OpenDims]) -> None:
    """Tell the innermost `open_dims` around."""
    notes = _NOTES.get()
    if notes is not None:
        notes.extend(found)


def may_be_one(dim: Sym) -> bool:
    """Whether 1 is among the values that a dim may have."""
    low, high = dim.interval
    return not dim.is_const and low <= 1 <= high


def surely_different(a: Sym, b: Sym) -> bool:
    """Whether two dims differ for every value of their variables (`n` and `2*n` may both be 0)."""
    low, high = (a - b).interval
    return low > 0 or high < 0


def common_dim(a: Sym, b: Sym) -> Sym:
    """The broadcast of two dims; where it is not known, they are taken to be equal, the simpler preferred, or both
    meanings remain. The choice does not depend on the order of the two. ValueError where they never fit."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if (known := _known(a, b)) is not None:
        return known
    differ, either = surely_different(a, b), may_be_one_beside(a, b) or may_be_one_beside(b, a)
    if differ and not either:
        raise ValueError(f"dims {a} and {b} neither are equal nor is one of them 1")
    if either and (differ or _BOTH.get()):
        return _joint(_leaves(a) | _leaves(b))
    note([OpenDims(a, b, either)])
    return min(a, b, key=lambda d: (not d.is_const, len(str(d)), str(d)))


def require_broadcast(own: Sym, wanted: Sym, what: str) -> None:
    """ValueError when a dim can never be broadcast to another one; where it can, and it is not known whether it is the
    same, `open_dims` learns of it."""
    if own in (1, wanted) or _known(own, wanted) is wanted:
        return
    if surely_different(own, wanted):
        if not may_be_one(own):
            raise ValueError(f"{what} differ: {own} and {wanted}")
        return
    note([OpenDims(own, wanted, may_be_one_beside(own, wanted))])


def is_stretched(own: Sym, wanted: Sym) -> bool:
    """Whether an operand must be stretched along an axis, for position `i` of the result to be read there: its dim may
    be 1 where what is wanted is not."""
    if own == wanted or own == 1 or wanted == 1:
        return False
    known = _known(own, wanted)
    if known is not None:
        return known is wanted
    return may_be_one_beside(own, wanted) and (_BOTH.get() or surely_different(own, wanted))


def fits(own: Sym, wanted: Sym) -> Sym:
    """The condition under which an axis can be stretched to a common dim: the dims of which that is made are the same,
    or 1."""
    if _known(own, wanted) is wanted and _leaves(own).isdisjoint(_leaves(wanted)):
        return sym(1)
    others = _leaves(wanted) - _leaves(own)
    return logical_or(eq(own, 1), logical_and(*(logical_or(eq(d, 1), eq(d, own)) for d in others)))


def _known(a: Sym, b: Sym) -> Sym | None:
    """The broadcast of two dims, where one of them is made of the other, or cases of sizes show it."""
    ours, theirs = _leaves(a), _leaves(b)
    if ours <= theirs or theirs <= ours:
        return b if ours <= theirs else a
    return sure_broadcast(a, b)


def _joint(dims: frozenset[Sym]) -> Sym:
    """The common dim of several: the first that is not 1, and one that never is in place of them all."""
    ordered = sorted(dims, key=lambda d: (may_be_one(d), len(str(d)), d.sort_key))
    *others, joint = ordered[::-1]
    for d in others if may_be_one(joint) else ():
        joint = select(eq(d, 1), joint, d)
    return joint


def is_joint(dim: Sym) -> bool:
    """Whether an expression is the common dim of several."""
    return len(_leaves(dim)) > 1


def _leaves(dim: Sym) -> frozenset[Sym]:
    """The dims of which a common dim is made; the dim itself where it is none."""
    found: set[Sym] = set()
    while dim.kind == "select" and dim.args[0] is eq(dim.args[2], 1):
        found.add(dim.args[2])
        dim = dim.args[1]
    return frozenset((*found, dim))
