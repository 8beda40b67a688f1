"""The default schedule of row kernels: reductions over trailing axes, and elementwise work on the same rows.

    for row parallel { for each stage { for j vector { ... } } }

Every intermediate lives for one row only, so it stays in L1. Several short rows are interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.elementwise import FEW_VECTORS
from tilewright.cost.recompute import one_thread_suffices
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.refusals import not_worth
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Facts, Group, Join, Match
from tilewright.graph.match import is_constant
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_inside, is_loop, loop_var, reason_of
from tilewright.loops.kernel_info import results_of
from tilewright.loops.lanes.vectorize import MAX_LANES
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.rows.interleave_rows import interleave_rows, row_loop, rows_to_interleave
from tilewright.schedule.steps.access import loads_in, perfect_nest, stores_in, variables
from tilewright.schedule.steps.blocked_summation import LONGEST_PART
from tilewright.schedule.steps.flatten import flatten, is_contiguous, merge_flat_axes
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.vectorize import innermost_loops, lanes_for, vectorize_inner
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class RowReduction(Strategy):
    """Reductions of rows, and elementwise work on these: norms, softmax."""

    name = "row_reduction"
    form = "rows"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.ROW_REDUCTION

    def join(self, join: Join) -> Match | NoMatch | None:
        producer, consumer = join.producer, join.consumer
        first, second = producer.strategy is self, consumer.strategy is self
        if join.info.is_tiled or not all(
            own or is_elementwise(r) for own, r in ((first, producer), (second, consumer))
        ):
            return None
        taken = Match((producer if first else consumer).domain)
        if first and second:
            change = "reductions over the same axes of tensors of one shape"
            same = _rows_agree(producer.domain, consumer.domain)
            return taken if same else NoMatch("the two reduce rows of different shapes", change)
        if second:
            return taken if _rows_agree(consumer.domain, producer.domain) else NoMatch(NOT_ITS_ROWS)
        return (_why_not_on_rows(join, producer, consumer) or taken) if first else None

    def gather(self, op: Op, facts: Facts) -> Group | NoMatch | None:
        """Reductions of the rows of one tensor, which is read once for all of them."""
        region = facts.region(op)
        read = None if region is None else _only_tensor(region)
        if region is None or read is None or region.strategy is not self:
            return None
        readers = dict.fromkeys(facts.region(user) for user in read.users)
        alike = [r for r in readers if r is not None and r.strategy is self and r.domain == region.domain]
        siblings = [r for r in alike if r is not region and _only_tensor(r) is read]
        return Group((*siblings, region)) if siblings else None

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_rows(s, lowered, target)


def _only_tensor(region: Region) -> Value | None:
    """The only value, constants aside, that a region reads; None where it reads others."""
    own = {v for o in region.ops for v in o.results}
    read = {v for o in region.ops for v in o.operands if v not in own and not is_constant(v)}
    return read.pop() if len(read) == 1 else None


def is_row_reduction(region: Region) -> bool:
    """Whether fusion has made a region for this strategy, so far."""
    return isinstance(region.strategy, RowReduction)


NOT_ITS_ROWS = "it does not consist of the rows that are added up"


def _why_not_on_rows(join: Join, producer: Region, consumer: Region) -> NoMatch | None:
    if not _rows_agree(producer.domain, consumer.domain):
        return NoMatch(NOT_ITS_ROWS)
    elements = product(consumer.domain)
    if product(producer.domain) == 1 and not (elements.is_const and one_thread_suffices(elements.value)):
        why = "it has one row, which one thread would compute: two kernels share its elements among threads"
        return not_worth(why, "more rows at a time, such as a larger batch")
    if not (join.info.is_pointwise or join.info.is_bijective):
        return NoMatch(f"{join.op.name} reads the rows in another order", f"{join.op.name} at another place")
    return None


def _rows_agree(rows: tuple[Sym, ...], other: tuple[Sym, ...]) -> bool:
    """Whether a tensor of shape `other` consists of whole rows: the row axes are its leading axes."""
    lead = [d for d in rows if d != 1]
    return [d for d in other if d != 1][: len(lead)] == lead


def schedule_rows(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Run all stages on one row at a time. ScheduleError when they do not share their row axes."""
    share_rows(s, lowered)
    s.simplify()
    for block in [s.func.body, *(body_of(op) for op in s.func.body.walk() if is_loop(op))]:
        share_iterations(s, block)
    compute_in_outputs(s)
    _flatten_sums(s)
    parallelize_outer(s, target)  # before vectors: indices are still simple to reason about
    rows = row_loop(s)
    if rows is not None:
        _specialize_for_short_rows(s, rows, target)
    interleaving = rows_to_interleave(s, rows, target)
    for loop in innermost_loops(s):
        vectorize_inner(s, loop, target, interleaving.count)
    s.simplify()
    if rows is not None:
        interleave_rows(s, rows, interleaving, target)


def share_rows(s: Schedule, lowered: Lowered) -> int:
    """One nest over rows with all stages in it, which sum in buffers of their own; gives the axes of the nest. 0 where
    the whole is one row. ScheduleError when the stages do not share their row axes."""
    for stage in [st for st in lowered.stages if st.kind == "reduce"]:
        if buffer_type(stage.buffer).space == "global":
            _through_scratch(s, lowered, stage)
    shared = _shared_axes(lowered)
    if shared:
        _share_rows(s, lowered.stages, shared)
    return shared


def _specialize_for_short_rows(s: Schedule, row: Op, target: Target) -> None:
    """Leave rows of unknown length that a few vectors hold to a kernel of their own: loops over whole vectors and over
    what these leave, and sums of lanes after each, take longer than such a row."""
    loops = [o for o in innermost_loops(s) if is_inside(o, row)]
    lengths = {extent_of(o) for o in loops}
    if len(lengths) == 1 and len((length := lengths.pop()).vars) == 1 and target.masked_memory:
        s.at_least(length, 1 + FEW_VECTORS * max(lanes_for(o, target) for o in loops), of_few=True)


def _through_scratch(s: Schedule, lowered: Lowered, stage: Stage) -> None:
    """Sum in a buffer of its own, so that the row nest can hold the sum."""
    output = stage.buffer
    made = s.cache_write(output)
    stage.buffer = made.buffer
    drain = Stage(output.name, "map", "", output, axes=made.drain)
    lowered.stages.insert(lowered.stages.index(stage) + 1, drain)  # in program order


def _shared_axes(lowered: Lowered) -> int:
    """How many leading axes all stages have in common; none are needed where all reductions are of a whole tensor, one
    row, and the other stages work on what comes out of it."""
    rows = [[extent_of(o) for o in st.axes] for st in lowered.stages]
    reduced = [len(st.axes) for st in lowered.stages if st.kind == "reduce"]
    shared = 0
    while shared < min(map(len, rows)) and all(r[shared] == rows[0][shared] for r in rows):
        shared += 1
    shared = min([shared, *reduced])
    one_row = all(extent_of(o) == 1 for st in lowered.stages if st.kind == "reduce" for o in st.axes)
    if not shared and any(rows) and not one_row:
        raise ScheduleError("the stages share no leading axis")
    return shared


def _share_rows(s: Schedule, stages: Sequence[Stage], shared: int) -> None:
    """One nest of `shared` loops over rows with all stages in it; what is no result is kept for one row only."""
    final = [k for k, st in enumerate(stages) if buffer_type(st.buffer).space == "global"]
    first, last = final[0], final[-1]
    following = last
    for k in range(last, first, -1):  # what lies between results first joins the one that follows it
        if k in final:
            following = k
        else:
            s.compute_at(stages[k].buffer, stages[following].axes[shared - 1])
    for k in range(shared):
        for other in final[1:]:
            s.fuse(stages[first].axes[k], stages[other].axes[k])
    for stage in reversed(stages[:first]):
        s.compute_at(stage.buffer, stages[first].axes[shared - 1])


def share_iterations(s: Schedule, block: Block) -> None:
    """One pass for neighbouring stages where the later reads just the element that the one before has computed."""
    nests = [op for op in block.ops if is_loop(op)]
    for k, nest in enumerate(nests[:-1]):
        loops = perfect_nest(nest)
        following = _loops_down(nests[k + 1], len(loops))
        written = {store.operands[1] for store in stores_in(loops[-1])}
        if len(stores_in(nest)) != 1 or len(following) != len(loops):
            continue
        if not any(load.operands[0] in written for load in loads_in(following[-1])):
            continue
        try:
            for first, second in zip(loops, following, strict=True):
                s.fuse(first, second)
        except ScheduleError as e:
            s.missed.append(f"a row is gone over twice: {reason_of(e)}")
            continue
        nests[k + 1] = nest


def _loops_down(loop: Op, depth: int) -> list[Op]:
    """`loop` and up to `depth` loops inside of it, each the only loop of the one before."""
    loops = [loop]
    while len(loops) < depth:
        inner = [op for op in body_of(loops[-1]).ops if is_loop(op)]
        if len(inner) != 1:
            break
        loops.append(inner[0])
    return loops


def _flatten_sums(s: Schedule) -> None:
    """One loop for sums over several axes that lie one after the other: the iterations of the inner ones may be short.

    Longer sums stay in two loops, as a sum of sums is more exact; those of unknown length are cut into parts."""
    nests = [perfect_nest(op) for op in s.func.body.ops if is_loop(op)]
    if _are_of_whole_tensors(nests):
        for nest in nests:
            flatten(s, nest)
    for row in [op for op in s.func.body.ops if is_loop(op)]:
        for nest in map(perfect_nest, _innermost_rows(row)):
            short = _short_sum(nest)
            left = flatten(s, short)
            if len(left) == 1 < len(short) and not extent_of(left[0]).is_const and _adds_up(left[0]):
                s.split(left[0], LONGEST_PART * MAX_LANES, tail="peel")
    merge_flat_axes(s)
    s.simplify()


def _short_sum(nest: list[Op]) -> list[Op]:
    """The innermost loops of a nest that together run for no longer than one sum should, as far as is known."""
    for k in range(len(nest)):
        terms = product(extent_of(o) for o in nest[k:])
        if not terms.is_const or terms.value <= LONGEST_PART * MAX_LANES:
            return nest[k:]
    return []


def _are_of_whole_tensors(nests: Sequence[list[Op]]) -> bool:
    """Whether nests sum whole tensors, no more than one sum should, and compute others element by element, and all of
    them run over memory as it lies: then no index needs to be taken apart."""
    return all(
        is_contiguous(nest) and (_short_sum(nest) == nest or not _is_one_sum(nest)) for nest in nests
    ) and any(map(_is_one_sum, nests))


def _is_one_sum(nest: list[Op]) -> bool:
    over = {loop_var(loop) for loop in nest}
    return all(over.isdisjoint(variables(store.attrs["idx"])) for store in stores_in(nest[-1]))


def _adds_up(loop: Op) -> bool:
    """Whether it adds to one sum."""
    stores = stores_in(loop)
    still = all(loop_var(loop) not in variables(store.attrs["idx"]) for store in stores)
    return still and all(found is not None and found.is_sum for found in map(accumulation_of, stores))


def _innermost_rows(row: Op) -> list[Op]:
    """The loops inside of the last loop that all stages share."""
    inner = [op for op in body_of(row).ops if is_loop(op)]
    while len(inner) == 1 and len(body_of(row).ops) == 1:
        row = inner[0]
        inner = [op for op in body_of(row).ops if is_loop(op)]
    return inner


def compute_in_outputs(s: Schedule) -> None:
    """Rows that the last stage only rescales are kept in the output, so that the output's memory is fetched while
    there is still something to compute."""
    for scratch in [op.result for op in s.func.body.walk() if op.name == "alloc"]:
        for output in results_of(s.func):
            try:
                s.compute_in(scratch, output)
                break
            except ScheduleError:  # a search: most rows have no result that they could be kept in
                continue
