"""Fusing again what was one region: for regions of which no good kernel can be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.passes import PassContext
from tilewright.target.target import Target


def fused_otherwise(region: Op, constant: Sequence[bool], strategies: Strategies[Any], target: Any) -> Block:
    """What a `fused` region computes as smaller regions and aliases: the strategy that it was made for makes none of
    several operators. Arguments and `return` of the block are operands and results of the region, which stays; those
    operands that are `constant` are ops of the block."""
    (body,) = region.blocks
    block = Block([a.type for a in body.args], [a.name for a in body.args])
    values: dict[Value, Value] = dict(zip(body.args, block.args, strict=True))
    for arg, known in zip(body.args, constant, strict=True):
        if known:
            op = Op("constant", [], [arg.type], {"name": arg.name})
            block.append(op)
            values[arg] = op.result
    *ops, final = body.ops
    for op in ops:
        copy = op.clone(values)
        for before, after in zip(op.results, copy.results, strict=True):
            after.name = before.name
        block.append(copy)
    block.append(Op("return", [values[v] for v in final.operands]))
    module = Module()
    module.add(Func("main", block))
    Fuse(strategies, apart=frozenset({region.attrs["strategy"]})).run(
        module, PassContext(target if isinstance(target, Target) else None, part_align=target.part_align)
    )
    return block


def put_in_place(region: Op, block: Block) -> list[Op]:
    """The ops of a block of `fused_otherwise`, in order, which take over the results of the region; it is dropped."""
    constants = [op.result for op in block.ops if op.name == "constant"]
    known = [v for v in region.operands if v.op is not None and v.op.name == "constant"]
    values: dict[Value, Value] = dict(zip((*block.args, *constants), (*region.operands, *known), strict=True))
    *ops, final = block.ops
    made: list[Op] = []
    for op in ops:
        if op.name == "constant":
            continue
        copy = op.clone(values)
        for before, after in zip(op.results, copy.results, strict=True):
            after.name = before.name
        made.append(copy)
    for old, inner in zip(region.results, final.operands, strict=True):
        values[inner].name = old.name
        old.replace_by(values[inner])
    region.drop()
    return made
