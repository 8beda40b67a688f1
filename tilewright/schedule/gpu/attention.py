"""Attention in one kernel: a group has a block of query rows, and goes through all keys with a running greatest score.

    for layer { for group {
      m = -inf; l = 0; o = 0                          (shared)
      for each block of keys {
        scores of the block, from parts of queries and keys in shared memory, with their epilogue: scale, mask
        the greatest score of each row so far; weights = exp(score - it)
        l and o, corrected where it has grown, += weights, weights times a part of the values
      }
      the results o / l, with the elementwise work on them
    } }

Scores never leave shared memory. What is between the two products is what `loops.sums.running_max` knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.machine.gpu_attention import Attended, blocks_for, is_worth_one_kernel
from tilewright.cost.typical import TypicalSizes
from tilewright.graph.fusion.refusals import not_worth
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.rules import the_contraction
from tilewright.graph.fusion.strategy import Facts, Group
from tilewright.graph.match import shape_of
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.analysis.happens_before import missing_barriers
from tilewright.loops.edit import extent_of, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.ops.define import OPERATORS
from tilewright.schedule.gemm.attention import Attention, form_of, rows_before, why_apart, with_sources
from tilewright.schedule.gemm.contraction import is_contraction
from tilewright.schedule.gpu.product import nest_in, own_of
from tilewright.schedule.gpu.steps import share
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.webgpu import GROUP, LAYER, REGISTERS, SHARED, THREAD, Gpu


@dataclass(frozen=True)
class GpuAttention(Attention):
    """Two products with a softmax of rows between them."""

    machine: Gpu

    name = "gpu_attention"
    kind = "gpu"
    form = None  # type: ignore[assignment]
    is_needed = True

    def gather(self, op: Op, facts: Facts) -> Group | NoMatch | None:
        values = facts.region(op)
        if not facts.info(op).is_matrix_product or values is None or not is_contraction(values):
            return None
        found = rows_before(op, facts)
        if found is None:
            return None
        scores, rows = found
        first = the_contraction(scores, facts)
        reason = why_apart(op, scores, rows, values, facts) or _why_not_running(rows, facts)
        if reason:
            return NoMatch(reason)
        *batch, queries, keys = shape_of(first.result)
        depth, columns = shape_of(first.operands[0])[-1], shape_of(op.result)[-1]
        sizes = Attended(*facts.typical.medium((product(batch), queries, keys, depth, columns)))
        block = blocks_for(sizes, self.machine)
        if queries == 1:
            return NoMatch("each head has one query, and its keys are shared out better than its rows")
        if not depth.is_const or not columns.is_const or block is None:
            return NoMatch("its heads are of unknown size, or too large for shared memory")
        if not is_worth_one_kernel(sizes, block, self.machine):
            return not_worth("a few groups would go through all keys, and scores in memory are few bytes")
        return with_sources((scores, *rows, values), facts)

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        _Kernel(s, lowered, target).run()


def _why_not_running(rows: Sequence[Region], facts: Facts) -> str:
    """Why the work on rows is none that goes on with a greatest score so far; "" where it seems to be."""
    ops = [o for r in rows for o in r.ops]
    computes = [OPERATORS[o.name].compute([v.tensor for v in o.operands], o.attrs) for o in ops]
    if [c.combine for c in computes if c.combine] != ["max", "add"]:
        return "what is between the products is no sum of exponentials relative to their greatest"
    return ""


class _Kernel:
    """The schedule of one kernel."""

    def __init__(self, s: Schedule, lowered: Lowered, machine: Gpu) -> None:
        self.s, self.machine = s, machine
        self.form = form = form_of(s, lowered)
        self.copies: dict[Op, Op] = {}
        (depth,) = form.scores.reduce if len(form.scores.reduce) == 1 else (None,)
        if form.row is None or depth is None:
            raise ScheduleError("it has one row, or sums over several axes")
        columns = extent_of(form.column)
        if not extent_of(depth).is_const or not columns.is_const:
            raise ScheduleError("its heads are of unknown size")
        batch = product(map(extent_of, form.batch))
        sizes = (batch, extent_of(form.row), extent_of(form.values.reduce[0]), extent_of(depth), columns)
        block = blocks_for(Attended(*TypicalSizes({}).medium(sizes)), machine)
        if block is None:
            raise ScheduleError("no block of rows fits shared memory")
        self.block = block
        self.scores_own = own_of(block.rows, block.keys, machine)
        self.values_own = own_of(block.rows, columns.value, machine)
        tiles = ((block.keys, self.scores_own), (columns.value, self.values_own))
        self.threads = max(block.rows // own[0] * (n // own[1]) for n, own in tiles)

    def run(self) -> None:
        s, form, block = self.s, self.form, self.block
        assert form.row is not None
        s.reorder(*form.batch, form.column, form.row)
        rows = s.split(form.row, block.rows)  # its condition is then within all loops
        s.reorder(*form.batch, rows.outer, rows.inner, form.column)
        self._in_blocks(rows.outer)
        share(s, [rows.inner, form.column], self.threads)
        s.parallel(rows.outer, GROUP)
        if form.batch:
            layers, *more = form.batch
            for axis in more:
                layers = s.collapse(layers, axis)
            s.parallel(layers, LAYER)
        s.simplify()
        for op in missing_barriers(s.func, [level.name for level in self.machine.levels], THREAD):
            s.barrier(op, THREAD, "before")
        if isinstance(wrong := slots_of(s.func, self.machine), tuple):
            raise ScheduleError(wrong[0])

    def _in_blocks(self, rows: Op) -> None:
        """What a block of rows needs, by blocks of keys."""
        s, form = self.s, self.form
        between = [st for st in form.rows if st is not form.epilogue]
        sums = [st for st in between if st.kind == "reduce"]
        if [st.combine for st in sums] != ["max", "add"]:
            raise ScheduleError("there is no sum of exponentials relative to their greatest")
        peak, total = sums
        weights = between[between.index(peak) + 1 : between.index(total)]
        if between[0] is not peak or len(weights) != 1:
            raise ScheduleError("there is more between the products than a softmax")
        for stage in reversed(between[between.index(total) + 1 :]):  # such as 1 / l, for each result once more
            s.compute_at(stage.buffer, form.column, space=REGISTERS, guard="loads")
        made: dict[Stage, Value] = {}
        for stage in (form.values, total, weights[0], peak):
            fused = s.compute_at(stage.buffer, rows, space=SHARED, guard="loads")
            self.copies |= fused.copies
            made[stage] = fused.buffer
        cleared = [self._cleared(stage) for stage in (peak, total, form.values)]
        order = [self._outermost(st, st.reduce[0]) for st in (peak, total, form.values)]
        order.insert(1, self._outermost(weights[0], weights[0].axes[-1]))
        running = s.running_max(made[peak], order[0], order[1], order[2:], self.block.keys, SHARED)
        if form.epilogue is not None:
            self.copies |= s.compute_at(form.epilogue.buffer, running.loop, space=SHARED, guard="loads").copies
        scores = s.compute_at(form.scores.buffer, running.loop, space=SHARED, guard="loads")
        self.copies |= scores.copies
        cleared.append(self._cleared(form.scores))
        (depth,) = (self.copies[o] for o in form.scores.reduce)
        count = len(form.scores.axes)
        self._sum(form.scores, (count - 2, count - 1), depth, self.block.depth, self.scores_own)
        self._sum(form.values, (form.row_axis, form.column_axis), running.inner[-1], self.block.values, self.values_own)
        for stage, inner in ((peak, running.inner[0]), (total, running.inner[2])):
            axes = [self.copies[o] for o in stage.axes]
            s.reorder(*axes, inner)
            s.cache(made[stage], inner, space=REGISTERS)
            share(s, axes, self.threads)
        axes = [self.copies[o] for o in weights[0].axes[:-1]]
        s.reorder(*axes, running.inner[1])
        nests = [[*axes, running.inner[1]], *cleared]
        nests += [[o, *nest_in(o)] for o in (running.keep, running.factors, *running.corrections)]
        if form.epilogue is not None:
            nests.append([self.copies[o] for o in form.epilogue.axes])
        for nest in nests:
            share(s, nest, self.threads)

    def _cleared(self, stage: Stage) -> list[Op]:
        """The nest that clears a sum, which stands before the one that adds up from now on."""
        count = len(stage.axes)
        first = next(op for op in self.copies[stage.axes[0]].walk() if op.name == "store")
        return self.s.fission(first, count).before[-count:]

    def _outermost(self, stage: Stage, loop: Op) -> Op:
        """The loop over keys of a stage, around all others."""
        others = [self.copies[o] for o in stage.axes if o is not loop]
        self.s.reorder(self.copies[loop], *others)
        return self.copies[loop]

    def _sum(self, stage: Stage, tile: tuple[int, int], reduced: Op, part: int, own: tuple[int, int]) -> None:
        """Sums of a tile in registers, over parts of the operands in shared memory."""
        s = self.s
        axes = [self.copies[o] for o in stage.axes]
        row, column = (axes[k] for k in tile)
        step = s.split(reduced, part)
        s.reorder(*(o for o in axes if o not in (row, column)), step.outer, row, step.inner, column)
        loads = [op for op in column.walk() if op.name == "load" and op.operands[0].op is None]
        result = next(op.operands[1] for op in column.walk() if op.name == "store")
        fills = []
        for around, inner in ((row, column), (column, row)):
            s.reorder(around, step.inner, inner)
            for load in loads:
                read = {v for i in load.attrs["idx"] for v in i.vars}
                if load.operands[0].op is None and loop_var(around) in read:
                    order = [step.inner, around] if _is_last(load, loop_var(around)) else [around, step.inner]
                    made = s.preload(load, *order)
                    s.set_space(made.buffer, SHARED)
                    fills.append(made.fill)
        rows, columns = s.split(row, own[0]), s.split(column, own[1])
        s.reorder(rows.outer, columns.outer, step.inner, rows.inner, columns.inner)
        kept = s.cache(result, step.inner, space=REGISTERS)
        for axis in (*kept.fill, rows.inner, columns.inner, *kept.drain):
            s.unroll(axis)
        for fill in fills:
            share(s, fill, self.threads)
        share(s, [rows.outer, columns.outer], self.threads)


def _is_last(load: Op, v: Sym) -> bool:
    """Whether a variable moves along the elements that follow each other."""
    return bool(load.attrs["idx"]) and v in load.attrs["idx"][-1].vars
