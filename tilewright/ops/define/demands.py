"""What rules of operators demand of dims: who asks learns of those demands that a rule could not decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.ir.sym import Sym, eq
from tilewright.ops.define.broadcasting import surely_different

Demand = tuple[Sym, str]
"""A condition on dims that a rule takes for granted without knowing it, and what is wrong where it does not hold."""

_HEARS: ContextVar[Callable[[Demand], None] | None] = ContextVar("hears", default=None)


def require_equal_dim(a: Sym, b: Sym, what: str) -> None:
    """ValueError when two dims that must agree cannot; where they may, who listens learns of it."""
    if surely_different(a, b):
        raise ValueError(f"{what} differ: {a} and {b}")
    require(eq(a, b), f"{what} differ")


def require(condition: Sym, wrong: str) -> None:
    """ValueError, which says what is wrong, when a condition on dims never holds; where it may, who listens learns of
    it."""
    if condition.is_const:
        if not condition.value:
            raise ValueError(wrong)
    elif (hears := _HEARS.get()) is not None:
        hears((condition, wrong))


@contextmanager
def hearing(hears: Callable[[Demand], None] | None) -> Iterator[None]:
    """Within, `hears` is told of undecided demands; nobody where it is None."""
    token = _HEARS.set(hears)
    try:
        yield
    finally:
        _HEARS.reset(token)


@contextmanager
def undecided() -> Iterator[list[Demand]]:
    """Within, undecided demands are listed."""
    found: list[Demand] = []
    with hearing(found.append):
        yield found
