"""Orders: the k greatest or least elements, and sorting as the case where k is all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, le, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, checked_axis


def _topk_types(x: TensorType, *, k: Dim, axis: int, largest: bool = True) -> tuple[TensorType, ...]:
    a = checked_axis(axis, x.rank)
    count, size = sym(k), x.shape[a]
    if (highest := (size - count).bounds[1]) is not None and highest < 0:
        raise ValueError(f"{count} elements of {size} are too many")
    if (lowest := count.bounds[0]) is not None and count.is_const and lowest < 0:
        raise ValueError(f"{count} elements are too few")
    shape = tuple(count if n == a else d for n, d in enumerate(x.shape))
    return TensorType(x.dtype, shape), TensorType(dt.i64, shape)


@irregular(_topk_types)
def topk(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, k: Dim, axis: int, largest: bool = True
) -> None:
    """The `k` greatest (or least) elements along `axis` in order, and their positions (i64).

    Of equal elements the one at the lower position comes first; NaN counts as the greatest. Takes k passes.
    """
    (x,), (values, positions) = inputs, outputs
    a = checked_axis(axis, x.rank)
    others = [d for n, d in enumerate(x.shape) if n != a]
    with t.loop(product(others), "row", "parallel") as row:
        outer = unflattened(row, others)
        last, best = _Element(t, x), _Element(t, x)
        last.position.store((0,), -1)
        with t.loop(sym(k), "k") as rank:
            best.position.store((0,), -1)
            with t.loop(x.shape[a], "j") as j:
                _consider(t, x[with_axis(outer, a, j)], t.index(j), last, best, largest)
            place = with_axis(outer, a, rank)
            values.store(place, best.value[0])
            positions.store(place, best.position[0])
            last.value.store((0,), best.value[0])
            last.position.store((0,), best.position[0])


@topk.requires
def _enough_elements(x: TensorType, *, k: Dim, axis: int, largest: bool) -> tuple[Sym, str]:
    count, size = sym(k), x.shape[checked_axis(axis, x.rank)]
    return le(
        count, size
    ), f"the {count} greatest or least of {size} elements: it must be that {le(count, size)}"


class _Element:
    """A value and its position, kept in memory between iterations; position -1 stands for none."""

    def __init__(self, t: ScalarBuilder, x: Array) -> None:
        self.value = t.alloc(x.dtype, (1,))
        self.position = t.alloc(dt.i64, (1,))
        self.value.store((0,), t.const(0, x.dtype))


def _consider(
    t: ScalarBuilder, value: Scalar, position: Scalar, last: _Element, best: _Element, largest: bool
) -> None:
    """Make (value, position) the best so far if it comes after `last` in the order and before `best`."""
    last_value, last_position = last.value[0], last.position[0]
    is_later = _precedes(t, last_value, value, largest) | (
        _same(t, last_value, value) & (position > last_position)
    )
    is_open = (last_position < 0) | is_later
    best_value, best_position = best.value[0], best.position[0]
    is_better = (best_position < 0) | _precedes(t, value, best_value, largest)
    take = is_open & is_better
    best.value.store((0,), t.select(take, value, best_value))
    best.position.store((0,), t.select(take, position, best_position))


def _precedes(t: ScalarBuilder, a: Scalar, b: Scalar, largest: bool) -> Scalar:
    """Does a come before b? NaN is the greatest."""
    high, low = (a, b) if largest else (b, a)
    if not a.dtype.is_float:
        return high > low
    return (high > low) | (t.apply("is_nan", high) & low.eq(low))


def _same(t: ScalarBuilder, a: Scalar, b: Scalar) -> Scalar:
    return a.eq(b) if not a.dtype.is_float else a.eq(b) | (t.apply("is_nan", a) & t.apply("is_nan", b))


def unflattened(position: Sym, shape: Sequence[Sym]) -> tuple[Sym, ...]:
    """The index of the element at a row-major `position` of a tensor of `shape`."""
    index: list[Sym] = []
    for d in reversed(shape[1:]):
        d = sym(1) if d == 0 else d  # then there is no element, nor a position
        index.append(position % d)
        position = position // d
    return (position, *reversed(index)) if shape else ()


def with_axis(outer: Sequence[Sym], axis: int, position: Sym) -> tuple[Sym, ...]:
    """An index of all axes but one, with that one put in."""
    return (*outer[:axis], position, *outer[axis:])
