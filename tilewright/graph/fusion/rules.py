"""What several strategies ask of two regions that would be one kernel."""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpClass
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Facts, Join, Match
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.types import product


def epilogue(join: Join) -> Match | NoMatch:
    """Elementwise work on the result of a contraction or reduction, while it is in registers."""
    facts, op, producer, consumer = join.facts, join.op, join.producer, join.consumer
    if any(u is not op for u in join.value.users) and _feeds_rows_only(op, facts):
        return NoMatch("the reduction that reads it computes it from the same tensor")
    if product(consumer.domain) != product(producer.domain):
        return NoMatch("it does not have one element for each of the result")
    if any(facts.info(o).branches or not facts.info(o).is_bijective for o in consumer.ops):
        return NoMatch(f"{op.name} moves elements in a way that the tile loops cannot follow")
    if any(_moves(o, facts) for o in consumer.ops) and not join.leaves_nothing_else():
        return NoMatch("the tensor is needed in its own layout too")
    views = [facts.order[o] for o in producer.ops if _moves(o, facts)]
    if join.info.is_pointwise and facts.order[join.source] < max(views, default=-1):
        return NoMatch("the kernel has moved the elements already")
    return Match(producer.domain)


def into_reduction(join: Join) -> Match | NoMatch:
    """Elementwise work on what is reduced, as it is read."""
    if join.info.is_windowed:
        return NoMatch("its elements would be computed again for every window")
    return (
        Match(join.consumer.domain)
        if join.is_only_reader()
        else NoMatch("the tensor is needed elsewhere too")
    )


def the_contraction(region: Region, facts: Facts) -> Op:
    """The only contraction of a region."""
    (found,) = [o for o in region.ops if facts.info(o).kind is OpClass.CONTRACTION]
    return found


def _moves(op: Op, facts: Facts) -> bool:
    """Whether an op changes the positions of elements."""
    info = facts.info(op)
    return info.kind is OpClass.ELEMENTWISE and not info.is_pointwise


def _feeds_rows_only(op: Op, facts: Facts) -> bool:
    """Whether reductions of rows are the only readers."""
    users = [u for v in op.results for u in v.users]
    return all(facts.info(u).kind is OpClass.ROW_REDUCTION for u in users)
