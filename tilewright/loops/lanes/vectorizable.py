"""Whether a vector loop can run in lanes, and in how many at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym
from tilewright.loops.edit import address_of
from tilewright.target.machine import REGISTERS

MOST_LANES = 64


def segments(extent: int) -> Iterator[tuple[int, int]]:
    """(first, lanes) of the pieces of a vector loop: powers of two, largest first."""
    first = 0
    while first < extent:
        lanes = min(MOST_LANES, 1 << ((extent - first).bit_length() - 1))
        yield first, lanes
        first += lanes


def why_serial(loop: Op) -> str | None:
    """Why the loop must run one iteration after the other; None when lanes do."""
    varying = {loop.attrs["var"], *_bound_inside(loop)}
    private = {op.result for op in loop.walk() if op.name == "alloc"}
    for op in loop.walk():
        if op is loop:
            continue
        if op.name == "for" and op.attrs["extent"].vars & varying:
            return "an inner loop's extent depends on the lane"
        if op.name == "alloc" and _space(op.result) != REGISTERS.name:
            return "scratch memory of each iteration"
        if op.name == "store" and op.operands[1] not in private and not _moves(op, varying):
            return "all lanes write one element"
        if op.name == "lanes_reduce":
            return "a reduction over other lanes"
    return None


def _bound_inside(loop: Op) -> set[Sym]:
    return {op.attrs["var"] for op in loop.walk() if op.name == "bind"}


def _space(value: Value) -> str:
    return value.buffer.space


def _moves(op: Op, varying: set[Sym]) -> bool:
    """Whether the address differs between lanes."""
    return not address_of(op).vars.isdisjoint(varying)
