"""Layouts of convolutions: blocks of channels, positions in the place of channels, and groups as an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tilewright.cost.core import (
    begin_cycles,
    is_kept,
    lanes_of,
    multiply_cycles,
    pass_cycles,
    read_cycles,
    spare_arithmetic,
)
from tilewright.cost.gemm.register_tile import GemmShape, candidate_tiles, cost_of_step, registers_per_vector
from tilewright.target.target import LINE_BYTES, VECTOR_BYTES, Target

LEAST_FILTERS = 8
"""Filters from which on blocks are used: fewer would leave most lanes of a block empty."""

MOST_GAPS = 4 / 3
"""Blocks that channels with gaps may take, as a multiple of those that all of them would fill without, so that no
channel has to move."""

FEWEST_GROUPS = 8
"""Groups of positions in a line, below which a tile has too few sums to keep the units busy."""

ELEMENT = 4
"""Bytes of an element of data in blocks of channels."""

PASSES = 2
"""Passes over an image that a change of its layout takes: it is read and written."""

LEAST_TAPS = 5
"""Taps along a line whose conditions take longer than another pass over the data."""

UNALIGNED = 0.1
"""Share of the time of products that vectors along positions take longer than those along filters: they begin anywhere,
and cross cache lines."""

BLOCK = 16
"""Filters whose results lie in one block of channels, the lanes of a register tile that writes blocks."""


def fills_blocks(filters: int) -> bool:
    """Whether so many filters are enough for blocks of channels."""
    return filters >= LEAST_FILTERS


def keep_gaps(filled: Sequence[int], together: int) -> bool:
    """Whether parts of channels that fill blocks of their own may stay in them, where all fill `together` blocks."""
    return sum(filled) <= MOST_GAPS * together


def blocks_fill_lanes(positions: Sequence[int], inputs: int, outputs: int, target: Target) -> bool:
    """Whether lanes along positions, of which there may be so many, would be idle for longer than it takes to bring the
    channels of a 1x1 convolution into blocks and out of them."""
    lanes = VECTOR_BYTES // ELEMENT
    idle = fmean(-(-n // lanes) * lanes / n - 1 for n in positions)
    changes = pass_cycles(PASSES, target) * (inputs + outputs) / lanes
    return idle * multiply_cycles(inputs * outputs, ELEMENT, target) > changes


def leaves_blocks(terms: int, filters: int, target: Target) -> bool:
    """Whether a result whose elements are sums of so many terms is better computed in blocks that it leaves at once
    than with lanes along positions, which are loaded anew for each term."""
    lanes = VECTOR_BYTES // ELEMENT
    changes = pass_cycles(PASSES, target) / lanes
    return filters % BLOCK == 0 and UNALIGNED * multiply_cycles(terms, ELEMENT, target) > changes


def writes_padding(taps: int) -> bool:
    """Whether lines of unknown length are better written with their padding before windows of so many taps, which have
    conditions at every position otherwise: where lines end is not known."""
    return taps >= LEAST_TAPS


def positions_as_channels(positions: int | None, taps: int, stride: int, block: int, target: Target) -> bool:
    """Whether a convolution with one filter of so many taps is better computed with `block` positions in the place of
    channels. Its lines have `positions` results, None where that is not known."""
    if positions is not None and positions < FEWEST_GROUPS * block:
        return False
    by_positions = (taps + (block - 1) * stride) * multiply_cycles(1, ELEMENT, target)
    return by_positions <= taps * _cycles_along_line(stride, target)


def _cycles_along_line(stride: int, target: Target) -> float:
    """Cycles of a product of one element with vectors along positions: these are read anew for each product and cross
    cache lines; with a stride between positions they are shuffled, in units that do not multiply."""
    width = lanes_of(8, target)
    shuffled = 0.0 if stride == 1 else 1 / spare_arithmetic(target)
    return (begin_cycles(1 + width / LINE_BYTES, "loads", target) + shuffled) * ELEMENT / width


def blocks_lie_within_groups(filters: int) -> bool:
    """Whether blocks of channels of the result lie within groups of so many filters: lanes of several groups would each
    read other data."""
    return filters % BLOCK == 0


@dataclass(frozen=True, slots=True)
class GroupedLines:
    """The results of a convolution with `groups` (of all images): `rows` filters of each and `lines` of `line` results,
    `pitch` apart in the padded data, whose sums have `depth` terms of `channels` channels of `element` bytes."""

    groups: int
    rows: int
    lines: int
    line: int
    pitch: int
    channels: int
    depth: int
    element: int


def positions_over_lines(shape: GroupedLines, target: Target | None) -> bool:
    """Whether vectors over the positions of all lines take fewer cycles than vectors of single lines, with the passes
    over the data that are written with padding, and over the sums that are cut."""
    if target is None:
        return False
    lanes = max(1, VECTOR_BYTES // shape.element)
    whole = -(-shape.line // lanes)
    single = shape.lines * _cycles_of_tiles(shape, whole, lanes, target)
    joined = _cycles_of_tiles(shape, -(-shape.lines * shape.pitch // lanes), lanes, target)
    vectors = shape.groups * (shape.channels + shape.rows) * shape.lines * whole
    passes = pass_cycles(vectors, target)
    size = shape.groups * (shape.channels + shape.rows) * shape.lines * shape.pitch * shape.element
    if not is_kept(size, target):
        passes += read_cycles(2 * size, "l3", target)
    return joined + passes < single


def _cycles_of_tiles(shape: GroupedLines, columns: int, lanes: int, target: Target) -> float:
    """Cycles of all groups for `columns` vectors, in the best register tiles."""
    found = GemmShape(shape.rows, columns, shape.depth, lanes, shape.element)
    tile = candidate_tiles(found, target)[0]
    registers = tile.columns * registers_per_vector(lanes, shape.element, target)
    count = -(-shape.rows // tile.rows) * -(-columns // tile.columns)
    return shape.groups * count * shape.depth * cost_of_step(tile.rows, registers, target)
