"""Products of bytes, both of which are computed in the call, for instructions that multiply groups of them.

    (a - a_zero) @ (b - b_zero)  =  a @ b  -  a_zero * columns of b, summed  -  b_zero * rows of a, summed
                                    +  depth * a_zero * b_zero

modulo 2^32, as the sums themselves are. What zero points add is left out where these are known to be 0.
"""

from __future__ import annotations

from tilewright.graph.match import dtype_of, shape_of, uniform_number
from tilewright.graph.quantised.dequantized import HALF, shifted
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import NoMatch, RewriteContext
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.reduce import reduce_sum
from tilewright.target.dots import Dot


def product_of_the_call(dot: Dot, op: Op, ctx: RewriteContext) -> Value | NoMatch:
    """The sums of a matmul_integer whose right operand is not known, by groups of bytes."""
    left, right, left_zero, right_zero = op.operands
    shapes = shape_of(left), shape_of(right)
    if min(map(len, shapes)) < 2:
        return NoMatch("one of its operands is a vector")
    if (dot.left, dot.right) != (dt.u8, dt.i8):
        return NoMatch("the machine multiplies no groups of bytes of the call")
    depth = shapes[0][-1]
    if not depth.is_const or depth.value % dot.group or not depth.value:
        return NoMatch(f"{depth} products are no multiple of the groups of {dot.group} that are added at once")
    (a, a_shift), (b, b_shift) = as_bytes(left, dot.left), as_bytes(right, dot.right)
    sums = matmul_widening(a, b, sums=dt.i32)
    a_zero, b_zero = _zero(left_zero, a_shift, ctx), _zero(right_zero, b_shift, ctx)
    if a_zero is not None:
        sums = ew.sub(sums, ew.mul(a_zero, _summed(b, len(shapes[1]) - 2)))
    if b_zero is not None:
        sums = ew.sub(sums, ew.mul(b_zero, _summed(a, len(shapes[0]) - 1)))
    if a_zero is not None and b_zero is not None:
        sums = ew.add(sums, ew.mul(ew.mul(a_zero, b_zero), depth.value))
    if sums.type != op.result.type:  # a dim of the columns has another name in their zero points
        return NoMatch(f"the sums are {sums.type}, and not {op.result.type}")
    return sums


def _zero(zero: Value, shift: int, ctx: RewriteContext) -> Value | None:
    """A zero point in i32, moved as its data are; None where it is 0."""
    number = uniform_number(zero, ctx.module)
    return None if number is not None and int(number) + shift == 0 else ew.add(ew.cast(zero, dtype=dt.i32), shift)


def _summed(x: Value, axis: int) -> Value:
    return reduce_sum(ew.cast(x, dtype=dt.i32), axes=(axis,), keepdims=True)


def as_bytes(x: Value, dtype: DType) -> tuple[Value, int]:
    """x moved into the range of a byte `dtype`, and by how much."""
    if dtype_of(x) is dtype:
        return x, 0
    shift = HALF if dtype is dt.u8 else -HALF
    return shifted(x, dtype, shift), shift
