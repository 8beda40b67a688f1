"""Products in tiles: a group computes a tile of the result, its threads small tiles of it in registers.

    for layer { for band { for group {
      sums = 0                                     (shared)
      for each part of the reduced axis {
        parts of both operands into shared memory
        for thread { sums of a few rows and columns += products, in registers }
      }
      the result, with the elementwise work on it
    } } }

The operands are read from memory once for each tile, and from shared memory once for each few sums. A part is a whole
number of channels for convolutions, whose windows stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.loops.edit import body_of, extent_of, is_loop, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.order.split import Split
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.gemm.contraction import Contraction
from tilewright.schedule.gpu.steps import schedule_grids, share
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.webgpu import BAND, GROUP, LAYER, REGISTERS, SHARED, SMALLER, THREAD, Gpu


class GpuContraction(Contraction):
    """A contraction with elementwise work on its result: a thread for each element."""

    name = "gpu_contraction"
    kind = "gpu"
    form = None

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.producer.strategy is self and is_elementwise(join.consumer) and not join.is_only_reader():
            return NoMatch("it is needed elsewhere too, and a product in tiles has one result")
        return super().join(join)

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Strategy.match(self, region)

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        schedule_grids(s, lowered, target)


class ProductInTiles(Strategy):
    """Strategies for kernels of `GpuContraction`, better ones where the sizes allow."""

    def match(self, region: FusedRegion) -> Match | NoMatch:
        if isinstance(region.strategy, GpuContraction):
            return Match()
        return NoMatch("it is no contraction with elementwise work on its result")


def stages_of(lowered: Lowered) -> tuple[Stage, list[Stage]]:
    """The product, and the elementwise stage behind it if there is one; ScheduleError for other stages."""
    product, *rest = lowered.stages
    if len(rest) > 1 or product.kind != "reduce" or (rest and len(rest[0].axes) != len(product.axes)):
        raise ScheduleError("it is no product with one elementwise stage")
    return product, rest


class GpuProduct(ProductInTiles):
    """The kernels of `GpuContraction` in tiles, where the sizes are enough for some."""

    name = "gpu_product"
    kind = "gpu"
    respecialize_remainder = True
    part = 1
    """Tiles are of such a part of the rows and columns that they may have."""

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:
        product, rest = stages_of(lowered)
        _schedule(s, product, rest[0].axes if rest else [], replace(target, tile=target.tile // self.part))
        found = slots_of(s.func, target)
        if isinstance(found, tuple):
            raise ScheduleError(found[0])


class GpuHalfProduct(GpuProduct):
    """Smaller tiles, where the windows of larger ones have no room in shared memory."""

    name = "gpu_half_product"
    part = 2


@dataclass(frozen=True)
class _Tile:
    """Rows and columns of a group, those of a thread, and how much of the outermost reduced axis is one part."""

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    depth: int

    @property
    def threads(self) -> int:
        return self.rows // self.own_rows * (self.columns // self.own_columns)


def _schedule(s: Schedule, product: Stage, axes: list[Op], machine: Gpu) -> None:
    row, column = row_axis(product), len(product.axes) - 1
    tile = _tile(s, product, row, machine)
    sums = product.buffer
    if not axes:
        made = s.cache_write(sums, space=SHARED)
        axes, sums = made.drain, made.buffer
    others = [axis for k, axis in enumerate(axes) if k not in (row, column)]
    rows, columns = split_tile(s, axes[row], axes[column], tile.rows, tile.columns)
    s.reorder(*others, rows.outer, columns.outer, rows.inner, columns.inner)
    nest = s.compute_at(sums, columns.outer, space=SHARED, guard="loads").nests[0]
    _sum(s, nest, product, row, tile)
    share(s, [rows.inner, columns.inner], tile.threads)
    s.parallel(columns.outer, GROUP)
    s.parallel(rows.outer, BAND)
    if others:
        layers, *more = others
        for axis in more:
            layers = s.collapse(layers, axis)
        s.parallel(layers, LAYER)
    s.simplify()


def split_tile(s: Schedule, row: Op, column: Op, rows: int, columns: int) -> tuple[Split, Split]:
    """The loops over the tiles of a result and within them. Where a tile does not divide a size, the last one begins
    early enough to be a whole one. Tiles that compute elements again along both axes would have no order that the
    checks accept: columns beyond the last are then computed of zeros, and are not stored."""
    is_whole = extent_of(row) % rows == 0
    first = s.split(row, rows, tail="overlap")
    return first, s.split(column, columns, tail="overlap" if is_whole else "guard")


def check_depth(depth: Sym, window: Sequence[Sym]) -> None:
    """ScheduleError where it is not known how much is one part of a sum."""
    if not all(n.is_const and n.value for n in window) or depth == 0:
        raise ScheduleError("its window is unknown, or it has no element")
    if window and not depth.is_const:
        raise ScheduleError("the channels of its windows are unknown")


def part_of_depth(depth: Sym, window: Sequence[Sym], most: int) -> int:
    """How much of the depth is one part: a divisor, or, where all of these are small, and of an unknown depth, what is
    most, with zeros at the end."""
    if not depth.is_const:
        return most
    found = _divisor(depth.value, most)
    return found if window or 2 * found > most or found == depth.value else min(most, depth.value)


def split_depth(s: Schedule, reduced: Op, part: int) -> Split:
    """The loops over the parts of a sum and within them. Where these are no whole ones, zeros are added."""
    is_whole = extent_of(reduced) % part == 0
    step = s.split(reduced, part)
    if not is_whole:
        s.pad_reduction(step.inner)
    return step


def row_axis(product: Stage) -> int:
    """The last axis that the operand with the last axis has not."""
    variables = [loop_var(axis) for axis in product.axes]
    loads = [op for op in product.reduce[-1].walk() if op.name == "load" and op.operands[0] is not product.buffer]
    if len(loads) != 2:
        raise ScheduleError("it is no product of two tensors")
    for load in loads:
        read = {v for i in load.attrs["idx"] for v in i.vars}
        missing = [k for k, v in enumerate(variables) if v not in read]
        if variables[-1] in read and missing:
            return missing[-1]
    raise ScheduleError("both operands have all axes of the result")


def _tile(s: Schedule, product: Stage, row: int, machine: Gpu) -> _Tile:
    """The tile of a group. Where it does not divide a size, the last one begins early enough to be a whole one; of an
    unknown size the kernel is made for those of a whole tile and more."""
    extents = [extent_of(axis) for axis in (*product.axes, *product.reduce)]
    depth = extents[len(product.axes)]
    window = extents[len(product.axes) + 1 :]
    check_depth(depth, window)
    m, n = extents[row], extents[len(product.axes) - 1]
    rows, columns = (_of_axis(n, machine.tile) for n in (m, n))
    if rows * columns < machine.alone:
        raise ScheduleError(f"{m} x {n} is too small for a tile of {machine.alone} elements")
    for extent, size in ((m, rows), (n, columns)):
        if not s.at_least(extent, size, of_few=True):
            raise ScheduleError(f"{extent} may be less than a tile of {size}")
    most = max(1, machine.depth // prod(n.value for n in window))
    return _Tile(rows, columns, *own_of(rows, columns, machine), part_of_depth(depth, window, most))


def _of_axis(extent: Sym, most: int) -> int:
    """Rows or columns of a tile along an axis: its largest divisor, where that is not much less than could be; of an
    unknown size all that may be, or a part where that is more than there ever are."""
    if not extent.is_const:
        high = extent.bounds[1]
        return most if high is None or high >= most else max(1, most // SMALLER)
    found = _divisor(max(1, extent.value), most)
    return found if 2 * found > most or found == extent.value else min(most, extent.value)


def own_of(rows: int, columns: int, machine: Gpu) -> tuple[int, int]:
    """Rows and columns of a thread, of a tile of so many."""
    own_rows, own_columns = _divisor(rows, machine.own), _divisor(columns, machine.own)
    while own_rows * own_columns > 1 and rows // own_rows * (columns // own_columns) < machine.alone:
        # threads are worth more than fewer loads
        if own_rows >= own_columns:
            own_rows = _divisor(rows, own_rows - 1)
        else:
            own_columns = _divisor(columns, own_columns - 1)
    return own_rows, own_columns


def _divisor(n: int, most: int) -> int:
    """The largest divisor of n that is not above `most`."""
    return max(d for d in range(1, min(n, most) + 1) if n % d == 0)


def _sum(s: Schedule, nest: Op, product: Stage, row: int, tile: _Tile) -> None:
    """The sums of a tile, by the threads of a group."""
    first = next(op for op in nest.walk() if op.name == "store")
    parts = s.fission(first, len(product.axes))
    zeros, loops = parts.before[-len(product.axes) :], parts.after[-len(product.axes) :]
    share(s, zeros, tile.threads)
    reduced = nest_in(loops[-1])
    if len(reduced) != len(product.reduce):
        raise ScheduleError("its reduced axes are no perfect nest")
    step = split_depth(s, reduced[0], tile.depth)
    rows, columns = s.split(loops[row], tile.own_rows), s.split(loops[-1], tile.own_columns)
    inner = [step.inner, *reduced[1:]]
    between = [loop for k, loop in enumerate(loops[:-1]) if k != row]
    s.reorder(*between, step.outer, rows.outer, columns.outer, *inner, rows.inner, columns.inner)
    operands: dict[Value, None] = {}
    for op in columns.inner.walk():
        if op.name == "load" and op.operands[0].op is None:
            operands[op.operands[0]] = None
        elif op.name == "store":
            result = op.operands[1]
    fills = [s.cache(value, rows.outer, space=SHARED, zeros=True).fill for value in operands]
    own = s.cache(result, inner[0], space=REGISTERS)
    for axis in (*own.fill, rows.inner, columns.inner, *own.drain):
        s.unroll(axis)
    if not all(fills):
        raise ScheduleError("its operands are no tensors in memory")
    filled = [share(s, fill, tile.threads) for fill in fills]
    s.barrier(filled[-1], THREAD)
    threads = share(s, [rows.outer, columns.outer], tile.threads)
    s.barrier(threads, THREAD)


def nest_in(loop: Op) -> list[Op]:
    """The loops that are alone within a loop, each within the one before."""
    found: list[Op] = []
    while True:
        inner = [op for op in body_of(loop).ops if is_loop(op)]
        if len(inner) != 1 or body_of(loop).ops != inner:
            return found
        loop = inner[0]
        found.append(loop)
