"""Why each value between two operators goes through memory, or not: what fusion decided, edge by edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from tilewright.cost.core import arithmetic_cycles, lanes_of, multiply_cycles
from tilewright.cost.roofline import round_trip_cycles
from tilewright.graph.fusion.classify import OpClass
from tilewright.graph.fusion.refusals import iterations, said
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Facts
from tilewright.ir.core import Op, Value
from tilewright.ir.notes import EdgeNote
from tilewright.ir.rewrite import NoMatch
from tilewright.target.target import Target


def edge_notes(
    ops: Sequence[Op], facts: Facts, refusal: Callable[[Value, Op], NoMatch], made: Mapping[Region, Op]
) -> list[EdgeNote]:
    """A note for each value that one operator of a region gives to another; to be called before regions become ops, of
    which `made` will have each. `refusal` tells of a value and its reader why they are of two kernels."""
    return [
        _note(value, op, facts, refusal, made)
        for op in ops
        if facts.region(op) is not None
        for value in dict.fromkeys(op.operands)
        if facts.region(value.op) is not None
    ]


def _note(
    value: Value, op: Op, facts: Facts, refusal: Callable[[Value, Op], NoMatch], made: Mapping[Region, Op]
) -> EdgeNote:
    source, target = facts.region(value.op), facts.region(op)
    assert value.op is not None and source is not None and target is not None
    about = (said(value.op), said(op), value.name or value.op.name, str(value.type))
    if source is target:
        how = target.strategy.name.replace("_", " ")
        alias = facts.info(op).is_alias or facts.info(value.op).is_alias
        reason = "it is the same memory by another shape" if alias else f"both are one {how} kernel"
        return EdgeNote(*about, True, reason, region=target, reader=target, made=made)
    if facts.is_view(op) and all(map(facts.is_view, target.ops)):
        same = "it is the same memory" + (" by another shape" if facts.info(op).is_alias else ", or a part of it")
        return EdgeNote(*about, True, same, region=source, reader=target, made=made)
    source = _computing(source, facts)
    if source is None:
        known = "it is an input of the model, or a constant, by another shape"
        return EdgeNote(*about, True, known, reader=target, made=made)
    why = refusal(value, op)
    saved = _saved(value, op, why, source, facts)
    return EdgeNote(*about, False, why.reason, why.change, why.blockers, saved, source, target, made)


def _saved(value: Value, op: Op, why: NoMatch, source: Region, facts: Facts) -> float | None:
    """Cycles of one core that one kernel would save: reading what `op` takes of the value, and storing it where nobody
    else reads it, without what would be computed again. None where that is nothing, or the machine is not known."""
    if facts.target is None or why.again == inf:
        return None
    taken = op.result if facts.is_view(op) or facts.info(op).is_index_map else value
    sizes = (v.tensor.size * v.tensor.dtype.bits // 8 for v in (value, taken))
    stored, read = (round_trip_cycles(size, facts.target) / 2 for size in facts.typical.medium(sizes))
    is_stored = sum(facts.region(user) is not source for user in value.users) > 1
    saved = min(stored, read) + (0 if is_stored else stored) - why.again * _cycles(source, facts, facts.target)
    return saved if saved > 0 else None


def _cycles(region: Region, facts: Facts, target: Target) -> float:
    """What one core computes of a region, from data in its caches."""
    total = 0.0
    for op in region.ops:
        (steps,) = facts.typical.medium([iterations(op)])
        dtype, info = op.results[0].tensor.dtype, facts.info(op)
        if info.kind is OpClass.CONTRACTION:
            total += multiply_cycles(steps, max(1, dtype.bytes), target)
        else:
            total += arithmetic_cycles(info.cost * steps, lanes_of(dtype.bits, target), target)
    return total


def _computing(region: Region, facts: Facts) -> Region | None:
    """The region that computes what a region gives a view of; itself where it does more, None where none
    does."""
    found: Region | None = region
    while found is not None and all(map(facts.is_view, found.ops)):
        found = facts.region(found.ops[0].operands[0].op)
    return found
