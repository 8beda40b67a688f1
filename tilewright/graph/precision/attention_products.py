"""The two products of attention, of which neither operand is known when compiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.cost.attention import is_one_block
from tilewright.cost.narrow_products import SumsShape
from tilewright.cost.typical import TypicalSizes
from tilewright.graph.match import is_constant, shape_of, type_of
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.traits.derive import is_reduction, product_of
from tilewright.ops.traits.pairing import pairs_rows
from tilewright.ops.view import pad


def attention_products(module: Module) -> Mapping[Op, tuple[Op, Op]]:
    """Each product of scores and of weights with values, with both of its kind: rows of the second are computed from
    those of the first by elementwise work and reductions of rows, which nobody else reads but more of the latter."""
    found: dict[Op, tuple[Op, Op]] = {}
    for op in module.main.body.ops:
        scores = _scores_of(op)
        if scores is not None and scores not in found:
            found[scores] = found[op] = (scores, op)
    return found


def why_not_packed(pair: tuple[Op, Op]) -> str:
    """Why keys and values are not copied into panels of groups of products; "" where they are."""
    rows = shape_of(pair[0].result)[-2]
    if is_one_block(rows.value if rows.is_const else None):
        return "its keys and values are read for few rows, and are not packed by groups"
    return ""


def sums_of(products: Sequence[Op], group: int, typical: TypicalSizes) -> list[SumsShape]:
    """What the estimate of narrow products asks for, of each typical size; all operands are data."""
    sizes = [product(shape_of(v)) for op in products for v in (*op.operands[:2], op.result)]
    depths = [d for op in products for d in (_depth(op), _depth(op) + missing(_depth(op), group))]
    count = len(products)
    found = []
    for extents in typical.of([*sizes, *depths]):
        left, right, result = (extents[k : 3 * count : 3] for k in range(3))
        depth, whole = (extents[3 * count + k :: 2] for k in range(2))
        made, filled = (sum(n * d for n, d in zip(result, ds, strict=True)) for ds in (depth, whole))
        found.append(SumsShape(made, filled, 0, sum(left) + sum(right)))
    return found


def _depth(product: Op) -> Sym:
    return shape_of(product.operands[0])[-1]


def missing(length: Sym, group: int) -> Sym:
    """By how many elements an axis is filled up to whole groups."""
    return -length % group


def filled(value: Value, axis: int, group: int) -> Value:
    """A tensor with zeros behind the end of an axis (counted from the end: -1, -2), up to whole groups."""
    shape = shape_of(value)
    more = missing(shape[axis], group)
    if more == 0:
        return value
    after = [more if k == len(shape) + axis else 0 for k in range(len(shape))]
    return pad(value, before=(0,) * len(shape), after=after)


def _scores_of(values: Op) -> Op | None:
    """The product that the rows of this one are computed from."""
    if not _is_product(values):
        return None
    seen: set[Op] = {values}
    waiting = [values.operands[0].op]
    products = []
    while waiting:
        op = waiting.pop()
        if op is None or op in seen or len(op.results) != 1 or not type_of(op.result).rank:
            continue
        if _multiplies_matrices(op):
            products.append(op)
            seen.add(op)
        elif pairs_rows(op) or is_reduction(op):
            seen.add(op)
            waiting += [v.op for v in op.operands]
    if len(products) != 1 or not _is_product(products[0]):
        return None
    (scores,) = products
    inside = _between(scores, seen)
    if shape_of(scores.result) != shape_of(values.operands[0]) or values.operands[1].op in inside:
        return None
    users = (u for op in inside for v in op.results for u in v.users)
    return scores if all(u in seen or is_reduction(u) for u in users) else None


def _between(scores: Op, seen: set[Op]) -> set[Op]:
    """Those of `seen` that depend on the scores."""
    inside, waiting = {scores}, [scores]
    while waiting:
        for user in (u for v in waiting.pop().results for u in v.users):
            if user in seen and user not in inside and not _multiplies_matrices(user):
                inside.add(user)
                waiting.append(user)
    return inside


def _is_product(op: Op) -> bool:
    """Whether it is a product of rows, neither operand being a constant."""
    product = product_of(op)
    if product is None or product.turns_data or not _multiplies_matrices(op):
        return False
    return not any(is_constant(op.operands[k]) for k in (product.data, product.weights))


def _multiplies_matrices(op: Op) -> bool:
    """Whether it is a product of matrices whose form is not chosen yet."""
    product = product_of(op)
    return product is not None and product.of_matrices and op.attrs.get("sums") is None
