"""Register tiles of windows (depthwise convolution, pooling, sums over outer axes): vectors that are summed at once."""

from __future__ import annotations

from tilewright.cost.core import begin_cycles
from tilewright.target.dots import Dot
from tilewright.target.target import VECTOR_BYTES, Target

CHAINS = 8
"""Independent sums that keep two units busy, each with a latency of four cycles."""

MOST_COLUMNS = 16
MOST_OF_A_LINE = 24
"""Columns of a tile along a line of the operand at most; a line is read in as few and as long runs as there are
registers for."""

OPERANDS = 4
"""Registers of a step beside the sums: weights, and elements that are being loaded."""

TILE_COST = 1.5
"""Time that the start and the end of a tile cost, in steps."""

VECTORS_OF_A_LINE = 2
"""Vectors of a tile along an axis of unknown extent: with more, fewer lines are long enough."""

SHORTER_LINES = 4
"""Tiles of the kernel for lines that are too short for the tiles of another are so many times shorter."""

FEWEST_LANES = 4
"""Lanes of vectors along an axis of unknown extent at least; kernels for shorter ones are not worth their code."""


def vectors_of_tile(lanes: int, element: int, count: int | None, along_line: bool, target: Target) -> int:
    """How many vectors of `lanes` elements are summed at once, of `count` there are (None: many), along the lanes' own
    line or along the axis next to it."""
    per_vector = (
        max(1, VECTOR_BYTES * 8 // target.vector_bits)
        if along_line
        else -(-lanes * element * 8 // target.vector_bits)
    )
    limit = MOST_OF_A_LINE if along_line else MOST_COLUMNS
    return choose_columns(count, per_vector, target.vector_registers, limit)


def adds_taps_in_groups(taps: int, dot: Dot, target: Target) -> bool:
    """Whether windows of so many bytes in a line, of each lane its own, are added up sooner by `dot`. The bytes of a
    group, which lie a vector apart, are brought together by an instruction that shuffles; without groups each byte is
    widened when it is loaded, and takes a multiply-add."""
    if not target.orders_bytes or dot.left.bits != 8:
        return False
    groups = -(-taps // dot.group)
    grouped = max(begin_cycles(groups, "multiply_adds", target), begin_cycles(2 * groups, "arithmetic", target))
    return grouped < begin_cycles(taps, "multiply_adds", target)


def choose_columns(count: int | None, per_vector: int, registers: int, limit: int = MOST_COLUMNS) -> int:
    """How many vectors to sum at once, of `count` there are (None: many), each of `per_vector` registers."""
    most = max(1, min(limit, (registers - OPERANDS * per_vector) // per_vector))
    if count is None:  # of few columns in a tile, few are too many in a line
        return min(most, max(1, CHAINS // per_vector))

    def cost(columns: int) -> tuple[float, int, int]:
        tiles = -(-count // columns)
        return tiles * (max(columns * per_vector, CHAINS) + TILE_COST), tiles * columns, -columns

    return min(range(1, min(most, count) + 1), key=cost)


def tile_of_any_line(lanes: int, most: int | None) -> int:
    """Elements of a tile of a line of unknown length, at most `most` (None: not known) of them; 0 where lines may be
    too short for a vector."""
    size = VECTORS_OF_A_LINE * lanes
    while most is not None and 2 * size > most:
        size //= SHORTER_LINES
    return size if size >= FEWEST_LANES else 0


def lanes_of_short_line(lanes: int, most: int | None) -> int:
    """Lanes of the one vector, under a mask, that lines of at most so many elements are; 0 where they may be longer
    than a vector, and for lines of one element."""
    if most is None or not 1 < most <= lanes:
        return 0
    size = lanes
    while size // 2 >= most:
        size //= 2
    return size
