"""Scaled dot-product attention, kept whole until a pass decides how to compute it."""

from __future__ import annotations

import math

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops.contract import matmul
from tilewright.ops.define import op
from tilewright.ops.elementwise import add, ge, mul, select
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.shape import Dim
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import shape_of


@op(keep=True)
def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    causal_offset: Dim = 0,
) -> Value:
    """softmax(q k^T * scale + mask) v (Vaswani et al., 2017); `scale` is 1 / sqrt(d) by default.

    q is [..., tq, d], k [..., tk, d], v [..., tk, dv]; the outer dims broadcast. A bool `mask` says what may
    be attended to, a float one is added. With `causal`, query i attends to keys up to i + `causal_offset`.
    """
    wide = widened(q)
    if scale is None:
        scale = 1 / math.sqrt(max(shape_of(q)[-1].value, 1))
    scores = mul(matmul(wide, widened(k), transpose_b=True), scale)
    nothing = full(value=-math.inf, dtype=dtype_of(scores), shape=())
    if causal:
        queries, keys = shape_of(scores)[-2:]
        last = add(
            iota(shape=(queries, sym(1)), axis=0), dim_value(causal_offset)
        )
        scores = select(ge(last, iota(shape=(keys,), axis=0)), scores, nothing)
    if mask is not None:
        scores = select(mask, scores, nothing) if dtype_of(mask) == dt.bool_ else add(scores, widened(mask))
    return as_dtype(matmul(softmax(scores, axis=-1), widened(v)), dtype_of(q))
