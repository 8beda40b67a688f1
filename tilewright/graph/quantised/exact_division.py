"""Division by a known scale without a division: the quotient's error is computed, and taken off.

    q = x * (1 / s)
    q + (x - q * s) * (1 / s)          each product fused with its sum

gives x / s as a division rounds it (Markstein, 1990), which decides where halves are rounded to.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from tilewright.graph.match import dtype_of, is_constant
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, rule
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.quant import rounded_ratio

BEYOND = 2.0**24
"""A quotient that every integer of 8 or 16 bits saturates for."""

SEARCHED = 32
"""Ops that are looked at for a value without an end."""

KEEP_FINITE = frozenset({"add", "sub", "mul", "max", "min", "neg", "abs", "fma", "cast", "reshape"})


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
    ratio = ew.mul(x, inverse)
    if not np.all(np.frexp(array)[0] == 0.5):  # else the reciprocal is exact
        if not is_finite(x, ctx):
            ratio = ew.min_(ew.max_(ratio, -BEYOND), BEYOND)
        error = ew.fma(ratio, constant(-array, "scale"), x)
        ratio = ew.fma(error, inverse, ratio)
    return rounded_ratio(ratio, zero, dtype)


def is_finite(value: Value, ctx: RewriteContext) -> bool:
    """Whether a value is surely finite: it comes from integers by little arithmetic with constants."""
    pending, seen = deque([value]), {value}
    while pending:
        current = pending.popleft()
        if is_constant(current):
            array = constant_array(current, ctx.module)
            if array is None or (dtype_of(current).is_float and not np.all(np.abs(array) < 1e6)):
                return False
            continue
        op = current.op
        if op is None or len(seen) > SEARCHED:
            return False
        if op.name == "dequantize_linear" or (op.name == "cast" and dtype_of(op.operands[0]).is_int):
            continue
        if op.name not in KEEP_FINITE:
            return False
        pending += [v for v in op.operands if v not in seen]
        seen.update(op.operands)
    return True
