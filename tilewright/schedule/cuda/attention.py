"""Attention on tensor cores: scores and weights stay in registers, and are fragments of the second product there.

    for layer { for group {
      m = -inf; l = 0 (shared); o = 0 (owned)
      for each block of keys {
        queries and keys into shared memory
        for warp_row { scores += products of fragments }                                      (mma, owned)
        greatest scores of each thread, of each row; weights = exp(score - it)                (owned)
        values into shared memory
        for warp_row { o += products of the weights, packed where they are, and fragments }   (mma, owned)
      }
      for warp_row { for row { for thread { o / l, with the elementwise work } } }
    } }

A warp has 16 rows and all keys of a block, so that what is known of a row passes among the threads of one warp alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.machine.gpu_attention import Attended, warps_for
from tilewright.graph.match import dtype_of
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_loop, loop_var
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.cache import Cached
from tilewright.schedule.cuda.tensor_product import (
    TensorNest,
    TensorOperand,
    TensorRoles,
    TensorTile,
    share_tile,
)
from tilewright.schedule.gpu.attention import AttentionKernel, GpuAttention, KeyBlocks, is_last
from tilewright.schedule.gpu.product import nest_in
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.cuda import OWNED, Cuda
from tilewright.target.gpu.tensor_cores import (
    COLUMNS,
    LANE_ROWS,
    ROWS,
    WARP_ROW,
    TensorCore,
    tensor_core,
)
from tilewright.target.gpu.webgpu import REGISTERS, ROW, SHARED, THREAD, Gpu


@dataclass(frozen=True)
class CudaAttention(GpuAttention):
    """Attention of float32 as on all GPUs, that of 16-bit floats on tensor cores."""

    def multiplies(self, product: Op) -> bool:
        return super().multiplies(product) or _core_of(product) is not None

    def rows_of_block(self, product: Op, sizes: Attended) -> int | None:
        if _core_of(product) is None:
            return super().rows_of_block(product, sizes)
        found = warps_for(sizes)
        return None if found is None else found[0]

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        assert isinstance(target, Cuda)
        is_narrow = any(buffer_type(arg).dtype.bytes == 2 for arg in lowered.func.args)
        (TensorKernel if is_narrow else AttentionKernel)(s, lowered, target).run()


def _core_of(product: Op) -> TensorCore | None:
    left, right, sums = (dtype_of(v).name for v in (*product.operands, product.result))
    found = tensor_core(left, right, sums)
    return found if found is not None and found.pack else None


class TensorKernel(AttentionKernel):
    """The schedule of one kernel."""

    waits = (ROW, WARP_ROW)
    sums = scores_in = OWNED

    def choose(self, sizes: Attended) -> None:
        found = warps_for(sizes)
        if found is None:
            raise ScheduleError("its queries and heads fill no fragments of tensor cores")
        self.rows, self.keys = found
        self.columns = sizes.columns

    def arrange(self, rows: Op, columns: Op) -> Op:
        tile = TensorTile(self.rows, self.columns, ROWS, self.columns)
        return share_tile(self.s, tile, rows, columns, [])[-1]

    def share_out(self, blocks: KeyBlocks, rows: Op) -> None:
        form = self.form
        count = len(form.scores.axes)
        if form.column_axis != len(form.values.axes) - 1:
            raise ScheduleError("columns of the values do not follow each other")
        of_scores = (count - 2, count - 1)
        of_values = (form.row_axis, form.column_axis)
        (depth,) = (self.copies[o] for o in form.scores.reduce)
        scores = self._product(form.scores, of_scores, depth, self.keys)
        values = self._product(form.values, of_values, self.inner["values"], self.columns)
        cleared_maxima, cleared_totals, cleared_values, cleared_scores = blocks.cleared
        for nest in (*blocks.elementwise, cleared_scores):
            self._elements(scores, nest, of_scores)
        keep, factors = ([o, *nest_in(o)] for o in (blocks.running.keep, blocks.running.factors))
        corrections = [[o, *nest_in(o)] for o in blocks.running.corrections]
        for stage, buffer, inner in ((self.peak, blocks.maxima, self.inner["peak"]),
                                     (self.total, blocks.totals, self.inner["total"])):  # fmt: skip
            self._reduce(stage, buffer, inner)
        for nest in (cleared_maxima, cleared_totals, keep, factors, *corrections[:-1]):
            self._rows(nest)
        for nest in (cleared_values, corrections[-1]):
            self._elements(values, nest, of_values)
        owned = [blocks.scores, *([] if blocks.epilogue is None else [blocks.epilogue]), *blocks.running.weights]
        for buffer in owned:
            scores.own(buffer)
        values.own(blocks.values)

    def _product(self, stage: Stage, tile: tuple[int, int], reduced: Op, columns: int) -> TensorNest:
        """The products of a block, by the warps of a group."""
        s = self.s
        axes = [self.copies[o] for o in stage.axes]
        row, column = (axes[k] for k in tile)
        s.reorder(*(o for o in axes if o not in (row, column)), row, reduced, column)
        loads = [op for op in column.walk() if op.name == "load"]
        result = next(op.operands[1] for op in column.walk() if op.name == "store")
        loads = [op for op in loads if op.operands[0] is not result]
        if len(loads) != 2:
            raise ScheduleError("it is no product of two tensors")
        left, right = (buffer_type(op.operands[0]).dtype.name for op in loads)
        core = tensor_core(left, right, buffer_type(result).dtype.name)
        if core is None:
            raise ScheduleError(f"no tensor core multiplies {left} by {right}")
        operands: list[TensorOperand] = []
        buffers: list[Value] = []
        fills: list[Cached] = []
        for around, inner in ((row, column), (column, row)):
            s.reorder(around, reduced, inner)
            load = next(o for o in loads if any(loop_var(around) in i.vars for i in o.attrs["idx"]))
            loads.remove(load)
            read = len(operands)
            if load.operands[0].op is not None:  # weights, which threads own
                operands.append(TensorOperand(read, tile[0], tile[1]))
                buffers.append(load.operands[0])
                continue
            is_along = is_last(load, loop_var(reduced))
            made = s.preload(load, *((around, reduced) if is_along else (reduced, around)))
            operands.append(TensorOperand(read, 0, 1) if is_along else TensorOperand(read, 1, 0))
            buffers.append(s.set_space(made.buffer, SHARED))
            fills.append(Cached(made.buffer, made.fill))
        roles = TensorRoles(core, operands[0], operands[1], *tile)
        nest = TensorNest(s, self.cuda, stage, roles, TensorTile(self.rows, columns, ROWS, columns))
        nest.multiply(row, column, reduced, buffers)
        nest.copy(fills, row)
        return nest

    @property
    def cuda(self) -> Cuda:
        assert isinstance(self.machine, Cuda)
        return self.machine

    def _elements(self, product: TensorNest, nest: Sequence[Op], tile: tuple[int, int]) -> None:
        """Elements of a tile, each by the thread that owns it."""
        row, column = (nest[k] for k in tile)
        product.threads(row, column, [o for o in nest if o not in (row, column)])

    def _rows(self, nest: Sequence[Op], lanes: Op | None = None, inside: Sequence[Op] = ()) -> None:
        """Rows of a block, each by threads of the warp that has it: the first of them, or one for each iteration of
        `lanes`. A thread goes through the loops `inside` for both of its rows."""
        s = self.s
        row = next(o for o in nest if extent_of(o) == self.rows)
        warps = s.split(row, ROWS)
        half = s.split(warps.inner, LANE_ROWS)
        around = [o for o in nest if o not in (row, lanes, *inside)]
        shared = [warps.outer, half.inner, *([lanes] if lanes is not None else [])]
        s.reorder(*around, *shared, half.outer, *inside)
        for loop in (half.outer, *inside):
            s.unroll(loop)
        for loop, level in reversed(list(zip(shared, (WARP_ROW, ROW, THREAD), strict=False))):
            s.parallel(loop, level)

    def _reduce(self, stage: Stage, buffer: Value, keys: Op) -> None:
        """What the threads of a row have accumulated each, of the columns that they own, is put together in pairs."""
        s = self.s
        axes = [self.copies[o] for o in stage.axes]
        blocks = s.split(keys, COLUMNS)
        pairs = s.split(blocks.inner, 2)
        s.reorder(pairs.outer, *axes, blocks.outer, pairs.inner)
        tree = s.tree_reduce(buffer, pairs.outer, SHARED)
        clear = body_of(pairs.outer).ops[0]
        lanes = s.fission(clear, 1).before[-1]
        self._rows([lanes, *nest_in(lanes)], lanes)
        self._rows([pairs.outer, *axes, blocks.outer, pairs.inner], pairs.outer, [blocks.outer, pairs.inner])
        s.cache(tree.parts, blocks.outer, space=REGISTERS)
        for step in tree.steps:
            nest = [step, *nest_in(step)]
            self._rows(nest, step if extent_of(step) != 1 else None)
        (add,) = [op for op in tree.add if is_loop(op)]
        self._rows([add, *nest_in(add)])


