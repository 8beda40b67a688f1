"""Why each value between two operators goes through memory, or not: what fusion decided, edge by edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.cost.roofline import round_trip_cycles
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.strategy import Facts
from tilewright.ir.core import Op, Value
from tilewright.ir.notes import EdgeNote

_WAYS_OUT = (
    ("cannot start before", "nothing: each of its elements needs sums that are complete only then"),
    ("another kernel lies between", "nothing, unless the kernel between them does not read the one and feed the other"),
    ("more than", "nothing: longer kernels take too long to compile"),
    ("not known", "known sizes: --shape, or --frequent for sizes that are usual"),
    ("several times", "nothing, while computing its elements again costs more than storing them once"),
    ("computed again", "nothing, while computing its elements again costs more than storing them once"),
    ("would compute it", "nothing, while computing its elements again costs more than storing them once"),
    ("one row", "more rows at a time, such as a larger batch"),
    ("of different shapes", "reductions over the same axes of tensors of one shape"),
    ("fit L2", "nothing: what lies between the two stays in the cache of each core"),
    ("filters again", "smaller filters, or a machine with larger caches"),
    ("out of range", "nothing: it is read again for few elements"),
    ("one element for each", "a result with as many elements"),
    ("layout", "operators that take the tensor as it lies"),
    ("moves elements", "the operator that moves elements at another place, such as at the model's inputs"),
    ("moved the elements", "elementwise work before the operator that moves elements"),
)
"""What would change a decision, by words of its reason; the first that fits."""

MOST_OTHERS = 8
"""Other readers that are told of a value: each of thousands would be told of all others."""

_NOTHING = "nothing in the model: this form of kernel has no place for it"


def edge_notes(
    ops: Sequence[Op], facts: Facts, refused: Mapping[tuple[Value, Op], str], made: Mapping[Region, Op]
) -> list[EdgeNote]:
    """A note for each value that one operator of a region gives to another; to be called before regions become ops, of
    which `made` will have each. `refused` are the reasons of merges that were."""
    return [
        _note(value, op, facts, refused, made)
        for op in ops
        if facts.region(op) is not None
        for value in dict.fromkeys(op.operands)
        if facts.region(value.op) is not None
    ]


def _note(
    value: Value, op: Op, facts: Facts, refused: Mapping[tuple[Value, Op], str], made: Mapping[Region, Op]
) -> EdgeNote:
    source, target = facts.region(value.op), facts.region(op)
    assert value.op is not None and source is not None and target is not None
    others = _others(value, op, source, facts)
    about = (said(value.op), said(op), value.name or value.op.name, str(value.type))
    if source is target:
        how = target.strategy.name.replace("_", " ")
        alias = facts.info(op).is_alias or facts.info(value.op).is_alias
        reason = "it is the same memory by another shape" if alias else f"both are one {how} kernel"
        return EdgeNote(*about, True, reason, region=target, reader=target, made=made)
    if facts.info(op).is_alias and all(facts.info(o).is_alias for o in target.ops):
        return EdgeNote(*about, True, "it is the same memory by another shape", region=source, reader=target, made=made)
    source = _computing(source, facts)
    if source is None:
        known = "it is an input of the model, or a constant, by another shape"
        return EdgeNote(*about, True, known, reader=target, made=made)
    reason = refused.get((value, op), "the two are parts of kernels that were joined with others before")
    (size,) = facts.typical.medium([value.tensor.size * value.tensor.dtype.bits // 8])
    saved = None if facts.target is None else round_trip_cycles(size, facts.target)
    return EdgeNote(*about, False, reason, _way_out(reason, others), others, saved, source, target, made)


def _others(value: Value, op: Op, source: Region, facts: Facts) -> tuple[str, ...]:
    """The first readers of a value in other regions than its own, without `op`."""
    found: dict[str, None] = {}
    for user in value.users:
        if user is not op and facts.region(user) is not source:
            found[said(user)] = None
            if len(found) == MOST_OTHERS:
                break
    return tuple(found)


def _computing(region: Region, facts: Facts) -> Region | None:
    """The region that computes what a region gives by another shape; itself where it does more, None where none
    does."""
    found: Region | None = region
    while found is not None and all(facts.info(op).is_alias for op in found.ops):
        found = facts.region(found.ops[0].operands[0].op)
    return found


def said(op: Op) -> str:
    """An operator, and the node that it came from."""
    name = op.loc.node or op.loc.value
    return f"{op.name} of '{name}'" if name else op.name


def _way_out(reason: str, others: Sequence[str]) -> str:
    if "needed" in reason and others:
        return f"one reader alone; it is also read by {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}"
    return next((way for words, way in _WAYS_OUT if words in reason), _NOTHING)
