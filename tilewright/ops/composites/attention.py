"""Heads of attention, and positions that rotate them."""

from __future__ import annotations

from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.declared import composite
from tilewright.ops.index import gather
from tilewright.ops.shape import UndecidedDimsError
from tilewright.ops.view import concat, reshape, section, shape_of, transpose


@composite
def to_heads(x: Value, count: int) -> Value:
    """[batch, steps, count * size] -> [batch, count, steps, size]; ValueError where the width is not so divided,
    UndecidedDimsError where it is unknown."""
    batch, steps, width = shape_of(x)
    if not width.is_const:
        raise UndecidedDimsError(f"a width of {width} can only be divided into heads where it is known", (width,))
    if count < 1 or width.value % count:
        raise ValueError(f"a width of {width} cannot be divided into {count} heads")
    apart = reshape(x, shape=(batch, steps, count, width.value // count))
    return transpose(apart, perm=(0, 2, 1, 3))


@composite
def from_heads(x: Value) -> Value:
    """[batch, heads, steps, size] -> [batch, steps, heads * size]."""
    batch, heads, steps, size = shape_of(x)
    return reshape(transpose(x, perm=(0, 2, 1, 3)), shape=(batch, steps, heads * size))


@composite
def rotated(x: Value, cos: Value, sin: Value, positions: Value, *, interleaved: bool) -> Value:
    """Heads [batch, heads, steps, size] rotated by the angles of their positions (Su et al., 2021).

    Pairs of elements are rotated: neighbours where they are `interleaved`, else those of two halves. cos and sin [most
    positions, pairs] are taken at `positions` [batch or 1, steps]; elements behind the pairs stay as they are.
    UndecidedDimsError where the numbers of elements and pairs are not known.
    """
    size, pairs = shape_of(x)[-1], shape_of(cos)[-1]
    if not (size.is_const and pairs.is_const):
        what = f"{pairs} pairs of {size} elements can only be rotated where both are known"
        raise UndecidedDimsError(what, (size, pairs))
    turning = x if size == 2 * pairs else section(x, -1, 0, 2 * pairs.value)
    cos, sin = (_at(table, positions, interleaved) for table in (cos, sin))
    result = ew.add(ew.mul(turning, cos), ew.mul(quarter_turned(turning, interleaved), sin))
    if size == 2 * pairs:
        return result
    return concat(result, section(x, -1, 2 * pairs.value, size.value - 2 * pairs.value), axis=3)


def _at(table: Value, positions: Value, interleaved: bool) -> Value:
    """[batch or 1, 1, steps, 2 * pairs]: the number of each pair for both of its elements."""
    count, pairs = shape_of(table)
    if interleaved:
        column = reshape(table, shape=(count, pairs, 1))
        both = reshape(concat(column, column, axis=2), shape=(count, 2 * pairs))
    else:
        both = concat(table, table, axis=1)
    found = gather(both, positions, axis=0)
    batch, steps, width = shape_of(found)
    return reshape(found, shape=(batch, sym(1), steps, width))


@composite
def quarter_turned(x: Value, interleaved: bool) -> Value:
    """The elements of each pair (a, b) as (-b, a), of heads [batch, heads, steps, an even size]."""
    *outer, width = shape_of(x)
    half = width.value // 2
    if not interleaved:
        return concat(ew.neg(section(x, -1, half, half)), section(x, -1, 0, half), axis=3)
    apart = reshape(x, shape=(*outer, half, 2))
    return reshape(concat(ew.neg(section(apart, -1, 1, 1)), section(apart, -1, 0, 1), axis=4), shape=(*outer, width))
