"""Constant integers of a product that fit fewer bytes than the machine multiplies: whether they are stored so, and
widened each time that they are read."""

from __future__ import annotations

from tilewright.cost.core import read_cycles, source_of
from tilewright.target.dots import Dot
from tilewright.target.target import Target

ROWS_OF_TILE = 6
"""Rows that share a vector of weights which has been read and widened."""


def is_widened_when_read(
    rows: int, weights: int, narrow: int, all_weights: int, dot: Dot, target: Target
) -> bool:
    """Whether so many weights of `narrow` bytes, which `dot` takes wider, are stored as they are: few rows wait for
    what they read, many for one more instruction. `all_weights` are the bytes that products of the network read in
    turns, stored wide."""
    wide = dot.right.bytes
    if narrow >= wide:
        return False
    lanes = max(n for n, _ in dot.calls if 32 * n <= target.vector_bits)
    vectors = weights / (lanes * dot.group)
    instructions = 1 if dot.accumulates else 2
    multiplying = vectors * rows * max(1 / target.pipes.multiply_adds, instructions / target.pipes.arithmetic)
    widening = vectors * -(-rows // ROWS_OF_TILE) / target.pipes.arithmetic
    source = source_of(all_weights, target)
    read, read_narrow = (read_cycles(weights * size, source, target) for size in (wide, narrow))
    return max(multiplying + widening, read_narrow) < max(multiplying, read)
