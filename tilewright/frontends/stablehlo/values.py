"""What the results of ops are while a program is written: values, and what is no value of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tilewright.frontends.translation import type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ops.composites.complex import ComplexPair as ComplexPair


@dataclass(frozen=True, eq=False)
class LoopRows:
    """A tensor that a loop fills row by row, each trip its own: `update` is the row that this trip has put, None before
    it has. Nothing may read it."""

    state: int
    like: Value
    misread: set[int] = field(default_factory=set)
    """The states of the loop that were read nevertheless."""
    update: Value | None = None


Held = Value | ComplexPair | LoopRows
"""What the environment of an importer holds for a result."""


class ReadRowsError(UnsupportedError):
    """A tensor that was taken for rows of a loop is read otherwise."""

    def __init__(self, state: int) -> None:
        super().__init__("rows of a loop are read while they are made")
        self.state = state


def as_value(held: Held) -> Value:
    """The tensor; UnsupportedError for complex numbers."""
    if isinstance(held, LoopRows):
        held.misread.add(held.state)
        raise ReadRowsError(held.state)
    if isinstance(held, ComplexPair):
        raise UnsupportedError(
            "complex numbers are not supported here", hint="give real and imaginary parts as tensors of their own"
        )
    return held


def each(held: Held, apply: Callable[[Value], Value]) -> Held:
    """What a function that only moves elements makes of a tensor, or of both parts of complex numbers."""
    if isinstance(held, ComplexPair):
        return ComplexPair(apply(held.real), apply(held.imaginary))
    return apply(as_value(held))


def flat(held: Held) -> tuple[Value, ...]:
    """The tensors behind it."""
    if isinstance(held, ComplexPair):
        return (held.real, held.imaginary)
    return (as_value(held),)


def rank_of(held: Held) -> int:
    return type_of(flat(held)[0]).rank
