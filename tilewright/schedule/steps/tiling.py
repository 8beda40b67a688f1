"""Loops split into tiles, and tiles into vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.loops.edit import extent_of
from tilewright.schedule.trace import Schedule


def tile_loop(s: Schedule, loop: Op, size: int, tail: str = "guard") -> tuple[list[Op], Op]:
    """The loop over tiles of `size` iterations, none where one tile is all, and the loop within a tile."""
    if extent_of(loop) == size:
        return [], loop
    parts = s.split(loop, size, tail=tail)
    return [parts.outer], parts.inner


def column_tiles(
    s: Schedule, vector: Op, block: Op | None, columns: int, lanes: int, tail: str = "guard"
) -> tuple[list[Op], list[Op]]:
    """Split columns, of which the layout itself may have the axis `block`: the loops over tiles, none where one is all,
    and the loops within one, the last over the lanes of a vector."""
    if block is not None:
        parts = s.split(block, columns)
        return [parts.outer], [parts.inner, vector]
    if extent_of(vector) == lanes:
        return [], [vector]
    around, vector = tile_loop(s, vector, columns * lanes, tail)
    return around, vectors_of(s, [vector], lanes)


def vectors_of(s: Schedule, loops: Sequence[Op], lanes: int) -> list[Op]:
    """Loops over the elements of a tile, the last of which is split into vectors where it is longer than one."""
    *others, vector = loops
    if not extent_of(vector).is_const or extent_of(vector).value <= lanes:
        return [*others, vector]
    around, vector = tile_loop(s, vector, lanes)
    return [*others, *around, vector]


def loop_around(s: Schedule, around: list[Op], tile: list[Op]) -> list[Op]:
    """The loops around a tile, of which sums need one to be computed in: made of the first of the tile's own where one
    tile is all."""
    if around:
        return around
    whole = s.split(tile[0], extent_of(tile[0]).value)
    tile[0] = whole.inner
    return [whole.outer]


def innermost_left(loops: Sequence[Op]) -> Op | None:
    """The innermost of nested loops that are left: loops of one iteration may be gone."""
    return next((o for o in reversed(loops) if o.parent is not None), None)
