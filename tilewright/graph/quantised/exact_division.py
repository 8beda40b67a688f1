"""Division by a known scale without a division, rounded as one: this decides where halves are rounded to.

What sums or functions have rounded before is not known to the last bit: there a factor will do, which other passes
bring into the weights.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from tilewright.graph.match import dtype_of, hands_on_elements, is_constant
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, rule
from tilewright.ir.scalar import COSTLY
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.quant import is_quantisation, rounded_ratio
from tilewright.ops.traits.pairing import is_elementwise

SEARCHED = 32
"""Values that are looked at."""


@rule("quantize_linear")
def divide_by_known_scale(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """quantize(x) by products, for scales that are known and whose reciprocals are normal numbers."""
    x, scale, zero = op.operands
    dtype = op.attrs["dtype"]
    array = constant_array(scale, ctx.module)
    if array is None or array.dtype != np.float32 or dtype_of(x) != dt.f32:
        return None
    if not is_known_exactly(x) or not dtype.is_int or dtype.bits > 16 or not np.all((array > 1e-30) & (array < 1e30)):
        return None
    inverse = constant(np.float32(1) / array, "inverse")
    is_exact = np.all(np.frexp(array)[0] == 0.5)  # of powers of two
    ratio = ew.mul(x, inverse) if is_exact else ew.quotient(x, scale, inverse)
    return rounded_ratio(ratio, zero, dtype)


def is_known_exactly(value: Value) -> bool:
    """Whether the program says to the last bit what a value is: it is stored, or follows from such values by moves and
    arithmetic alone."""
    pending, seen = deque([value]), {value}
    while pending:
        value = pending.popleft()
        op = value.op
        if op is None or is_constant(value) or is_quantisation(op):
            continue
        if op.name in COSTLY or not (is_elementwise(op) or hands_on_elements(op)) or len(seen) > SEARCHED:
            return False
        pending += [v for v in op.operands if v not in seen]
        seen.update(op.operands)
    return True
