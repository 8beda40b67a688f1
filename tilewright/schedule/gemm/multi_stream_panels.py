"""Constant columns that are read once, in several streams.

Memory hands over more when the hardware's prefetchers follow several runs of addresses at a time than when all that a
step of the sum reads lies together. The vectors of a tile's columns are therefore cut into groups, each of which is
packed as a run of its own, for all steps:

    tile, step, vector, lane    ->    tile, group, step, vector in the group, lane
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.gemm.panels import streams_of
from tilewright.cost.gemm.register_tile import Tile
from tilewright.ir.core import Op
from tilewright.loops.edit import extent_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def cut_in_streams(s: Schedule, loops: list[Op], tile: Tile, element: int, target: Target) -> Op | None:
    """Split the loop over the vectors of a tile, of whose `loops` it is the last but one, into streams of constants of
    so many bytes an element; gives the loop over streams, None where there is only one."""
    streams = streams_of(tile, element, target)
    if streams == 1 or extent_of(loops[-2]) != tile.columns:
        return None
    parts = s.split(loops[-2], tile.columns // streams)
    loops[-2:] = [parts.outer, parts.inner, loops[-1]]
    return parts.outer


def order_of_streams(outer: Sequence[Op], tile: Sequence[Op], nontemporal: Op | None) -> list[Op]:
    """The loops in the order in which their constants are packed: each stream with all its steps."""
    if nontemporal is None:
        return [*outer, *tile]
    return [nontemporal, *outer, *(o for o in tile if o is not nontemporal)]
