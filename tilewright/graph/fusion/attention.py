"""Attention as one kernel: where a product, reductions of its rows and a product with the rows follow each other.

    weights = softmax(q k^T * scale + mask);  result = weights v

The scores between the two products are as large as both sequences together; in one kernel they never leave the
cache. Nothing here knows softmax: any elementwise work and reductions of whole rows may stand between the products.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from tilewright.graph.fusion.classify import OpClass
from tilewright.graph.fusion.region import Region
from tilewright.graph.match import dtype_of, is_constant, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch


@dataclass(frozen=True)
class AttentionParts:
    """The regions of the product that gives the scores, of what is done on their rows, of the second product."""

    scores: Region
    weights: Region
    values: Region


def attention_parts(
    op: Op, region_of: Callable[[Op], Region], regions: Container[Op]
) -> AttentionParts | NoMatch | None:
    """The three regions around `op` where it is the second product; None where nothing looks like attention."""
    if op.name != "matmul":
        return None
    values = region_of(op)
    left = op.operands[0]
    if left.op is None or left.op not in regions or region_of(left.op).kind is not OpClass.ROW:
        return None
    weights = region_of(left.op)
    scores = _scores_of(weights, region_of, regions)
    if scores is None:
        return None
    reason = _refusal(op, scores, weights, values)
    return NoMatch(reason) if reason else AttentionParts(scores, weights, values)


def _scores_of(weights: Region, region_of: Callable[[Op], Region], regions: Container[Op]) -> Region | None:
    """The only region of a matrix product that the rows are computed from."""
    owners = {v.op for o in weights.ops for v in o.operands if v.op is not None and v.op in regions}
    found = {region_of(o) for o in owners if region_of(o).kind is OpClass.CONTRACTION}
    products = [r for r in found if any(o.name == "matmul" for o in r.ops)]
    return products[0] if len(products) == 1 == len(found) else None


def _refusal(op: Op, scores: Region, weights: Region, values: Region) -> str:
    """Why the three are not one kernel; "" when they are."""
    if op.attrs["transpose_a"]:
        return "the second product reads the rows as columns"
    first = next(o for o in scores.ops if o.name == "matmul")
    if any(is_constant(v) for o in (first, op) for v in o.operands):
        return "one of the products is with a constant"
    if not _is_read_by(scores, (weights,)):
        return "the scores are needed elsewhere too"
    if not _is_read_by(weights, (values,)):
        return "the weights are needed elsewhere too"
    rows = shape_of(op.operands[0])
    if shape_of(first.result) != rows:
        return "the rows are not those of the first product"
    if any(dtype_of(v) != dt.f32 for o in (first, op) for v in (*o.operands, o.result)):
        return "the register tiles are for f32"
    return ""


def _is_read_by(region: Region, readers: tuple[Region, ...]) -> bool:
    """Whether nothing but these regions reads what the region computes."""
    allowed = {o for r in (region, *readers) for o in r.ops}
    return all(u in allowed for o in region.ops for v in o.results for u in v.users)
