"""Taking a region apart: where no kernel can be made of it, one is made of each of its operators."""

from __future__ import annotations

from typing import Any

from tilewright.graph.fusion.classify import classify, is_operator
from tilewright.graph.fusion.strategy import Match, Strategies, cheapest
from tilewright.ir.core import Block, Op, Value


def operators_of(region: Op) -> list[Op]:
    """The ops of a `fused` region that need a kernel: those with operands, and sources that are results."""
    *ops, final = region.blocks[0].ops
    return [o for o in ops if is_operator(o) and (o.operands or any(v in o.results for v in final.operands))]


def unfused(region: Op, strategies: Strategies[Any]) -> list[Op]:
    """A `fused` region for each operator of `region`, in order, which take over its results; it is dropped."""
    (body,) = region.blocks
    values: dict[Value, Value] = dict(zip(body.args, region.operands, strict=True))
    made: list[Op] = []
    for op in operators_of(region):
        single = _single(op, values, strategies)
        values |= dict(zip(op.results, single.results, strict=True))
        made.append(single)
    for old, inner in zip(region.results, body.ops[-1].operands, strict=True):
        values[inner].name = old.name
        old.replace_by(values[inner])
    region.drop()
    return made


def _single(op: Op, values: dict[Value, Value], strategies: Strategies[Any]) -> Op:
    """The region of one op; what it reads without being computed from anything is copied into it."""
    reads = [v for v in dict.fromkeys(op.operands) if v in values]
    sources = dict.fromkeys(v.op for v in op.operands if v not in values)
    block = Block([v.type for v in reads], [v.name for v in reads])
    inside: dict[Value, Value] = dict(zip(reads, block.args, strict=True))
    for inner in (*sources, op):
        assert inner is not None
        block.append(inner.clone(inside))
    block.append(Op("yield", [inside[v] for v in op.results]))
    info = classify(op)
    claimed = cheapest(strategies.answers(lambda s: Match(info.domain) if s.claims(op, info) else None))
    strategy = claimed[0] if isinstance(claimed, tuple) else strategies.ours[-1]
    attrs = {"strategy": strategy.name, "name": strategy.label or op.name}
    single = Op("fused", [values[v] for v in reads], [v.type for v in op.results], attrs, [block], op.loc)
    for old, new in zip(op.results, single.results, strict=True):
        new.name = old.name
    return single
