"""Conditions on positions, such as that of a causal mask: computed where they select, not read from memory.

    seen = ge(add(iota(rows), past), iota(keys));  select(seen, scores, -inf)

An element takes a comparison in the selection's kernel, where a tensor of flags takes a load, and memory of rows times
keys; and a kernel that knows the condition may leave out what it never selects.
"""

from __future__ import annotations

from tilewright.cost.recompute import is_cheap
from tilewright.graph.editing import replace_in
from tilewright.graph.fusion.classify import OpClass, classify, is_needed_whole, is_operator
from tilewright.graph.match import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Op, Value, replace_in_block
from tilewright.ir.scalar import SCALAR_OPS


def separate_conditions(body: Block) -> set[Op]:
    """The ops that compute cheap conditions of selections, and nothing else, from positions and dims alone. What is
    needed elsewhere, too, is computed for them once more; so are sources, such as positions, that have kernels of their
    own."""
    costs: dict[Value, int] = {}
    for op in body.ops:
        cost = _cost_of_positions(op, costs)
        if cost is not None:
            costs[op.result] = cost
    found: set[Op] = set()
    copies: dict[Op, Op] = {}
    for op in reversed(body.ops):
        if len(op.results) != 1 or op.result not in costs:
            continue
        if not op.operands and not is_needed_whole(op):  # each reader has its own anyway
            continue
        users = dict.fromkeys(op.result.users)
        readers = [u for u in users if u in found or _selects_by(u, op.result)]
        if len(readers) == len(users):
            found |= {op} if readers else set()
        elif readers:
            copies[op] = copy = op.clone({})
            copy.result.name = op.result.name
            replace_in(readers, op.result, copy.result)
            found.add(copy)
    if copies:
        replace_in_block(body, [o for op in body.ops for o in ((op, copies[op]) if op in copies else (op,))])
    return found


def _cost_of_positions(op: Op, costs: dict[Value, int]) -> int | None:
    """Scalar operations for an element of what follows from positions and dims alone; None of anything else, and where
    these are too many to be repeated."""
    if not is_operator(op) or len(op.results) != 1 or not all(v in costs for v in op.operands):
        return None
    info = classify(op)
    if info.kind is not OpClass.ELEMENTWISE or info.selects_by_position:
        return None
    cost = info.cost + sum(costs[v] for v in op.operands)
    return cost if is_cheap(cost) else None


def _selects_by(op: Op, condition: Value) -> bool:
    """Whether an op selects by a condition, and does nothing else with it."""
    chosen = SCALAR_OPS.get(op.name)
    is_selection = chosen is not None and chosen.conditions == 1 and dtype_of(condition) is dt.bool_
    return is_selection and op.operands[0] is condition and op.operands.count(condition) == 1
