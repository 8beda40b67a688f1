"""Constant integers of a product that fit fewer bytes than the machine multiplies, or half a byte: whether they are
stored so, and widened each time that they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.core import begin_cycles, products_per_float, read_cycles, source_of
from tilewright.ir.dtype import DType
from tilewright.target.dots import Dot
from tilewright.target.target import Target

ROWS_OF_TILE = 6
"""Rows that share a vector of weights which has been read and widened."""

BYTES_CONVERTED = 2
"""Instructions that make floats of a vector of bytes: an extension and a conversion."""

ROWS_THAT_WAIT = 2
"""Rows at most whose weights of 16 bits the hardware's prefetchers bring as fast as memory gives them, as little is
done beside: requests only take turns with loads. One row by 65536 x 768 of bfloat16 takes 4.1 ms with them, 2.8
without; two 3.2 and 2.9; four 6.1 and 6.9 (Zen 4)."""

BYTES_EXTENDED = 2
"""Of weights that an instruction or two make floats."""


def waits_for_weights(rows: int, size: int) -> bool:
    """Whether a product of so many rows by weights from memory, of `size` bytes each, does so little that prefetch
    instructions only delay it."""
    return rows <= ROWS_THAT_WAIT and size >= BYTES_EXTENDED


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
    each = max(begin_cycles(1, "multiply_adds", target), begin_cycles(instructions, "arithmetic", target))
    multiplying = vectors * rows * each
    widening = begin_cycles(vectors * -(-rows // ROWS_OF_TILE), "arithmetic", target)
    source = source_of(all_weights, target)
    read, read_narrow = (read_cycles(weights * size, source, target) for size in (wide, narrow))
    return max(multiplying + widening, read_narrow) < max(multiplying, read)


LEAST_GROUP = 8
"""Elements of a column that share their factors, from which on these multiply the group's sum: of fewer, the sums of
groups cost more than the products that they save."""


def shares_factors(group: int) -> bool:
    """Whether what so many neighbours in a column share is better multiplied with their sum."""
    return group >= LEAST_GROUP


LEAST_ROUNDED_ROWS = 9
"""Rows from which on they are rounded to integers, for products of integers."""

ROUNDED_GROUP = 32
"""Neighbours of a row that share a scale when they are rounded: each group costs a conversion and two multiply-adds for
each of its sums, and longer ones are rounded by larger numbers."""


BITS_OF_FLOATS = 14
"""Of rows and of weights that are floats, where both are rounded: 8191 * 8192, 32 times, is below 2^31."""

ADDING_A_GROUP = 3
"""Instructions that add the integer sum of a group to a sum of floats: a conversion, and two factors."""


def share_of_rounded(dot: Dot, target: Target, group: int = ROUNDED_GROUP) -> float:
    """The time of sums of groups of integers, in that of the same sums of floats."""
    return 1 / products_per_float(dot, target) + ADDING_A_GROUP / group


def share_of_bytes(dot: Dot, target: Target, group: int = ROUNDED_GROUP, pieces: int = 2) -> float:
    """The same of sums of rows in so many bytes each, which `dot` multiplies one after the other. What brings the sums
    of a group together is done beside multiplications."""
    return pieces / products_per_float(dot, target) + ADDING_A_GROUP / group


def group_of_rounding(groups: Sequence[int], depth: int | None, together: int) -> int | None:
    """How many neighbours of a row are rounded alike, where the weights share factors in `groups` (the shortest last):
    a divisor of these and of the depth, of whole groups `together` in an instruction. None where there is none."""
    if depth is None:
        return None
    most = min([ROUNDED_GROUP, *groups])
    found = (n for n in range(most, LEAST_GROUP - 1, -1) if n % together == 0)
    return next((n for n in found if depth % n == 0 and all(g % n == 0 for g in groups)), None)


LONGEST_OF_HALVES = 1.15
"""How much longer a core that is alone may take for weights from memory in halves of bytes: all cores share what these
save, and they take half of the memory and of files."""


def lie_in_halves(rows: int, weights: int, all_weights: int, converting: float, target: Target) -> bool:
    """Whether so many weights that fit 4 bits, which a product of so many rows dequantises, are stored two in a byte:
    it reads half of the bytes, and takes them apart, by `converting` instructions for a vector of floats
    (`Target.half_bytes`). `all_weights` are those that products of the network read in turns."""
    stored = MemoryForm(BYTES_CONVERTED, weights), MemoryForm(converting, weights / 2)
    whole, half = (_cycles(rows, weights, all_weights, each, target) for each in stored)
    return half <= _worth(all_weights, target) * whole


@dataclass(frozen=True, slots=True)
class MemoryForm:
    """A form of weights: instructions that make a vector of floats of it, and bytes of all."""

    converting: float
    size: float


def _cycles(rows: int, weights: int, all_weights: int, stored: MemoryForm, target: Target) -> float:
    """Of a product by so many rows."""
    vectors = weights / target.f32_lanes
    multiplying = vectors * (1 + rows)  # by scales, and of each row
    arithmetic = begin_cycles(multiplying + vectors * stored.converting, "arithmetic", target)
    reading = read_cycles(stored.size, source_of(all_weights, target), target)
    return max(begin_cycles(multiplying, "multiply_adds", target), arithmetic, reading)


def _worth(all_weights: int, target: Target) -> float:
    return LONGEST_OF_HALVES if source_of(all_weights, target) == "memory" else 1


WORDS_CONVERTED = 2.25
"""Instructions that take a vector of floats from bytes of words: two, and one more for the highest of four."""
PLANES_JOINED = 0.75
"""And those that bring the fields of two planes together, of which four vectors are taken: shifts, and a selection."""


def lie_in_planes(
    rows: int, weights: int, all_weights: int, bits: int, dtype: DType, target: Target
) -> bool:
    """Whether so many weights of fewer bits than those of their `dtype` are stored in planes of words, as
    `lie_in_halves` decides for halves of bytes."""
    halves = target.half_bytes
    of_half = halves.signed if dtype.kind == "int" else halves.unsigned
    before = BYTES_CONVERTED if dtype.bits == 8 else of_half
    joined = PLANES_JOINED if bits & bits - 1 else PLANES_JOINED / 2
    stored = MemoryForm(before, weights * dtype.bits / 8), MemoryForm(WORDS_CONVERTED + joined, weights * bits / 8)
    whole, planes = (_cycles(rows, weights, all_weights, each, target) for each in stored)
    return planes <= _worth(all_weights, target) * whole
