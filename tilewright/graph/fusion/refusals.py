"""Refusals that several strategies give, with what blocks a kernel and how often elements would be computed again."""

from __future__ import annotations

from math import inf

from tilewright.graph.fusion.strategy import Join
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS, Compute

TILE_SIDE = 64
"""Elements along one side of a register tile at most: four vectors of 16."""

MOST_BLOCKERS = 3
"""Readers that are named of a value that others read, too."""


def said(op: Op) -> str:
    """An operator, and the node that it came from."""
    name = op.loc.node or op.loc.value
    return f"{op.name} of '{name}'" if name else "the outputs of the model" if op.name == "return" else op.name


def needed_elsewhere(join: Join, reason: str) -> NoMatch:
    """That others read what the producer of a join computes, too, and which these are."""
    inside = {join.op, *join.producer.ops}
    users = (u for o in join.producer.ops for v in o.results for u in v.users if u not in inside)
    first: dict[str, None] = {}
    for user in users:
        first[said(user)] = None
        if len(first) > MOST_BLOCKERS:
            break
    *names, more = (*first, "") if len(first) <= MOST_BLOCKERS else first
    readers = ", ".join(names) + (" and others" if more else "")
    return NoMatch(reason, f"one reader alone; it is also read by {readers}" if readers else "", tuple(names))


def not_worth(reason: str, change: str = "") -> NoMatch:
    """That the cost model found two kernels to be faster, or that one of them cannot be."""
    return NoMatch(reason, change, again=inf)


def computed_again(join: Join, reason: str, side: int = 1) -> NoMatch:
    """That elements would be computed several times: once for each time that `op` of the join reads them, of which
    `side` times in a row are one."""
    size, reads = join.facts.typical.medium([join.value.tensor.size, iterations(join.op)])
    return NoMatch(reason, again=max(1.0, reads / max(1, size) / side - 1))


def iterations(op: Op) -> Sym:
    """Steps of the loops of an op: of one with loops of its own, its first result's elements."""
    operator = OPERATORS[op.name]
    if operator.kind != "primitive":
        return op.results[0].tensor.size
    found: Compute = operator.compute([v.tensor for v in op.operands], op.attrs)
    return product(extent for _, extent in (*found.axes, *found.reduce))
