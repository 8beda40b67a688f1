"""Products in tiles whose sums stay in the registers of threads.

    for layer { for band { for group {
      sums = 0                                     (owned: each element is of one thread)
      for each part of the reduced axis {
        parts of both operands into shared memory
        for row { for thread { sums of the thread += products } }
      }
      for row { for thread { the result, with the elementwise work on it } }
    } } }

A thread has every 16th row of the tile, and four columns beside each other of every 64: a warp then reads shared memory
without conflicts between its banks, and four elements at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import buffer_type, extent_of
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.cuda.tiles import choose_tile
from tilewright.schedule.gpu.product import (
    ProductInTiles,
    check_depth,
    nest_in,
    part_of_depth,
    row_axis,
    split_depth,
    split_tile,
    stages_of,
)
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.cuda import OWNED, ROWS_AT_ONCE, RUN, SIDE, TILES, Cuda
from tilewright.target.gpu.webgpu import BAND, GROUP, LAYER, ROW, SHARED, THREAD


class CudaProduct(ProductInTiles):
    """The kernels of `GpuContraction` with sums in registers, where the sizes have divisors that make tiles."""

    name = "cuda_product"
    kind = Cuda.kind
    respecialize_remainder = True

    def schedule(self, s: Schedule, lowered: Lowered, target: Cuda) -> None:
        product, rest = stages_of(lowered)
        row = row_axis(product)
        _Nest(s, product, row, _tile(s, product, row, target)).run(rest)
        check_room(s, target)


@dataclass(frozen=True)
class _Tile:
    """Rows and columns of a group, and how much of the outermost reduced axis is one part."""

    rows: int
    columns: int
    depth: int


def _tile(s: Schedule, product: Stage, row: int, machine: Cuda) -> _Tile:
    axes, reduced = ([extent_of(loop) for loop in loops] for loops in (product.axes, product.reduce))
    depth, *window = reduced
    check_depth(depth, window)
    if 0 in axes:
        raise ScheduleError("it has no element")
    rows, columns = TILES[choose_tile(s, TILES, axes, row, len(axes) - 1, machine)]
    most = max(1, machine.depth // prod(n.value for n in window))
    return _Tile(rows, columns, part_of_depth(depth, window, most))


def check_room(s: Schedule, machine: Cuda) -> None:
    """ScheduleError where a memory of the machine has no room."""
    if isinstance(wrong := slots_of(s.func, machine), tuple):
        raise ScheduleError(wrong[0])


class _Nest:
    """The schedule of one product."""

    def __init__(self, s: Schedule, product: Stage, row: int, tile: _Tile) -> None:
        self.s, self.product, self.row, self.tile = s, product, row, tile
        self.column = len(product.axes) - 1

    def run(self, rest: Sequence[Stage]) -> None:
        s, row, column, sums = self.s, self.row, self.column, self.product.buffer
        axes = rest[0].axes if rest else []
        if not axes:
            made = s.cache_write(sums, space=SHARED)
            axes, sums = made.drain, made.buffer
        others = [axis for k, axis in enumerate(axes) if k not in (row, column)]
        rows, columns = split_tile(s, axes[row], axes[column], self.tile.rows, self.tile.columns)
        s.reorder(*others, rows.outer, columns.outer, rows.inner, columns.inner)
        fused = s.compute_at(sums, columns.outer, space=OWNED, guard="loads")
        self._sum(fused.nests[0])
        self._threads(rows.inner, columns.inner, [])
        self._own(fused.buffer)
        s.parallel(columns.outer, GROUP)
        s.parallel(rows.outer, BAND)
        if others:
            layers, *more = others
            for axis in more:
                layers = s.collapse(layers, axis)
            s.parallel(layers, LAYER)
        s.simplify()

    def _sum(self, nest: Op) -> None:
        """The sums of a tile, by the threads of a group."""
        s, count = self.s, len(self.product.axes)
        parts = s.fission(next(op for op in nest.walk() if op.name == "store"), count)
        zeros, loops = parts.before[-count:], parts.after[-count:]
        self._threads(zeros[self.row], zeros[-1], [axis for k, axis in enumerate(zeros[:-1]) if k != self.row])
        reduced = nest_in(loops[-1])
        if len(reduced) != len(self.product.reduce):
            raise ScheduleError("its reduced axes are no perfect nest")
        step = split_depth(s, reduced[0], self.tile.depth)
        inner = [step.inner, *reduced[1:]]
        between = [loop for k, loop in enumerate(loops[:-1]) if k != self.row]
        s.reorder(*between, step.outer, loops[self.row], loops[-1], *inner)
        loads = [op for op in inner[-1].walk() if op.name == "load" and op.operands[0].op is None]
        operands = [load.operands[0] for load in loads]
        fills = [s.cache(value, loops[self.row], space=SHARED, read=0, zeros=True).fill for value in operands]
        if not fills or not all(fills):
            raise ScheduleError("its operands are no tensors in memory")
        filled = [self._fill(fill) for fill in fills]
        s.barrier(filled[-1], ROW)
        first = self._threads(loops[self.row], loops[-1], [], inner)
        if extent_of(step.outer) != 1:  # another part is copied over this one
            s.barrier(first, ROW)

    def _threads(self, rows: Op, columns: Op, around: list[Op], inside: Sequence[Op] = ()) -> Op:
        """Share a tile among the threads of a group; the outermost loop of what they do. `inside` are the loops over
        what is added up, of which the last one is written out: addresses in shared memory are then constants, and
        LLVM sees which elements it can read together."""
        s = self.s
        row = s.split(rows, SIDE)
        run = min(RUN, self.tile.columns // SIDE)
        wide = s.split(columns, run * SIDE)
        thin = s.split(wide.inner, run)
        own = [row.outer, wide.outer, thin.inner]
        s.reorder(*around, row.inner, thin.outer, *inside, *own)
        if inside and extent_of(inside[-1]).value <= SIDE:
            own = self._written_out(inside[-1], *own)
        for loop in own:
            s.unroll(loop)
        s.parallel(thin.outer, THREAD)
        s.parallel(row.inner, ROW)
        return row.inner

    def _written_out(self, reduced: Op, row: Op, *columns: Op) -> list[Op]:
        """The loops of a thread with the one over a sum. A run of the depth, which is one load of a row, is added up
        for a few rows after the others. What is loaded while others are multiplied is then less than with all rows for
        each element of the depth, and the registers of the largest tile are enough."""
        s = self.s
        if extent_of(reduced).value % RUN:
            return [reduced, row, *columns]
        part, few = s.split(reduced, RUN), s.split(row, min(ROWS_AT_ONCE, extent_of(row).value))
        s.reorder(part.outer, few.outer, part.inner, few.inner, *columns)
        return [part.outer, few.outer, part.inner, few.inner, *columns]

    def _fill(self, fill: Sequence[Op]) -> Op:
        """Share a copy among the threads of a group; the outermost loop. What a thread has of it is read at once, as
        far as that is not too much."""
        s = self.s
        if _is_wide(fill):  # a warp fills 32 elements that follow each other
            part = s.split(s.collapse(*fill[-2:]), SIDE * SIDE)
            threads = s.split(part.inner, SIDE)
            s.reorder(threads.outer, threads.inner, part.outer)
            if extent_of(part.outer).value <= 2 * RUN:
                s.unroll(part.outer)
            s.parallel(threads.inner, THREAD)
            s.parallel(threads.outer, ROW)
            return fill[0] if len(fill) > 2 else threads.outer
        shared, own = [], []
        for axis in fill[-2:]:
            extent = extent_of(axis)
            if extent.is_const and extent.value > SIDE and extent.value % SIDE == 0:
                part = s.split(axis, SIDE)
                own.append(part.outer)
                axis = part.inner
            shared.append(axis)
        s.reorder(*shared, *own)
        for loop in own:
            if extent_of(loop).value <= 2 * RUN:
                s.unroll(loop)
        for axis, level in zip(reversed(shared), (THREAD, ROW), strict=False):
            s.parallel(axis, level)
        return fill[0]

    def _own(self, sums: Value) -> None:
        """Give the buffer of sums the axes of its threads."""
        s = self.s
        run = min(RUN, self.tile.columns // SIDE)
        axes = buffer_type(sums).rank
        s.split_axis(sums, axes - 1, run)
        s.split_axis(sums, axes - 1, SIDE)
        s.split_axis(sums, self.row, SIDE)


def _is_wide(fill: Sequence[Op]) -> bool:
    """Whether the innermost two loops of a copy have whole runs for warps, and as much for each thread."""
    if len(fill) < 2:
        return False
    across, along = map(extent_of, fill[-2:])
    return along % (2 * SIDE) == 0 and across.is_const and across * along % (SIDE * SIDE) == 0
