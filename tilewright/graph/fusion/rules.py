"""What several strategies ask of two regions that would be one kernel."""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpClass, is_operator
from tilewright.graph.fusion.refusals import computed_again, needed_elsewhere, not_worth
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Facts, Join, Match
from tilewright.graph.match import is_constant
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.types import product


def epilogue(join: Join) -> Match | NoMatch:
    """Elementwise work on the result of a contraction or reduction, while it is in registers."""
    facts, op, producer, consumer = join.facts, join.op, join.producer, join.consumer
    if any(u is not op for u in join.value.users) and _feeds_rows_only(op, facts):
        return not_worth("the sums that read it need it twice and compute it again: it stays with them")
    if product(consumer.domain) != product(producer.domain):
        why = "the reader's result has another number of elements, so that one loop cannot compute both"
        return NoMatch(why, "a result with as many elements")
    if any(facts.info(o).selects_by_position or not facts.info(o).is_bijective for o in consumer.ops):
        change = f"{op.name} at another place, such as at the model's inputs"
        return NoMatch(f"{op.name} moves elements away from the tile that the kernel has at a time", change)
    if any(_moves(o, facts) for o in consumer.ops) and not join.leaves_nothing_else():
        return needed_elsewhere(join, "the tensor is needed in its own layout too")
    views = [facts.order[o] for o in producer.ops if _moves(o, facts)]
    if join.info.is_pointwise and facts.order[join.source] < max(views, default=-1):
        change = "elementwise work before the operator that moves elements"
        return NoMatch("the kernel has moved the elements already", change)
    return Match(producer.domain)


def into_reduction(join: Join) -> Match | NoMatch:
    """Elementwise work on what is reduced, as it is read."""
    if join.info.is_windowed:
        return computed_again(join, "its elements would be computed again for every window")
    return (
        Match(join.consumer.domain)
        if join.leaves_nothing_else()
        else needed_elsewhere(join, "what is computed with the tensor is needed elsewhere too")
    )


def read_by_epilogue(join: Join) -> Match | NoMatch | None:
    """Elements of another tensor that an epilogue reads, widened as they are read; None for any other join."""
    facts, producer = join.facts, join.producer
    widening = [o for o in producer.ops if not facts.info(o).is_alias]
    if join.info.kind is not OpClass.ELEMENTWISE or not all(_widens_alone(o, facts) for o in widening):
        return None
    if not join.leaves_nothing_else():
        return needed_elsewhere(join, "the wide tensor is needed elsewhere too")
    same = product(producer.domain) == product(join.info.domain) == product(join.consumer.domain)
    moved = any(_moves(o, facts) for o in join.consumer.ops)
    if not same or not join.info.is_pointwise or moved:
        return NoMatch("it has other elements than the tile that the kernel has at a time")
    return Match(join.consumer.domain)


def _widens_alone(op: Op, facts: Facts) -> bool:
    """Whether an op is cheap pointwise work on one narrower tensor, or on what such work gives, and constants."""
    tensors = [v for v in op.operands if v.tensor.size != 1 and not is_constant(v)]
    return facts.info(op).is_pointwise and len(tensors) == 1 and tensors[0].tensor.size == op.result.tensor.size


def is_widened_later(join: Join) -> bool:
    """Whether what `op` makes of a narrow tensor that others read, too, is read by elementwise work and reductions
    alone: these read the narrow elements, and store none of the wide ones."""
    facts, op = join.facts, join.op
    if not facts.info(op).is_pointwise or len(op.operands) != 1:
        return False
    if op.result.tensor.dtype.bits <= join.value.tensor.dtype.bits or join.is_only_reader():
        return False
    waiting, seen = [op], {op}
    while waiting:
        users = [u for v in waiting.pop().results for u in v.users if u not in seen]
        seen.update(users)
        for user in users:
            if not is_operator(user) or facts.info(user).kind in (OpClass.CONTRACTION, OpClass.OPAQUE):
                return False
            if facts.info(user).is_index_map or facts.info(user).is_alias or _widens_alone(user, facts):
                waiting.append(user)
    return True


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
