"""The default schedule of elementwise kernels, and the last resort for all others: vectors inside, threads outside."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.elementwise import chunk_of_line, lanes_of_turns
from tilewright.cost.recompute import is_cheap, weights_are_cheap
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.refusals import computed_again, not_worth
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.graph.match import is_picked_of_known
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym, le
from tilewright.ir.types import product
from tilewright.loops.edit import body_of, extent_of, is_loop, kind_of, loop_var, reason_of
from tilewright.loops.stages import Lowered
from tilewright.schedule.maps.opaque import Opaque
from tilewright.schedule.steps.access import (
    conditional_nest,
    divisors_in,
    perfect_nest,
    stores_in,
    stride_in,
    turns_in,
)
from tilewright.schedule.steps.flatten import flatten, merge_flat_axes
from tilewright.schedule.steps.index_set_splitting import split_cases, split_index_sets
from tilewright.schedule.steps.parallelize import parallelize_outer, parallelize_pieces
from tilewright.schedule.steps.transpose_tiles import join_short_axes, schedule_squares, side_of, transposing
from tilewright.schedule.steps.vectorize import innermost_loops, lanes_for, vectorize_map, vectorize_remainder
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Elementwise(Strategy):
    """Elements that are computed each on its own. Its schedule is the last resort for all kernels but opaque ones."""

    name = "elementwise"
    form = "plain"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.ELEMENTWISE

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.info.is_tiled or not is_elementwise(join.producer) or not is_elementwise(join.consumer):
            return None
        same = product(join.producer.domain) == product(join.consumer.domain)
        return _why_apart(join) or Match((join.producer if same else join.consumer).domain)

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return NoMatch("the operator has loops of its own") if isinstance(region.strategy, Opaque) else Match()

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_maps(s, lowered, target)


def is_elementwise(region: Region) -> bool:
    """Whether fusion has made a region for this strategy, so far."""
    return isinstance(region.strategy, Elementwise)


def _why_apart(join: Join) -> NoMatch | None:
    """Why one elementwise kernel should not compute what another one reads; None when it should."""
    picks = any(join.facts.info(op).selects_by_position and len(op.operands) > 1 for op in join.producer.ops)
    if picks and join.has(lambda info: info.changes_last_axis, join.consumer):
        reason = "a transpose in registers needs one source for all elements; here it depends on the position"
        return not_worth(reason)
    if product(join.producer.domain) == product(join.consumer.domain) and join.info.is_pointwise:
        return None
    only_reader, cheap = join.is_only_reader(), is_cheap(join.facts.cost(join.producer))
    if join.info.selects_by_position:
        again = f"it would be computed in each of the cases of {join.op.name}"
        return None if only_reader and cheap else computed_again(join, again)
    cheap = cheap or (is_picked_of_known(join.value) and weights_are_cheap(join.facts.cost(join.producer)))
    if only_reader and (join.info.reads_once or cheap or _is_no_larger(join.consumer.domain, join.producer.domain)):
        return None
    return computed_again(join, "its elements would be computed several times")


def _is_no_larger(domain: Sequence[Sym], other: Sequence[Sym]) -> bool:
    """Whether it is known that a domain has no more elements than another one."""
    holds = le(product(domain), product(other))
    return holds.is_const and bool(holds.value)


def schedule_maps(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Fuse stages of equal shape, flatten what is contiguous, then vectors inside and threads outside."""
    _fuse_stages(s, lowered)
    s.simplify()
    for nest in [op for op in s.func.body.ops if is_loop(op)]:
        _split_where_divided(s, nest)
    in_pieces = any([split_cases(s, nest) for nest in s.func.body.ops if is_loop(nest)])
    if in_pieces:
        s.simplify()
    flat = [flatten(s, conditional_nest(op)) for op in _heads(s)]
    flat = [join_short_axes(s, loops, target) for loops in flat]
    merge_flat_axes(s)
    for loops in flat:
        _through_registers(s, loops, target)
    s.simplify()
    if any([split_index_sets(s, loop) for loop in _only_line(s)]):
        s.simplify()
    # before vectors: indices are still simple to reason about
    if in_pieces:
        parallelize_pieces(s, target)
        lines = [op for op in s.func.body.ops if is_loop(op) and kind_of(op) == "parallel" and _is_line(op)]
    else:
        parallelize_outer(s, target, keep_innermost=True)
        lines = _only_line(s)
    for line in lines:
        _chunk(s, line)
    if any([split_index_sets(s, loop) for loop in innermost_loops(s) if kind_of(loop) == "serial"]):
        s.simplify()
    for loop in innermost_loops(s):
        _vectorize(s, loop, target)
    s.simplify()


def _heads(s: Schedule) -> list[Op]:
    """The loops that are not alone within another one."""
    loops = [op for op in s.func.body.walk() if is_loop(op)]
    nested = {inner for op in loops for inner in conditional_nest(op)[1:]}
    return [op for op in loops if op not in nested]


def _through_registers(s: Schedule, loops: list[Op], target: Target) -> None:
    """Squares through registers where the nest transposes."""
    found = transposing(loops)
    side = side_of(*found, target) if found is not None else 0
    if found is None or not side:
        return
    with s.noting("not transposed through registers"):
        schedule_squares(s, loops, *found, side, target)


def _fuse_stages(s: Schedule, lowered: Lowered) -> None:
    """One nest for neighbouring stages of the same axes."""
    nests = [st.axes for st in lowered.stages if st.kind == "map" and st.axes]
    current = nests[0] if nests else ()
    for nest in nests[1:]:
        depth = _fuse_nests(s, current, nest)
        current = (*current[:depth], *nest[depth:])  # the loops that are around the later stage now


def _fuse_nests(s: Schedule, first: Sequence[Op], second: Sequence[Op]) -> int:
    """Fuse two nests of equal extents from the outside in; how many loops became one."""
    if [extent_of(o) for o in first] != [extent_of(o) for o in second]:
        return 0
    for depth, (a, b) in enumerate(zip(first, second, strict=True)):
        try:
            s.fuse(a, b)
        except ScheduleError as e:
            s.missed.append(f"two stages of equal axes stay apart: {reason_of(e)}")
            return depth
    return len(first)


def _split_where_divided(s: Schedule, nest: Op) -> None:
    """Split loops by what their variable is divided by, as then no index needs a division."""
    for loop in perfect_nest(nest):
        divisors = divisors_in(nest, loop)
        extent = extent_of(loop)
        if len(divisors) != 1 or (extent.is_const and extent.value <= min(divisors)):
            continue
        with s.noting("indices are divided for every element"):
            s.split(loop, divisors.pop(), tail="guard")
    s.simplify()


def _only_line(s: Schedule) -> list[Op]:
    """The loop that is all of the kernel, where it holds no other one."""
    loops = [op for op in s.func.body.ops if op.name != "return"]
    return loops if len(loops) == 1 and is_loop(loops[0]) and _is_line(loops[0]) else []


def _is_line(loop: Op) -> bool:
    return not any(is_loop(op) for op in body_of(loop).walk())


def _chunk(s: Schedule, line: Op) -> None:
    """Give a flat loop an outer one for threads to share."""
    extent = extent_of(line)
    chunk = chunk_of_line(extent.value if extent.is_const else None, turns_in(line))
    if chunk:
        s.split(line, chunk, tail="branch")


def _vectorize(s: Schedule, loop: Op, target: Target) -> None:
    lanes = lanes_of_turns(lanes_for(loop, target), turns_in(loop))
    if lanes < 2 or kind_of(loop) not in ("serial", "parallel"):
        return
    if not _worthwhile(loop):
        s.missed.append(f"loop '{loop_var(loop).name}' is not vectorised: it stores elements that are not contiguous")
        return
    with s.noting("not vectorised"):
        if kind_of(loop) == "parallel":
            left = s.vectorize(loop, lanes, tail="branch").tail
            if left is not None:
                vectorize_remainder(s, left, lanes, target)
        else:
            vectorize_map(s, loop, lanes, target)


def _worthwhile(loop: Op) -> bool:
    """Vectors of gathered and scattered elements gain nothing over single ones."""
    stores = stores_in(loop)
    return bool(stores) and all(stride_in(op, loop_var(loop)) in (0, 1) for op in stores)
