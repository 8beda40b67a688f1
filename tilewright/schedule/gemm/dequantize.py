"""Where quantised weights are dequantised: once for a panel of columns, or in registers in each step of the sums.

A panel is filled once and read by all rows; a step in registers needs neither loads nor stores of its elements, but
repeats the conversion for every tile of rows. So it is done where these are one tile.

Weights of 4 bits are the halves of bytes: each byte holds an element and the one below it in the same column, so that
one load and a shift give two whole vectors. A step is then two steps of the sums. Those of 1 and 2 bits, and those of 4
that are computed from them as well, are fields of words, whose bytes have four neighbours in a column: a step is four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

from tilewright.cost.core import divisors
from tilewright.cost.narrow_weights import LEAST_GROUP, shares_factors
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym, var
from tilewright.loops.analysis.fields import field_bits
from tilewright.loops.edit import buffer_type, extent_of, loop_var, reason_of
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.packing import FIELD_BITS, WORD_BYTES
from tilewright.loops.sums.factor_out import Factored
from tilewright.schedule.gemm.register_tile import Nest, TileSums, mark
from tilewright.schedule.steps.access import loads_in, stores_in, stride_in, variables
from tilewright.schedule.steps.tiling import vectors_of
from tilewright.schedule.trace import Schedule

MOST_UNROLLED = 16
"""Vectors of a panel that are dequantised in one iteration."""

PAIR = 2
"""Elements of a byte."""


@dataclass(frozen=True, eq=False)
class Dequantized:
    """The loops that compute weights, the vector last, and the one over elements of which so many (`count`) are taken
    together, from bytes or `in_words`, if there are such: one of them, or one around them."""

    loops: list[Op]
    together: Op | None
    count: int = 1
    in_words: bool = False


def split_weights(lowered: Lowered) -> tuple[list[Stage], Lowered]:
    """The stages before the first reduction, which compute its operands from constants, and the other stages."""
    first = next((k for k, st in enumerate(lowered.stages) if st.kind == "reduce"), 0)
    return lowered.stages[:first], Lowered(lowered.func, lowered.stages[first:])


def taken_together(s: Schedule, weights: Stage) -> int:
    """How many neighbours in a column a stage computes from elements of less than a byte together: those of a byte, or
    those of all bytes of a word. 1 where it reads no such, or the depth is no multiple."""
    bits = bits_of_fields(s, weights)
    if not bits:
        return 1
    extent, least = extent_of(weights.axes[-2]), min(bits)
    if least >= FIELD_BITS[-1]:
        return PAIR if extent % PAIR == 0 else 1
    return WORD_BYTES if extent % (WORD_BYTES * 8 // least) == 0 else 1


def bits_of_fields(s: Schedule, weights: Stage) -> list[int]:
    """Bits of the elements of less than a byte that a stage reads of constants along its columns; none where others are
    among them."""
    if len(weights.axes) < 2:
        return []
    v, constants = loop_var(weights.axes[-2]), constants_of(s.func)
    loads = [load for load in loads_in(weights.axes[0]) if v in load.attrs["idx"]]
    bits = {load: field_bits(buffer_type(load.operands[0]).dtype) for load in loads}
    short = [load for load in loads if bits[load]]
    return [bits[load] for load in short] if all(load.operands[0] in constants for load in short) else []


def steps_widened(s: Schedule, weights: Sequence[Stage]) -> int:
    """Steps of the sums whose weights are widened together."""
    return max((taken_together(s, w) for w in weights), default=1)


def groups_of_factors(weights: Stage) -> list[int]:
    """How many neighbours in a column share parts of what they are computed from: the shortest such groups last, which
    share all but their own elements. Empty where no number of them, of those that divide the depth, does, and where
    nothing that they share differs from group to group."""
    if len(weights.axes) < 2 or not extent_of(depth := weights.axes[-2]).is_const:
        return []
    v = loop_var(depth)
    sizes = [n for n in reversed(divisors(extent_of(depth).value)) if shares_factors(n)]
    loads = [load for load in loads_in(weights.axes[0]) if v in variables(load.attrs["idx"])]
    found = {next((n for n in sizes if _stays(load, v, n)), 0) for load in loads} - {0}
    groups = sorted(found, reverse=True)
    return groups if all(a % b == 0 for a, b in pairwise(groups)) else []


def are_floats(weights: Stage) -> bool:
    """Whether elements of a column are computed from floats of their own."""
    if len(weights.axes) < 2:
        return False
    v = loop_var(weights.axes[-2])
    own = [load for load in loads_in(weights.axes[0]) if not _stays(load, v, LEAST_GROUP)]
    return any(buffer_type(load.operands[0]).dtype.is_float for load in own)


def _stays(load: Op, v: Sym, count: int) -> bool:
    """Whether a load reads the same place for `count` values of v from any multiple of that on."""
    group, within = var("group"), var("within", 0, count - 1)
    return all(within not in i.subs({v: group * count + within}).vars for i in load.attrs["idx"])


def has_factors(weights: Stage) -> bool:
    """Whether elements are more than converted."""
    return any(scalar_operation(op).linear for op in weights.axes[0].walk())


def step_of_groups(s: Schedule, sums: TileSums, sizes: Sequence[int]) -> TileSums:
    """Split the sums into groups of so many terms, which may be in larger ones; the loop within a group is the last."""
    return replace(sums, add=replace(sums.add, outer=split_in_groups(s, sums.add.outer, sizes)))


def split_in_groups(s: Schedule, loops: Sequence[Op], sizes: Sequence[int]) -> list[Op]:
    """Split the last loop into groups of these sizes, the largest first."""
    *outer, last = loops
    for size in sizes:
        if extent_of(last) != size:
            parts = s.split(last, size)
            outer, last = [*outer, parts.outer], parts.inner
    return [*outer, last]


def sum_by_groups(s: Schedule, sums: TileSums, within: Op, lanes: int) -> Factored:
    """Sum each group from nothing in registers; what its elements share multiplies its sum."""
    try:
        made = s.factor_out(sums.buffer, within)
    except ScheduleError as e:
        s.missed.append(f"factors of weights multiply each of them: {reason_of(e)}")
        parts = s.rfactor(sums.buffer, within)
        made = Factored(parts.buffer, parts.clear, parts.add)
    return replace(made, clear=vectors_of(s, made.clear, lanes), add=vectors_of(s, made.add, lanes))


def mark_groups(s: Schedule, groups: Factored, lanes: int) -> None:
    """The loops of what `sum_by_groups` made become instructions one after the other."""
    for loops in (groups.clear, groups.add):
        mark(s, Nest([], loops), clamped=False)
    if groups.alone is None:
        return
    *others, terms = [o for o in groups.alone.terms if o.parent is not None]
    for loop in reversed(others):
        terms = s.collapse(loop, terms)
    count = extent_of(terms).value
    summed = s.vectorize_reduction(terms, gcd(count, lanes))
    for loop in (*groups.alone.clear, *groups.alone.sums, summed.outer):
        if loop.parent is not None:
            s.unroll(loop)


def step_together(s: Schedule, sums: TileSums, count: int) -> tuple[TileSums, Op]:
    """Make so many steps of the sums one; and the loop over these."""
    *outer, step = sums.add.outer
    parts = s.split(step, count)
    nest = Nest([*outer, parts.outer, parts.inner], sums.add.tile, sums.add.group)
    return replace(sums, add=nest), parts.inner


def dequantize(
    s: Schedule,
    weights: Stage,
    around: Sequence[Op],
    step: Op | None,
    lanes: int,
    *,
    together: int,
    groups: Sequence[int],
) -> Dequantized:
    """Compute the weights for a panel of columns where the loops `around` the sums come to it, or, where `step` is
    given, for each iteration of that loop of the sum, in registers; so many neighbours in a column `together`, and by
    groups that share factors."""
    if step is None:
        loads = [load for load in loads_in(around[0]) if load.operands[0] is weights.buffer]
        panel = [o for o in around if any(stride_in(load, loop_var(o)) != 0 for load in loads)]
        made = s.compute_at(weights.buffer, panel[-1] if panel else around[0], guard="loads")
    else:
        made = s.compute_at(weights.buffer, step, space="reg", guard="loads")
    loops = [made.copies[o] for o in weights.axes]
    if step is None:  # what they share is packed in the order of kernels that sum by groups
        loops = [*split_in_groups(s, loops[:-1], groups), loops[-1]]
    if together == 1:
        return Dequantized(vectors_of(s, loops, lanes), None)
    *others, depth, vector = loops
    within = [depth]
    if extent_of(depth) != together:
        parts = s.split(depth, together)
        within = [parts.outer, parts.inner]
    return Dequantized(
        vectors_of(s, [*others, *within, vector], lanes), within[-1], together, together == WORD_BYTES
    )


def widen_by_columns(
    s: Schedule, sums: TileSums, weights: Dequantized, taken: Op
) -> tuple[TileSums, Dequantized]:
    """Where elements are `taken` together, widen and multiply one vector of columns after the other: those of a whole
    step would be more than registers hold, unless they are pairs of few columns."""
    if weights.together is None or taken.parent is None:
        return sums, weights
    within = weights.loops.index(weights.together) + 1
    filled = [o for o in weights.loops[within:-1] if o.parent is not None]
    *tile, vector = sums.add.tile
    widened = {store.operands[1] for store in stores_in(weights.loops[-1])}
    moving = variables(i for load in loads_in(taken) if load.operands[0] in widened for i in load.attrs["idx"])
    read = [o for o in tile if o.parent is not None and loop_var(o) in moving]
    if len(filled) != 1 or len(read) != 1:
        return sums, weights
    (first,), (second,) = filled, read
    if weights.count == PAIR and extent_of(first).value * PAIR <= MOST_UNROLLED:
        return sums, weights
    others = [o for o in tile if o is not second]
    with s.noting("weights of all columns are widened before they are multiplied"):
        s.reorder(first, weights.together)
        s.reorder(second, taken, *(o for o in others if o.parent is not None))
        s.unroll(s.fuse(first, second))
    nest = Nest(sums.add.outer, [*others, vector], sums.add.group)
    return replace(sums, add=nest), replace(weights, loops=[o for o in weights.loops if o is not first])


def mark_weights(s: Schedule, weights: Dequantized) -> None:
    """The vectors of a step become instructions one after the other, and so do a few of those of a long panel."""
    *around, vector = weights.loops
    if vector.parent is not None:
        s.vectorize(vector)
    most = MOST_UNROLLED
    if weights.together is not None and weights.together.parent is not None:
        most //= extent_of(weights.together).value
        s.unroll(weights.together)
        around.remove(weights.together)
    if not around or around[-1].parent is None or not extent_of(around[-1]).is_const:
        return
    last = around[-1]
    if extent_of(last).value > most:
        last = s.split(last, next(n for n in range(most, 0, -1) if extent_of(last).value % n == 0)).inner
    s.unroll(last)
