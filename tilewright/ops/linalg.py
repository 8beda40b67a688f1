"""Determinants and inverses of square matrices, by elimination with the greatest pivot of a column."""

from __future__ import annotations

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.ops.shape import require_equal_dim
from tilewright.ops.sort import unflattened


def _require_square(x: TensorType) -> None:
    if x.rank < 2 or not x.dtype.is_float:
        raise ValueError(f"matrices of floats have 2 axes at least, not {x}")
    require_equal_dim(x.shape[-1], x.shape[-2], "rows and columns")


def _determinant_types(x: TensorType) -> tuple[TensorType, ...]:
    _require_square(x)
    return (TensorType(x.dtype, x.shape[:-2]),)


def _inverse_types(x: TensorType) -> tuple[TensorType, ...]:
    _require_square(x)
    return (x,)


@irregular(_determinant_types)
def determinant(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The determinant of each square matrix of the last two axes; that of no rows is 1."""
    (x,), (y,) = inputs, outputs
    batch, size = x.shape[:-2], x.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a = t.alloc(x.dtype, (size, size))
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            a.store((i, j), x[(*outer, i, j)])
        y.store(outer, 1)
        with t.loop(size, "k") as k:
            pivot = _pivot(t, a, k)
            _exchange(t, a, k, pivot)
            sign = t.select(t.index(pivot).eq(t.index(k)), t.const(1, x.dtype), t.const(-1, x.dtype))
            y.store(outer, y[outer] * (a[k, k] * sign))
            below = size - k - 1
            with t.when(a[k, k].ne(0)), t.loop(below, "i") as d:
                factor = a[k + 1 + d, k] / a[k, k]
                with t.loop(below, "j") as e:
                    place = (k + 1 + d, k + 1 + e)
                    a.store(place, a[place] - factor * a[k, k + 1 + e])


@irregular(_inverse_types)
def inverse(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The inverse of each square matrix of the last two axes; elements of that of a singular one are not finite."""
    (x,), (y,) = inputs, outputs
    batch, size = x.shape[:-2], x.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a = t.alloc(x.dtype, (size, size * 2))  # the matrix, and beside it the identity that becomes its inverse
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            a.store((i, j), x[(*outer, i, j)])
            a.store((i, size + j), t.index(i).eq(t.index(j)).cast(x.dtype))
        with t.loop(size, "k") as k:
            _exchange(t, a, k, _pivot(t, a, k))
            divisor = a[k, k]
            with t.loop(size * 2, "j") as j:
                a.store((k, j), a[k, j] / divisor)
            with t.loop(size, "i") as i, t.when(t.index(i).ne(t.index(k))):
                factor = a[i, k]
                with t.loop(size * 2, "j") as j:
                    a.store((i, j), a[i, j] - factor * a[k, j])
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            y.store((*outer, i, j), a[i, size + j])


def _pivot(t: ScalarBuilder, a: Array, k: Sym) -> Sym:
    """The row from k on whose element in column k has the greatest absolute value."""
    rows = a.shape[0]
    best, place = t.alloc(a.dtype, (1,)), t.alloc(dt.i64, (1,))
    best.store((0,), t.apply("abs", a[k, k]))
    place.store((0,), t.index(k))
    with t.loop(rows - k - 1, "i") as d:
        found = t.apply("abs", a[k + 1 + d, k])
        is_better = found > best[0]
        place.store((0,), t.select(is_better, t.index(k + 1 + d), place[0]))
        best.store((0,), t.select(is_better, found, best[0]))
    return t.bind(place[0], "pivot")


def _exchange(t: ScalarBuilder, a: Array, k: Sym, pivot: Sym) -> None:
    """Exchange two rows."""
    with t.loop(a.shape[1], "j") as j:
        upper, lower = a[k, j], a[pivot, j]
        a.store((k, j), lower)
        a.store((pivot, j), upper)
