"""Register tiles: the steps from which every schedule of sums is built.

    for tiles of the columns, of the rows {
      acc: reg[rows, columns, lanes] = 0                                     clear
      for k { acc[..] += A[row, k] * B[k, column] }                          add
      y[row, column] = epilogue(acc[..])                                     the nest that reads the sums
    }

`tile_loop` and `column_tiles` (steps.tiling) split the loops of the nest that reads the sums, `tile_sums` computes them
in a loop around a tile, `mark` makes its loops vectors and unrolls them, and `sum_in_blocks` keeps long sums accurate.
What becomes of iterations that fill no tile is a matter of the split: they have conditions (tail "guard"), the last
tile repeats some of the one before ("overlap"), or they get nests of their own ("peel", or smaller tiles).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.core import Op, Value
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.loops.stages import Stage
from tilewright.schedule.gemm.gemm_axes import is_costly
from tilewright.schedule.gemm.reduction_nest import separate_sums
from tilewright.schedule.steps.blocked_summation import is_deep, sum_in_parts
from tilewright.schedule.steps.tiling import vectors_of
from tilewright.schedule.trace import Schedule


@dataclass(frozen=True, eq=False)
class Nest:
    """A nest on a register tile: the loops around the tile, reductions among them, and the tile's own, the vector last.
    Inside of that may be the loop over a `group` of products that one instruction adds up."""

    outer: list[Op]
    tile: list[Op]
    group: list[Op] = field(default_factory=list)

    @property
    def loops(self) -> list[Op]:
        return [*self.outer, *self.tile]


@dataclass(frozen=True, slots=True)
class Summation:
    """How the sums of a tile are kept. A `costly` epilogue is a loop that reads them from memory, as it would be
    megabytes of code if it were unrolled for every vector of the tile. `deep` sums are added up in blocks."""

    costly: bool = False
    deep: bool = False

    @property
    def space(self) -> str:
        return "scratch" if self.costly or self.deep else "reg"


IN_REGISTERS = Summation()


@dataclass(frozen=True, eq=False)
class TileSums:
    """The sums of a tile: the nests that clear them and add to them, and the one that copies them from registers to
    `buffer`, if that is in memory."""

    buffer: Value
    clear: Nest
    add: Nest
    drain: Nest | None

    @property
    def nests(self) -> list[Nest]:
        return [self.clear, self.add, *([] if self.drain is None else [self.drain])]


def summation_of(stage: Stage, reader: Op) -> Summation:
    """How to keep the sums of a stage that the loop `reader` reads."""
    is_float = buffer_type(stage.buffer).dtype.is_float
    return Summation(is_costly(reader), is_float and is_deep(stage.reduce))


def tile_sums(
    s: Schedule,
    stage: Stage,
    loop: Op,
    axes: Sequence[int],
    lanes: int,
    kept: Summation = IN_REGISTERS,
    group: Op | None = None,
) -> TileSums:
    """Compute the sums that an iteration of `loop` reads, in registers while they are added up: a tile over `axes` of
    the sums, the last in vectors of so many lanes. The loops of the reduction go outside of the tile, but for that of a
    `group` of products."""
    made = s.compute_at(stage.buffer, loop, space=kept.space, guard="loads")
    parts = separate_sums(s, stage, made.copies)
    reduce = [made.copies[o] for o in stage.reduce]
    groups = [] if group is None else [made.copies[group]]
    clear = _around_tile(s, parts.before, axes, lanes)
    add = _around_tile(s, parts.after, axes, lanes, reduce, groups)
    drain = None
    if kept.costly and not kept.deep:
        copy = s.cache(made.buffer, clear.loops[0], add.loops[0]).drain
        drain = Nest([], vectors_of(s, copy, lanes))
    return TileSums(made.buffer, clear, add, drain)


def _around_tile(
    s: Schedule,
    loops: Sequence[Op],
    axes: Sequence[int],
    lanes: int,
    reduce: Sequence[Op] = (),
    group: Sequence[Op] = (),
) -> Nest:
    """Order the loops over the axes of the sums (and those of the reduction) around the tile."""
    tile = [loops[axis] for axis in axes]
    around = [o for o in loops if o not in tile]
    nest = Nest([*around, *reduce], vectors_of(s, tile, lanes), list(group))
    s.reorder(*nest.loops, *nest.group)
    return nest


def sum_in_blocks(s: Schedule, sums: TileSums) -> None:
    """Add up deep sums in blocks of their terms, each in registers and from zero; the nests are marked already."""
    reduction = [o for o in sums.add.outer if extent_of(o) != 1]
    lanes = extent_of(sums.add.tile[-1]).value
    for block in sum_in_parts(s, sums.buffer, reduction):
        mark_elements(s, block.clear, lanes)
        mark_elements(s, block.add, lanes)


def skip_padding(s: Schedule, add: Nest) -> None:
    """Leave out the terms of the sums in which all rows of a tile are padding: those of lines that do not exist."""
    loop = next((o for o in add.outer if o.parent is not None), None)
    if loop is None:
        return
    within = {loop_var(o) for o in add.tile}
    guards = [op.attrs["guard"] for op in loop.walk() if op.name == "load" and "guard" in op.attrs]
    if guards and not any(within & condition.vars for guard in guards for condition in guard):
        with s.noting("padding is multiplied as zeros"):
            s.guard_reduction(loop)
            s.simplify()


def mark(s: Schedule, nest: Nest, *, unrolled: bool = True, clamped: bool = True) -> None:
    """The innermost loop of the tile becomes a vector, the others are unrolled; loops of one iteration are gone. Loads
    of rows that do not exist then read the last that does (`clamped`), or keep their conditions."""
    *others, vector = nest.tile
    for loop in nest.group:
        s.dot(loop)
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None and unrolled:
            if clamped:
                s.clamp(loop)
            s.unroll(loop)


def mark_elements(s: Schedule, loops: Sequence[Op], lanes: int) -> None:
    """Make loops over the elements of a tile, which are all there, vectors and unrolled loops."""
    mark(s, Nest([], vectors_of(s, loops, lanes)), clamped=False)
