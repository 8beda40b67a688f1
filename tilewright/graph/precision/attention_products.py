"""The two products of attention, of which neither operand is known when compiling."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.cost.attention import is_one_block
from tilewright.graph.match import ELEMENTWISE, is_constant, shape_of, type_of
from tilewright.ir.core import Module, Op

REDUCTIONS = frozenset({"reduce_sum", "reduce_max"})


def attention_products(module: Module) -> Mapping[Op, tuple[Op, Op]]:
    """Each product of scores and of weights with values, with both of its kind: rows of the second are computed from
    those of the first by elementwise work and reductions of rows, which nobody else reads but more of the latter."""
    found: dict[Op, tuple[Op, Op]] = {}
    for op in module.main.body.ops:
        scores = _scores_of(op)
        if scores is not None and scores not in found:
            found[scores] = found[op] = (scores, op)
    return found


def why_not_packed(pair: tuple[Op, Op], group: int) -> str:
    """Why keys and values are not copied into panels of whole groups of products; "" where they are."""
    scores, _ = pair
    *_, rows, depth = shape_of(scores.operands[0])
    keys = shape_of(scores.result)[-1]
    if is_one_block(rows.value if rows.is_const else None):
        return "its keys and values are read for few rows, and are not packed by groups"
    if depth % group != 0 or keys % group != 0:
        return f"{depth} products, or {keys}, are no multiple of the groups of {group} that are added at once"
    return ""


def _scores_of(values: Op) -> Op | None:
    """The product that the rows of this one are computed from."""
    if not _is_product(values):
        return None
    seen: set[Op] = {values}
    waiting = [values.operands[0].op]
    products = []
    while waiting:
        op = waiting.pop()
        if op is None or op in seen or not type_of(op.result).rank:
            continue
        if op.name == "matmul":
            products.append(op)
            seen.add(op)
        elif op.name in ELEMENTWISE or op.name in REDUCTIONS:
            seen.add(op)
            waiting += [v.op for v in op.operands]
    if len(products) != 1 or not _is_product(products[0]):
        return None
    (scores,) = products
    inside = _between(scores, seen)
    if shape_of(scores.result) != shape_of(values.operands[0]) or values.operands[1].op in inside:
        return None
    users = (u for op in inside for v in op.results for u in v.users)
    return scores if all(u in seen or u.name in REDUCTIONS for u in users) else None


def _between(scores: Op, seen: set[Op]) -> set[Op]:
    """Those of `seen` that depend on the scores."""
    inside, waiting = {scores}, [scores]
    while waiting:
        for user in (u for v in waiting.pop().results for u in v.users):
            if user in seen and user not in inside and user.name != "matmul":
                inside.add(user)
                waiting.append(user)
    return inside


def _is_product(op: Op) -> bool:
    """Whether it is a product of rows, neither operand being a constant."""
    return op.name == "matmul" and not op.attrs["transpose_a"] and not any(map(is_constant, op.operands))
