"""Matrices of weights whose columns are stored in another order: the data of a product take that order instead.

    x @ transpose(w[:, order])      becomes      x[:, inverse] @ transpose(w)

Quantised checkpoints store the columns of a group beside each other, whichever they are. Gathered, a matrix of narrow
weights would be made wide in a kernel of its own at each call; the rows of data are few.
"""

from __future__ import annotations

import numpy as np

from tilewright.graph.match import is_known, matrix_product, type_of
from tilewright.ir.core import Builder, Op
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, defining, rule
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather


@rule()
def order_data(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """For an index that names each column that is summed over once."""
    product = matrix_product(op)
    if product is None:
        return None
    x, w = op.operands[product.data], op.operands[product.weights]
    gathered = defining(w, "gather")
    if gathered is None or not is_known(gathered.operands[0]) or is_known(x):
        return None
    axis = type_of(w).rank - (1 if product.turns_weights else 2)
    order = constant_array(gathered.operands[1], ctx.module)
    if order is None or order.ndim != 1 or gathered.attrs["axis"] != axis:
        return None
    places = np.arange(len(order))
    if type_of(gathered.operands[0]).shape[axis] != len(order) or not np.array_equal(np.sort(order), places):
        return None
    inverse = constant(np.argsort(order).astype(np.int64), "order")
    along = type_of(x).rank - (2 if product.turns_data else 1)
    ordered = gather(x, inverse, axis=along, in_range=True)
    return matmul(
        ordered, gathered.operands[0], transpose_a=product.turns_data, transpose_b=product.turns_weights
    )
