"""Products of bytes, both of which are computed in the call, for instructions that multiply groups of them.

    (a - a_zero) @ (b - b_zero)  =  a @ b  -  a_zero * columns of b, summed  -  b_zero * rows of a, summed
                                    +  depth * a_zero * b_zero

modulo 2^32, as the sums themselves are. What zero points add is left out where these are known to be 0. Products that
whole groups leave are added up for themselves.
"""

from __future__ import annotations

from tilewright.graph.match import dtype_of, shape_of, type_of, uniform_number
from tilewright.graph.quantised.dequantized import HALF, shifted
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import NoMatch, RewriteContext
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.source import sym_tensor
from tilewright.ops.view import slice_
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
    if depth.is_const and depth.value < dot.group:
        return NoMatch(f"{depth} products are less than the groups of {dot.group} that are added at once")
    if depth != shapes[1][-2]:
        return NoMatch(f"the depth is {depth} in one operand and {shapes[1][-2]} in the other")
    (a, a_shift), (b, b_shift) = as_bytes(left, dot.left), as_bytes(right, dot.right)
    sums = _sums(a, b, depth, dot.group)
    a_zero, b_zero = _zero(left_zero, a_shift, ctx), _zero(right_zero, b_shift, ctx)
    if a_zero is not None:
        sums = ew.sub(sums, ew.mul(a_zero, _summed(b, len(shapes[1]) - 2)))
    if b_zero is not None:
        sums = ew.sub(sums, ew.mul(b_zero, _summed(a, len(shapes[0]) - 1)))
    if a_zero is not None and b_zero is not None:
        sums = ew.add(sums, ew.mul(ew.mul(a_zero, b_zero), _number(depth)))
    if sums.type != op.result.type:  # a dim of the columns has another name in their zero points
        return NoMatch(f"the sums are {sums.type}, and not {op.result.type}")
    return sums


def _sums(a: Value, b: Value, depth: Sym, group: int) -> Value:
    """The sums of products: of whole groups, and of those that are left."""
    left = depth % group
    if left == 0:
        return matmul_widening(a, b, sums=dt.i32)
    whole = depth - left
    first = matmul_widening(_part(a, -1, sym(0), whole), _part(b, -2, sym(0), whole), sums=dt.i32)
    return ew.add(first, matmul_widening(_part(a, -1, whole, left), _part(b, -2, whole, left), sums=dt.i32))


def _part(x: Value, axis: int, start: Sym, size: Sym) -> Value:
    shape, at = shape_of(x), type_of(x).rank + axis
    starts = tuple(start if k == at else sym(0) for k in range(len(shape)))
    return slice_(x, starts=starts, sizes=tuple(size if k == at else d for k, d in enumerate(shape)))


def _number(depth: Sym) -> int | Value:
    return depth.value if depth.is_const else ew.cast(sym_tensor(values=(depth,), scalar=True), dtype=dt.i32)


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
