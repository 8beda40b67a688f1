"""What must hold of the operands of attention, which the decomposition of the specification takes apart."""

from __future__ import annotations

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import condition
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, eq, le, sym


@condition("Attention")
def attention(node: Node) -> None:
    """Queries, keys and values are of one batch, and nothing stretches the scores.

    They are [batch, heads, steps, size] or [batch, steps, heads * size], and a mask broadcasts to scores [batch, heads,
    steps, keys]; from version 24 on it may have fewer keys.
    """
    ranks = [node.rank(k) for k in range(3)]
    if len(set(ranks)) > 1 or ranks[0] not in (3, 4):
        raise ModelError(f"{node.op}: queries, keys and values have 3 or 4 axes each, not {ranks}")
    q, k, v = (node.shape(n) for n in range(3))
    listed = f"queries {node.type(0)}, keys {node.type(1)} and values {node.type(2)}"
    for other in (k, v):
        node.demand(eq(q[0], other[0]), f"{listed} are of different batches")
    node.demand(eq(k[-2], v[-2]), f"{listed}: keys and values are as many")
    heads, shared = _heads(node, q, 0), _heads(node, k, 1)
    if ranks[0] == 4:
        node.demand(eq(shared, v[1]), f"{listed}: keys and values have as many heads")
        node.demand(eq(q[3], k[3]), f"{listed}: heads of queries and keys have one size")
    else:
        node.demand(eq(q[2] * shared, k[2] * heads), f"{listed}: heads of queries and keys have one size")
    _check_past(node, shared)
    _check_mask(node, heads)


def _heads(node: Node, shape: tuple[Sym, ...], k: int) -> Sym:
    if len(shape) == 4:
        return shape[1]
    name = ("q_num_heads", "kv_num_heads")[k]
    count = node.attr(name)
    if count < 1:
        raise ModelError(f"{node.op}: {name} is {count}, it must be at least 1")
    return sym(count)


def _check_past(node: Node, heads: Sym) -> None:
    given = [n for n in (4, 5) if node.optional(n) is not None]
    if len(given) == 1:
        raise ModelError(f"{node.op}: past keys and past values come together, only {node.type(given[0])} is there")
    for n in given:
        batch, *_, size = node.shape(n - 3)
        own = size if node.rank(n - 3) == 4 else size // heads
        wanted = (batch, heads, *node.shape(4)[2:3], own)
        node.demand_shape(n, wanted, f"{node.type(n)} is not before {node.type(n - 3)} of {heads} heads")


def _check_mask(node: Node, heads: Sym) -> None:
    if node.optional(3) is None:
        return
    (batch, *_, steps, _), past = node.shape(0), node.optional(4)
    keys = node.shape(1)[-2] + (sym(0) if past is None else node.shape(4)[-2])
    wrong = f"a mask {node.type(3)} does not fit scores [{batch}, {heads}, {steps}, {keys}]"
    own = node.shape(3)[-1] if node.rank(3) else sym(1)
    if node.version >= 24:
        node.demand(le(own, keys), wrong)
        keys = own
    node.require_to_fit(3, (batch, heads, steps, keys), f"{node.op}: {wrong}")
