"""Division by a known scale without a division, rounded as one: this decides where halves are rounded to."""

from __future__ import annotations

import numpy as np

from tilewright.graph.match import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, rule
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.quant import rounded_ratio


@rule("quantize_linear")
def divide_by_known_scale(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """quantize(x) by products, for scales that are known and whose reciprocals are normal numbers."""
    x, scale, zero = op.operands
    dtype = op.attrs["dtype"]
    array = constant_array(scale, ctx.module)
    if array is None or array.dtype != np.float32 or dtype_of(x) != dt.f32:
        return None
    if not dtype.is_int or dtype.bits > 16 or not np.all((array > 1e-30) & (array < 1e30)):
        return None
    inverse = constant(np.float32(1) / array, "inverse")
    is_exact = np.all(np.frexp(array)[0] == 0.5)  # of powers of two
    ratio = ew.mul(x, inverse) if is_exact else ew.quotient(x, scale, inverse)
    return rounded_ratio(ratio, zero, dtype)
