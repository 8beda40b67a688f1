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
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.analysis.happens_before import missing_barriers
from tilewright.loops.edit import extent_of, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.sums.running_max import Running
from tilewright.ops.define import OPERATORS
from tilewright.schedule.gemm.attention import (
    Attention,
    form_of,
    rows_before,
    skip_masked_keys,
    why_apart,
    with_sources,
)
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
        reason = why_apart(op, scores, rows, values, facts, self.multiplies) or _why_not_running(rows, facts)
        if reason:
            return NoMatch(reason)
        *batch, queries, keys = shape_of(first.result)
        depth, columns = shape_of(first.operands[0])[-1], shape_of(op.result)[-1]
        sizes = Attended(*facts.typical.medium((product(batch), queries, keys, depth, columns)))
        block = self.rows_of_block(first, sizes)
        if queries == 1:
            return NoMatch("each head has one query, and its keys are shared out better than its rows")
        if not depth.is_const or not columns.is_const or block is None:
            return NoMatch("its heads are of unknown size, or too large for shared memory")
        if not is_worth_one_kernel(sizes, block, self.machine):
            return not_worth("a few groups would go through all keys, and scores in memory are few bytes")
        return with_sources((scores, *rows, values), facts)

    def rows_of_block(self, product: Op, sizes: Attended) -> int | None:
        """Query rows of a group; None where no block fits."""
        block = blocks_for(sizes, self.machine)
        return None if block is None else block.rows

    def multiplies(self, product: Op) -> bool:
        """Whether there is a schedule for products of these dtypes."""
        return all(dtype_of(v) is dt.f32 for v in (*product.operands, product.result))

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        AttentionKernel(s, lowered, target).run()


def _why_not_running(rows: Sequence[Region], facts: Facts) -> str:
    """Why the work on rows is none that goes on with a greatest score so far; "" where it seems to be."""
    ops = [o for r in rows for o in r.ops]
    computes = [OPERATORS[o.name].compute([v.tensor for v in o.operands], o.attrs) for o in ops]
    if [c.combine for c in computes if c.combine] != ["max", "add"]:
        return "what is between the products is no sum of exponentials relative to their greatest"
    return ""


@dataclass(eq=False)
class KeyBlocks:
    """What the stages of a kernel have become: nests over a block of keys, each with its loops in the order of the axes
    of its sums, and the buffers. The nests that clear sums are those of the maxima, of the sums of weights, of values,
    and of scores."""

    running: Running
    maxima: Value
    totals: Value
    values: Value
    scores: Value
    epilogue: Value | None
    cleared: list[list[Op]]
    elementwise: list[list[Op]]
    """The exponentials, and those converted."""


class AttentionKernel:
    """The schedule of one kernel, whose threads wait for each other by barriers of the levels `waits`; `sums` and
    `scores_in` are the memories of what is summed and of scores and weights."""

    waits: tuple[str, ...] = (THREAD,)
    sums = scores_in = SHARED

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
        self.choose(Attended(*TypicalSizes({}).medium(sizes)))

    def choose(self, sizes: Attended) -> None:
        """Sizes of blocks and tiles. ScheduleError where there are none."""
        block = blocks_for(sizes, self.machine)
        if block is None:
            raise ScheduleError("no block of rows fits shared memory")
        self.rows, self.keys, self.depth, self.part = block.rows, block.keys, block.depth, block.values
        self.scores_own = own_of(block.rows, block.keys, self.machine)
        self.values_own = own_of(block.rows, sizes.columns, self.machine)
        tiles = ((block.keys, self.scores_own), (sizes.columns, self.values_own))
        self.threads = max(block.rows // own[0] * (n // own[1]) for n, own in tiles)

    def run(self) -> None:
        s, form = self.s, self.form
        assert form.row is not None
        s.reorder(*form.batch, form.column, form.row)
        rows = s.split(form.row, self.rows)  # its condition is then within all loops
        s.reorder(*form.batch, rows.outer, rows.inner, form.column)
        last = self.arrange(rows.inner, form.column)
        self.share_out(self._in_blocks(rows.outer, last), rows.inner)
        s.parallel(rows.outer, GROUP)
        if form.batch:
            layers, *more = form.batch
            for axis in more:
                layers = s.collapse(layers, axis)
            s.parallel(layers, LAYER)
        s.simplify()
        for op, level in missing_barriers(s.func, [level.name for level in self.machine.levels], *self.waits):
            s.barrier(op, level, "before")
        if isinstance(wrong := slots_of(s.func, self.machine), tuple):
            raise ScheduleError(wrong[0])

    def arrange(self, rows: Op, columns: Op) -> Op:
        """Bring the loops over a block of results into their order; the innermost one."""
        return columns

    def _in_blocks(self, rows: Op, last: Op) -> KeyBlocks:
        """What a block of rows needs, by blocks of keys; `last` is the innermost loop over results."""
        s, form = self.s, self.form
        between = [st for st in form.rows if st is not form.epilogue]
        if [st.combine for st in between if st.kind == "reduce"] != ["max", "add"] or between[0].kind != "reduce":
            raise ScheduleError("there is no sum of exponentials relative to their greatest")
        peak, total = (st for st in between if st.kind == "reduce")
        late = [st for st in between if st.kind == "map" and extent_of(st.axes[-1]) == 1]
        for stage in reversed(late):  # such as 1 / l, for each result once more
            s.compute_at(stage.buffer, last, space=REGISTERS, guard="loads")
        made: dict[Stage, Value] = {}
        order = [st for st in (*between, form.values) if st not in late]
        for stage in reversed(order):
            space = self.sums if stage is form.values else SHARED
            fused = s.compute_at(stage.buffer, rows, space=space, guard="loads")
            self.copies |= fused.copies
            made[stage] = fused.buffer
        if form.epilogue is not None:
            fused = s.compute_at(form.epilogue.buffer, rows, guard="loads")
            self.copies |= fused.copies
            masked = fused.buffer
            skip_masked_keys(s, rows, fused.nests[0], self.keys)
        cleared = [self._cleared(stage) for stage in (peak, total, form.values)]
        loops = [self._outermost(st, (*st.axes, *st.reduce)[-1]) for st in order]
        running = s.running_max(made[peak], loops[0], loops[1], loops[2:], self.keys, SHARED)
        if self.scores_in != SHARED:
            for weights in running.weights:
                s.set_space(weights, self.scores_in)
        inner = dict(zip(order, running.inner, strict=True))
        self.inner = {"peak": inner[peak], "total": inner[total], "values": inner[form.values]}
        self.peak, self.total = peak, total
        epilogue = None
        if form.epilogue is not None:
            fused = s.compute_at(masked, running.loop, space=self.scores_in, guard="loads")
            self.copies |= {o: fused.copies[self.copies[o]] for o in form.epilogue.axes}
            epilogue = fused.buffer
        scores = s.compute_at(form.scores.buffer, running.loop, space=self.scores_in, guard="loads")
        self.copies |= scores.copies
        cleared.append(self._cleared(form.scores))
        elementwise = []
        for stage in [st for st in order if st.kind == "map"]:
            axes = [self.copies[o] for o in stage.axes[:-1]]
            s.reorder(*axes, inner[stage])
            elementwise.append([*axes, inner[stage]])
        if form.epilogue is not None:
            elementwise.append([self.copies[o] for o in form.epilogue.axes])
        return KeyBlocks(
            running, made[peak], made[total], made[form.values], scores.buffer, epilogue, cleared, elementwise
        )

    def share_out(self, blocks: KeyBlocks, rows: Op) -> None:
        """Give all nests to threads, the one of the results, over `rows` and columns, among them."""
        s, form = self.s, self.form
        (depth,) = (self.copies[o] for o in form.scores.reduce)
        count = len(form.scores.axes)
        self._sum(form.scores, (count - 2, count - 1), depth, self.depth, self.scores_own)
        self._sum(
            form.values, (form.row_axis, form.column_axis), self.inner["values"], self.part, self.values_own
        )
        for stage, buffer, inner in ((self.peak, blocks.maxima, self.inner["peak"]),
                                     (self.total, blocks.totals, self.inner["total"])):  # fmt: skip
            axes = [self.copies[o] for o in stage.axes]
            s.reorder(*axes, inner)
            s.cache(buffer, inner, space=REGISTERS)
            share(s, axes, self.threads)
        running = blocks.running
        nests = [*blocks.elementwise, *blocks.cleared, [rows, form.column]]
        nests += [[o, *nest_in(o)] for o in (running.keep, running.factors, *running.corrections)]
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
                    order = [step.inner, around] if is_last(load, loop_var(around)) else [around, step.inner]
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


def is_last(load: Op, v: Sym) -> bool:
    """Whether a variable moves along the elements that follow each other."""
    return bool(load.attrs["idx"]) and v in load.attrs["idx"][-1].vars
