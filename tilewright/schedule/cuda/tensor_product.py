"""Products on tensor cores: warps multiply fragments, while the next part of both operands comes into shared memory.

    for layer { for band { for group {
      sums = 0                                                    (owned: each element is of one thread)
      copies of the first parts of both operands begin; wait; barrier
      for each part of the reduced axis {
        copies of the next parts begin
        for warp_row { for warp { for each step of the part {     (written out)
          fragments of both operands from shared memory           (ldmatrix)
          sums += products of the fragments                       (mma)
        } } }
        wait; barrier
      }
      for warp_row { for warp { for row { for thread { the result, with the elementwise work on it } } } }
    } } }

Rows of tiles in shared memory are 16 bytes longer where they would otherwise begin in the same banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import converted_from
from tilewright.ir.sym import ZERO, Sym, simplify
from tilewright.loops.edit import (
    address_of,
    block_of,
    body_of,
    buffer_type,
    extent_of,
    loop_var,
    places_of,
    ranges_at,
)
from tilewright.loops.machine.copies import copy_in
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.cache import Cached
from tilewright.schedule.cuda.product import check_room
from tilewright.schedule.cuda.tiles import choose_tile
from tilewright.schedule.gpu.product import (
    ProductInTiles,
    nest_in,
    row_axis,
    split_depth,
    split_tile,
    stages_of,
)
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.cuda import OWNED, Cuda
from tilewright.target.gpu.tensor_cores import (
    ASYNC,
    COLUMNS,
    COPY_BYTES,
    LANE_ROWS,
    LANES,
    LEFT,
    PART_BYTES,
    RIGHT,
    ROWS,
    WARP,
    WARP_ROW,
    TensorCore,
    is_deep,
    tensor_core,
)
from tilewright.target.gpu.webgpu import BAND, GROUP, LAYER, ROW, SHARED, THREAD
from tilewright.target.machine import Intrinsic


@dataclass(frozen=True)
class TensorTile:
    """Rows and columns of a group, and of each of its warps."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int


TILES = (
    TensorTile(128, 128, 64, 64), TensorTile(128, 64, 64, 32), TensorTile(64, 64, 32, 32), TensorTile(64, 32, 32, 16),
    TensorTile(32, 64, 16, 32), TensorTile(32, 32, 16, 16), TensorTile(16, 64, 16, 16), TensorTile(64, 16, 16, 16),
    TensorTile(16, 32, 16, 16), TensorTile(32, 16, 16, 16), TensorTile(16, 16, 16, 16),
)  # fmt: skip
"""The largest first. A thread has 128 sums of the largest tile, and fragments in 32 registers more."""


class TensorProduct(ProductInTiles):
    """The kernels of `GpuContraction` whose operands are of the dtypes of a tensor core."""

    name = "cuda_tensor_product"
    kind = Cuda.kind
    respecialize_remainder = True

    def schedule(self, s: Schedule, lowered: Lowered, target: Cuda) -> None:
        product, rest = stages_of(lowered)
        axes, product = _as_matrices(s, product, rest[0].axes if rest else [])
        roles = TensorRoles.of(product, target)
        tile = _tile(s, product, roles, target)
        TensorNest(s, target, product, roles, tile).run(axes)
        check_room(s, target)


def _as_matrices(s: Schedule, product: Stage, axes: list[Op]) -> tuple[list[Op], Stage]:
    """The loops of the stage that reads the sums, and the product: of a convolution, all positions are one axis, and
    all channels and taps are one depth."""
    sums = product.buffer
    if not axes:
        made = s.cache_write(sums, space=SHARED)
        axes, sums = made.drain, made.buffer
    taps = len(product.reduce) - 1
    if len(product.axes) != len(axes) or (taps and len(product.axes) != taps + 2):
        raise ScheduleError("it sums along several axes, and is no convolution")
    own, depth = list(product.axes), list(product.reduce)
    for _ in range(taps - 1):
        for loops in (axes, own):
            loops[2:4] = [s.collapse(loops[2], loops[3])]
        s.merge_axes(sums, 2)
    for _ in range(taps):
        depth[0:2] = [s.collapse(depth[0], depth[1])]
    merged = replace(product, buffer=sums, axes=own, reduce=depth)
    for value in s.func.args if taps else []:
        found = {_first_of_one(op) for op in places_of(value)}
        if len(found) == 1 and (axis := found.pop()) is not None:
            for _ in range(axis, buffer_type(value).rank - 1):
                s.merge_axes(value, axis)
    return axes, merged


def _first_of_one(access: Op) -> int | None:
    """The first of the last axes of a tensor whose indices are the parts of one loop variable."""
    shape, idx = buffer_type(access.operands[-1]).shape, access.attrs["idx"]
    for axis in range(1, len(idx) - 1) if "guard" not in access.attrs else ():
        whole = ZERO
        for size, index in zip(shape[axis:], idx[axis:], strict=True):
            whole = whole * size + index
        if simplify(whole, ranges_at(access)).kind == "var":
            return axis
    return None


@dataclass(frozen=True, eq=False)
class TensorOperand:
    """One factor of a product: its number among the reads, and the axes of its tensor that the rows (or columns) of the
    result and the depth move along. Where it `is_gathered`, these are the axes of a copy; its rows lie along the depth
    where fragments are loaded in no other way."""

    read: int
    across: int
    along: int
    is_gathered: bool = False

    @property
    def is_along(self) -> bool:
        """Whether the depth is the axis whose elements follow each other."""
        return self.along > self.across


@dataclass(frozen=True, eq=False)
class TensorRoles:
    """The tensor core that does a product, its operands, and the axes of the sums that are rows and columns."""

    core: TensorCore
    left: TensorOperand
    right: TensorOperand
    row: int
    column: int

    @classmethod
    def of(cls, product: Stage, machine: Cuda) -> TensorRoles:
        row, column = row_axis(product), len(product.axes) - 1
        loads = _factors(product)
        left, right = (buffer_type(load.operands[0]).dtype.name for load in loads)
        core = tensor_core(left, right, buffer_type(product.buffer).dtype.name, machine.tensor_cores)
        if core is None:
            raise ScheduleError(f"no tensor core multiplies {left} by {right}")
        depth = loop_var(product.reduce[0])
        sides: dict[int, TensorOperand] = {}
        for k, load in enumerate(loads):
            axes = [[n for n, i in enumerate(load.attrs["idx"]) if loop_var(product.axes[axis]) in i.vars]
                    for axis in (row, column)]  # fmt: skip
            along = [n for n, i in enumerate(load.attrs["idx"]) if depth in i.vars]
            side = 1 if axes[1] else 0
            is_plain = "guard" not in load.attrs and len(along) == len(axes[side]) == 1
            if side == 1 and (not is_plain or (along < axes[side] and not core.loads_across[side])):
                is_turned = not core.loads_across[side]
                sides[side] = TensorOperand(k, int(not is_turned), int(is_turned), is_gathered=True)
                continue
            is_matrix = len(along) == len(axes[side]) == 1 and not axes[1 - side] and along != axes[side]
            if "guard" in load.attrs or not is_matrix:
                raise ScheduleError("its operands are no matrices")
            sides[side] = TensorOperand(k, axes[side][0], along[0])
            last = len(load.attrs["idx"]) - 1
            if last not in (along[0], axes[side][0]):
                raise ScheduleError("neither rows nor the depth of an operand follow each other in memory")
        if len(sides) != 2:
            raise ScheduleError("both operands have all axes of the result")
        for side, operand in sides.items():
            if not operand.is_along and not core.loads_across[side]:
                raise ScheduleError(f"fragments of {core.operands} are loaded along the depth only")
        return cls(core, sides[0], sides[1], row, column)


def _factors(product: Stage) -> list[Op]:
    """The loads of the two factors, each of which is converted to the dtype of the sums, or has it."""
    loads = [op for op in product.reduce[-1].walk() if op.name == "load" and op.operands[0] is not product.buffer]
    sums = buffer_type(product.buffer).dtype
    narrow = [load for load in loads if load.result.scalar.dtype is not sums]
    converted = [converted_from(user.results[0]) for load in narrow for user in load.result.users if user.results]
    if len(loads) != 2 or [load.result for load in narrow] != converted:
        raise ScheduleError("it is no product of two tensors")
    return loads


def _tile(s: Schedule, product: Stage, roles: TensorRoles, machine: Cuda) -> TensorTile:
    axes, depth = [extent_of(axis) for axis in product.axes], extent_of(product.reduce[-1])
    if depth == 0 or 0 in axes:
        raise ScheduleError("it has no element")
    if depth.is_const and not is_deep(depth.value, roles.core.depth):
        raise ScheduleError(f"a depth of {depth} is much less than the {roles.core.depth} of a tensor core")
    sizes = [(t.rows, t.columns) for t in TILES]
    return TILES[choose_tile(s, sizes, axes, roles.row, roles.column, machine)]


def part_of(depth: Sym, most: int, least: int) -> int:
    """How much of the depth is one part: the most that adds fewest zeros."""
    whole = {d: -(-depth.value // d) * d for d in (most, least)} if depth.is_const else {most: 0}
    return min(whole, key=whole.__getitem__)


@dataclass(eq=False)
class TensorNest:
    """The schedule of one product."""

    s: Schedule
    machine: Cuda
    product: Stage
    roles: TensorRoles
    tile: TensorTile

    def run(self, axes: list[Op]) -> None:
        """`axes` are the loops of the stage that reads the sums."""
        s, row, column, sums = self.s, self.roles.row, self.roles.column, self.product.buffer
        others = [axis for k, axis in enumerate(axes) if k not in (row, column)]
        rows, columns = split_tile(s, axes[row], axes[column], self.tile.rows, self.tile.columns)
        s.reorder(*others, rows.outer, columns.outer, rows.inner, columns.inner)
        fused = s.compute_at(sums, columns.outer, space=OWNED, guard="loads")
        are_together = self._sum(fused.nests[0])
        drain = self.threads(rows.inner, columns.inner, [])
        if not are_together:
            s.barrier(drain, ROW, "before")
        self.own(fused.buffer)
        s.parallel(columns.outer, GROUP)
        s.parallel(rows.outer, BAND)
        if others:
            layers, *more = others
            for axis in more:
                layers = s.collapse(layers, axis)
            s.parallel(layers, LAYER)
        s.simplify()

    def threads(self, rows: Op, columns: Op, around: list[Op]) -> Op:
        """Share the sums of a tile among the threads that have them; returns the outermost loop of what they do."""
        return share_tile(self.s, self.tile, rows, columns, around)[0]

    def _sum(self, nest: Op) -> bool:
        """The sums of a tile, by the warps of a group; returns whether all threads have waited for each other since."""
        s, count, row, core = self.s, len(self.product.axes), self.roles.row, self.roles.core
        parts = s.fission(next(op for op in nest.walk() if op.name == "store"), count)
        zeros, loops = parts.before[-count:], parts.after[-count:]
        self.threads(zeros[row], zeros[-1], [axis for k, axis in enumerate(zeros[:-1]) if k != row])
        (reduced,) = nest_in(loops[-1])
        step = split_depth(s, reduced, part_of(extent_of(reduced), PART_BYTES // core.bytes, core.depth))
        between = [loop for k, loop in enumerate(loops[:-1]) if k != row]
        s.reorder(*between, step.outer, loops[-1], step.inner, loops[row])
        loads = [op for op in loops[row].walk() if op.name == "load" and op.operands[0].op is None]
        shared: list[Cached] = []
        for load, operand in zip(loads, sorted((self.roles.left, self.roles.right), key=lambda o: o.read), strict=True):
            if operand.is_gathered:
                made = s.preload(load, *((loops[-1], step.inner) if operand.is_along else (step.inner, loops[-1])))
                if operand.is_along:  # a warp reads runs of eight elements, and writes to all banks
                    run = s.split(made.fill[0], LANE_ROWS)
                    made.fill[:] = [run.outer, made.fill[1], run.inner]
                    s.reorder(*made.fill)
                shared.append(Cached(s.set_space(made.buffer, SHARED), made.fill))
            else:
                shared.append(s.cache(load.operands[0], loops[-1], space=SHARED, read=0, zeros=True))
        self.multiply(loops[row], loops[-1], step.inner, [each.buffer for each in shared])
        if all(map(moves_by_pieces, shared)) and extent_of(step.outer) != 1:
            for each in shared:
                s.wait(s.async_copy(each.fill[0], ASYNC), loops[row])
                self.pad(each.buffer)
            for op in self._pipelined(step.outer):
                s.barrier(op, WARP_ROW)
            return False
        self.copy(shared, loops[row])
        s.barrier(loops[row], WARP_ROW, "before")
        s.barrier(loops[row], WARP_ROW)
        return True

    def fill(self, fill: Sequence[Op]) -> None:
        """Share the elements of a copy among the threads of a group."""
        s, tile = self.s, self.tile
        flat, *inner = fill
        for loop in inner:
            flat = s.collapse(flat, loop)
        counts = {THREAD: LANES, ROW: LANE_ROWS, WARP: tile.columns // tile.warp_columns}
        counts[WARP_ROW] = tile.rows // tile.warp_rows
        shared = {level: s.split(flat, count).inner for level, count in counts.items() if count > 1}
        s.reorder(*reversed(shared.values()), flat)
        for level, loop in shared.items():
            s.parallel(loop, level)

    def copy(self, shared: Sequence[Cached], reader: Op) -> None:
        """Copy into shared memory, beside the threads what moves by pieces, which wait for it before they read."""
        s = self.s
        runs = []
        for each in shared:
            if moves_by_pieces(each):
                runs.append(s.async_copy(each.fill[0], ASYNC))
            else:  # rows begin anywhere: threads copy their elements
                self.fill(each.fill)
            self.pad(each.buffer)
        if runs:  # the others end before the last one
            s.wait(max(runs, key=block_of(runs[0]).ops.index), reader)

    def _pipelined(self, loop: Op) -> list[Op]:
        """Copy parts ahead; returns what waits for copies."""
        made = self.s.pipeline(loop).loop
        around = block_of(made).ops
        return [around[around.index(made) - 1], body_of(made).ops[-1]]

    def pad(self, buffer: Value) -> None:
        """Let eight rows that follow each other begin in banks of their own."""
        type = buffer_type(buffer)
        size = type.shape[-1].value
        each = COPY_BYTES // type.dtype.bytes
        if size % (2 * each) == 0:
            self.s.pad_axis(buffer, type.rank - 1, size + each)

    def multiply(self, rows: Op, columns: Op, depth: Op, shared: Sequence[Value]) -> None:
        """The products of a part: a warp has rows and columns, and goes through the depth."""
        s, core, roles = self.s, self.roles.core, self.roles
        blocks = [s.split(rows, self.tile.warp_rows), s.split(columns, self.tile.warp_columns)]
        cuts = [s.split(blocks[0].inner, ROWS), s.split(blocks[1].inner, COLUMNS)]
        half, pair = s.split(cuts[0].inner, LANE_ROWS), s.split(cuts[1].inner, 2)
        step = s.split(depth, core.depth)
        tiles = [cuts[0].outer, cuts[1].outer]
        s.reorder(blocks[0].outer, blocks[1].outer, step.outer, *tiles,
                  half.outer, half.inner, pair.outer, pair.inner, step.inner)  # fmt: skip
        for side, (operand, space) in enumerate(((roles.left, LEFT), (roles.right, RIGHT))):
            self._fragments(shared[operand.read], operand, space, side, tiles[0])
        s.tensorize(half.outer, self._intrinsic(core.multiply))
        for loop in (*tiles, step.outer):
            s.unroll(loop)
        if self.tile.columns != self.tile.warp_columns:
            s.parallel(blocks[1].outer, WARP)
        s.parallel(blocks[0].outer, WARP_ROW)

    def _fragments(self, buffer: Value, operand: TensorOperand, space: str, side: int, first: Op) -> None:
        """Load the fragments of an operand before they are multiplied, or take them from what threads own."""
        s, core = self.s, self.roles.core
        is_owned = buffer_type(buffer).space == OWNED
        cached = s.cache(buffer, first, space=space)
        if is_owned:
            self._pack(cached.fill, operand)
            return
        if not operand.is_along:
            s.swap_axes(cached.buffer, operand.across, operand.along)
        across, along = cached.fill[operand.across], cached.fill[operand.along]
        block = s.split(across, ROWS)
        others = [loop for k, loop in enumerate(cached.fill) if k not in (operand.across, operand.along)]
        s.reorder(*others, block.outer, block.inner, along)
        names = core.loads if operand.is_along else core.loads_across
        s.tensorize(block.inner, self._intrinsic(names[side]))
        s.unroll(block.outer)

    def _pack(self, fill: Sequence[Op], operand: TensorOperand) -> None:
        """Make left fragments of what threads own."""
        s = self.s
        block = s.split(fill[operand.across], ROWS)
        half, part = s.split(block.inner, LANE_ROWS), s.split(fill[operand.along], COLUMNS)
        pair = s.split(part.inner, 2)
        others = [loop for k, loop in enumerate(fill) if k not in (operand.across, operand.along)]
        s.reorder(*others, block.outer, half.outer, half.inner, part.outer, pair.outer, pair.inner)
        s.tensorize(half.outer, self._intrinsic(self.roles.core.pack))
        s.unroll(block.outer)

    def _intrinsic(self, name: str) -> Intrinsic:
        found = self.machine.intrinsic(name)
        assert found is not None
        return found

    def own(self, sums: Value) -> None:
        """Give the buffer of sums the axes of its warps, of the rows of these and of their threads."""
        s, tile = self.s, self.tile
        last = buffer_type(sums).rank - 1
        for axis, sizes in ((last, (2, LANES, tile.warp_columns // COLUMNS)),
                            (self.roles.row, (LANE_ROWS, 2, tile.warp_rows // ROWS))):  # fmt: skip
            for size in sizes:
                s.split_axis(sums, axis, size)


def share_tile(s: Schedule, tile: TensorTile, rows: Op, columns: Op, around: Sequence[Op]) -> list[Op]:
    """Share elements of a tile among the threads that have its sums; the loops of what they do, outermost first."""
    blocks = [s.split(rows, tile.warp_rows), s.split(columns, tile.warp_columns)]
    cuts = [s.split(blocks[0].inner, ROWS), s.split(blocks[1].inner, COLUMNS)]
    half, pair = s.split(cuts[0].inner, LANE_ROWS), s.split(cuts[1].inner, 2)
    own = [cuts[0].outer, half.outer, cuts[1].outer, pair.inner]
    shared = [blocks[0].outer, blocks[1].outer, half.inner, pair.outer]
    s.reorder(*around, *shared, *own)
    for loop in own:
        s.unroll(loop)
    for loop, level in reversed(list(zip(shared, (WARP_ROW, WARP, ROW, THREAD), strict=True))):
        if level != WARP or tile.columns != tile.warp_columns:
            s.parallel(loop, level)
    return [*shared, *own]


def moves_by_pieces(cached: Cached) -> bool:
    """Whether a copy into shared memory is one of whole pieces that begin at multiples of their size, each of which is
    read or filled as a whole."""
    copy = copy_in(cached.fill[:1])
    if isinstance(copy, str):
        return False
    each = COPY_BYTES // buffer_type(cached.buffer).dtype.bytes
    run, *_ = (loop for loop in reversed(copy.loops) if extent_of(loop) != 1)
    v, conditions = loop_var(run), copy.load.attrs.get("guard", ())
    start, to = address_of(copy.load) - v, address_of(copy.store) - v
    is_aligned = v not in start.vars | to.vars and extent_of(run).value % each == 0 and _is_multiple(start, each)
    return is_aligned and all(_is_of_pieces(condition, v, each) for condition in conditions)


def _is_of_pieces(condition: Sym, v: Sym, each: int) -> bool:
    """Whether a condition is the same for all `each` values of `v` from a multiple of that on."""
    if v not in condition.vars:
        return True
    rest = condition.args[0] if condition.kind == "ge0" else v
    return any(
        v not in end.vars and _is_multiple(end, each) for end in (rest + v + 1, rest - v)  # v < end, or v >= -end
    )


def _is_multiple(e: Sym, n: int) -> bool:
    """Whether an expression is a multiple of `n` for certain."""
    return all(
        factor % n == 0 or (term.kind in ("min", "max") and all(_is_multiple(arg, n) for arg in term.args))
        for term, factor in e.terms
    )
