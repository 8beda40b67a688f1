"""Layouts of convolutions: blocks of channels, positions in the place of channels, and groups as an axis."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.core import is_kept
from tilewright.target.target import VECTOR_BYTES, Target

LEAST_FILTERS = 8
"""Fewer filters than these would leave most lanes of a block empty."""

MOST_GAPS = 4 / 3
"""Of the blocks that all channels together fill, how many they may lie in so that none has to move."""

FEWEST_GROUPS = 8
"""Groups of positions in a line, below which a tile has too few sums to keep the units busy."""

MOST_WORK, MOST_WORK_STRIDED = 1.3, 4.0
"""Taps with the added ones to taps without. Vectors along positions are read anew for each product, at half the rate
of multiplications as they cross cache lines; with a stride between positions, at a quarter."""

NEAR_PASSES, FAR_PASSES = 20, 64
"""Products of a lane in the time in which an element is written with padding, and cut out of the sums again: within
L2, and beyond."""

ROWS_OF_TILES = 8
"""Filters of a group that register tiles of all filters do not cross."""


def fills_blocks(filters: int) -> bool:
    """Whether so many filters are enough for blocks of channels."""
    return filters >= LEAST_FILTERS


def keep_gaps(filled: Sequence[int], together: int) -> bool:
    """Whether parts of channels that fill blocks of their own may stay in them, where all fill `together` blocks."""
    return sum(filled) <= MOST_GAPS * together


def positions_as_channels(positions: int | None, taps: int, stride: int, block: int) -> bool:
    """Whether a convolution with one filter of so many taps is better computed with `block` positions in the place of
    channels. Its lines have `positions` results, None where that is not known."""
    if positions is not None and positions < FEWEST_GROUPS * block:
        return False
    most = MOST_WORK if stride == 1 else MOST_WORK_STRIDED
    return taps + (block - 1) * stride <= most * taps


def tiles_lie_within_groups(filters: int) -> bool:
    """Whether register tiles over all filters lie within groups of so many of them."""
    return filters % ROWS_OF_TILES == 0


def positions_over_lines(
    line: int, pitch: int, terms: int, size: int, element: int, target: Target | None
) -> bool:
    """Whether vectors over the positions of all lines, `pitch` apart, fill so many more lanes than vectors of single
    lines of `line` results that it pays for writing the padded data and cutting the result, which has `size` bytes.
    Each result is a sum of so many terms."""
    lanes = max(1, VECTOR_BYTES // element)
    saved = terms * (-(-line // lanes) * lanes - pitch) / line
    is_near = target is not None and is_kept(size, target)
    return saved > (NEAR_PASSES if is_near else FAR_PASSES)
