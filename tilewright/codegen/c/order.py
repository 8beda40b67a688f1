"""Loops that are written in another order than the program has them: around sums in registers that of the lanes first.

Compilers unroll an innermost loop of 16 lanes before they look for vectors, and then make vectors of the rows, whose
elements lie apart. With the loop of the rows inside, that of the lanes is the one of which they make vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Op
from tilewright.ir.sym import Sym
from tilewright.target.machine import REGISTERS

_MORE = frozenset({"alloc", "barrier", "bind", "check", "lanes_reduce", "prefetch", "wait"})
"""Ops that do more than to compute a value of a lane, or to load or store it."""


def nest_of(loop: Op) -> tuple[Sequence[Op], Block]:
    """A loop with those that stand alone in it, in the order in which they are written, and the block within."""
    rows, inner = [], loop
    while inner.attrs["kind"] == "unroll" and len(inner.blocks[0].ops) == 1 and inner.blocks[0].ops[0].name == "for":
        rows.append(inner)
        inner = inner.blocks[0].ops[0]
    if rows and inner.attrs["kind"] == "vector" and _adds_up(inner.blocks[0], inner.attrs["var"], rows):
        return [inner, *rows], inner.blocks[0]
    return [loop], loop.blocks[0]


def _adds_up(block: Block, lane: Sym, rows: Sequence[Op]) -> bool:
    """Whether all that a block of lanes changes are sums in registers of which each lane has its own: then the sums of
    a lane are the same when its rows come one after the other."""
    if any(op.blocks or op.name in _MORE for op in block.ops):
        return False
    places = {op.operands[1]: op.attrs["idx"] for op in block.ops if op.name == "store"}
    read = [op for op in block.ops if op.name == "load" and op.operands[0] in places]
    touched = [*read, *(op for op in block.ops if op.name == "store")]
    names = {row.attrs["var"].name for row in rows}
    return bool(read) and all(
        op.attrs["idx"] == places[buffer]
        and buffer.buffer.space == REGISTERS.name
        and any(_is_of_lane(i, lane, names) for i in op.attrs["idx"])
        for op in touched
        for buffer in op.operands[-1:]
    )


def _is_of_lane(index: Sym, lane: Sym, rows: set[str]) -> bool:
    """Whether an index says which lane it is, whatever the rows are."""
    rest = index - lane
    return lane.name not in {v.name for v in rest.vars} and rows.isdisjoint(v.name for v in rest.vars)
