"""Determinants and inverses of square matrices, by elimination with the greatest pivot of a column; factors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, minimum, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, require_equal_dim
from tilewright.ops.sort import unflattened
from tilewright.ops.traits.facts import FIRST, Traits


def require_square(x: TensorType) -> None:
    if x.rank < 2 or not x.dtype.is_float:
        raise ValueError(f"matrices of floats have 2 axes at least, not {x}")
    require_equal_dim(x.shape[-1], x.shape[-2], "rows and columns")


def _determinant_types(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x)
    return (TensorType(x.dtype, x.shape[:-2]),)


def _inverse_types(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x)
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


determinant.declares(Traits(continuous=FIRST))


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


inverse.declares(Traits(continuous=FIRST))


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


# Factors


def _least(a: Sym, b: Sym) -> Sym:
    return a if a == b else minimum(a, b)


def require_matrices(x: TensorType) -> None:
    if x.rank < 2 or not x.dtype.is_float:
        raise ValueError(f"matrices of floats have 2 axes at least, not {x}")


def _lu_types(x: TensorType) -> tuple[TensorType, ...]:
    require_matrices(x)
    *outer, rows, columns = x.shape
    return x, TensorType(dt.i32, (*outer, _least(rows, columns)))


@irregular(_lu_types)
def lu_factor(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The factors of each matrix of the last two axes with its rows exchanged: the upper one, and below its diagonal
    the lower one, whose own diagonal is 1; and for each step which row, counted from 1, was exchanged (LAPACK's getrf).
    """
    (x,), (y, pivots) = inputs, outputs
    *batch, rows, columns = x.shape
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a = _copied(t, x, outer)
        with t.loop(_least(rows, columns), "k") as k:
            pivot = _pivot(t, a, k)
            pivots.store((*outer, k), t.index(pivot + 1).cast(dt.i32))
            _exchange(t, a, k, pivot)
            with t.when(a[k, k].ne(0)), t.loop(rows - k - 1, "i") as d:
                row = k + 1 + d
                a.store((row, k), a[row, k] / a[k, k])
                factor = a[row, k]
                with t.loop(columns - k - 1, "j") as e:
                    a.store((row, k + 1 + e), a[row, k + 1 + e] - factor * a[k, k + 1 + e])
        _give(t, a, y, outer)


def _permutation_types(pivots: TensorType, *, size: Dim) -> tuple[TensorType, ...]:
    if pivots.rank < 1 or not pivots.dtype.is_int:
        raise ValueError(f"exchanges of rows are integers, not {pivots}")
    return (TensorType(dt.i64, (*pivots.shape[:-1], sym(size))),)


@irregular(_permutation_types)
def permutation(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, size: Dim) -> None:
    """Which of `size` rows stands where after the exchanges that `lu_factor` gives."""
    (x,), (y,) = inputs, outputs
    *batch, count = x.shape
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        with t.loop(size, "i") as i:
            y.store((*outer, i), t.index(i))
        with t.loop(count, "k") as k:
            other = x[(*outer, k)].cast(dt.i64) - 1
            last = t.index(sym(size) - 1)
            at = t.bind(t.apply("max", t.apply("min", other, last), t.const(0, dt.i64)), "other", 0, None)
            here, there = y[(*outer, k)], y[(*outer, at)]
            y.store((*outer, k), there)
            y.store((*outer, at), here)


def _copied(t: ScalarBuilder, x: Array, outer: Sequence[Sym]) -> Array:
    """Scratch with one matrix."""
    *_, rows, columns = x.shape
    a = t.alloc(x.dtype, (rows, columns))
    with t.loop(rows, "i") as i, t.loop(columns, "j") as j:
        a.store((i, j), x[(*outer, i, j)])
    return a


def _give(t: ScalarBuilder, a: Array, y: Array, outer: Sequence[Sym]) -> None:
    *_, rows, columns = y.shape
    with t.loop(rows, "i") as i, t.loop(columns, "j") as j:
        y.store((*outer, i, j), a[i, j])


def _cholesky_types(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x)
    return x, TensorType(dt.i32, x.shape[:-2])


@irregular(_cholesky_types)
def cholesky(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The lower triangular l of each symmetric matrix l l^T, of which the lower half is read; and 0, or the number of
    the first row, from 1 on, at which it turned out not to be positive definite."""
    (x,), (y, info) = inputs, outputs
    batch, size = x.shape[:-2], x.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a = _copied(t, x, outer)
        info.store(outer, 0)
        with t.loop(size, "k") as k:
            is_first = t.apply("not", a[k, k] > 0) & info[outer].eq(0)
            info.store(outer, t.select(is_first, t.index(k + 1).cast(dt.i32), info[outer]))
            a.store((k, k), t.apply("sqrt", a[k, k]))
            below = size - k - 1
            with t.loop(below, "i") as d:
                a.store((k + 1 + d, k), a[k + 1 + d, k] / a[k, k])
                a.store((k, k + 1 + d), 0)
            with t.loop(below, "i") as d, t.loop(d + 1, "j") as e:
                place = (k + 1 + d, k + 1 + e)
                a.store(place, a[place] - a[k + 1 + d, k] * a[k + 1 + e, k])
        _give(t, a, y, outer)


def _triangular_types(a: TensorType, b: TensorType, *, upper: bool, unit: bool = False) -> tuple[TensorType, ...]:
    require_square(a)
    if b.rank != a.rank or b.shape[:-2] != a.shape[:-2] or b.dtype != a.dtype:
        raise ValueError(f"right sides {b} do not fit the matrices {a}")
    require_equal_dim(a.shape[-1], b.shape[-2], "rows of the right side")
    return (b,)


@irregular(_triangular_types)
def solve_triangular(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, upper: bool, unit: bool = False
) -> None:
    """x of a x = b for triangular matrices a [.., n, n] and b [.., n, k]; with `unit` the diagonal counts as 1."""
    (a, b), (y,) = inputs, outputs
    batch, size, columns = a.shape[:-2], a.shape[-1], b.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        x = _copied(t, b, outer)
        with t.loop(size, "k") as step:
            k = size - 1 - step if upper else step
            if not unit:
                divisor = a[(*outer, k, k)]
                with t.loop(columns, "j") as j:
                    x.store((k, j), x[k, j] / divisor)
            with t.loop(size - 1 - step, "i") as d:
                row = d if upper else k + 1 + d
                factor = a[(*outer, row, k)]
                with t.loop(columns, "j") as j:
                    x.store((row, j), x[row, j] - factor * x[k, j])
        _give(t, x, y, outer)


solve_triangular.declares(Traits(continuous=frozenset({0, 1}), linear=frozenset({1})))


def _householder_types(x: TensorType) -> tuple[TensorType, ...]:
    require_matrices(x)
    *outer, rows, columns = x.shape
    return x, TensorType(x.dtype, (*outer, _least(rows, columns)))


@irregular(_householder_types)
def householder_factor(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The upper factor r of each matrix q r, below its diagonal the vectors of the reflections whose product q is (the
    first element of each is 1), and what these are scaled with (LAPACK's geqrf)."""
    (x,), (y, scales) = inputs, outputs
    *batch, rows, columns = x.shape
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a = _copied(t, x, outer)
        square, sums = t.alloc(x.dtype, (1,)), t.alloc(x.dtype, (columns,))
        with t.loop(_least(rows, columns), "k") as k:
            below = rows - k - 1
            square.store((0,), 0)
            with t.loop(below, "i") as d:
                square.store((0,), square[0] + a[k + 1 + d, k] * a[k + 1 + d, k])
            alpha = a[k, k]
            length = t.apply("sqrt", alpha * alpha + square[0])
            is_done = square[0].eq(0)
            beta = t.select(is_done, alpha, t.select(alpha > 0, -length, length))
            one = t.const(1, x.dtype)
            scale = t.select(is_done, one - 1, (beta - alpha) / t.select(is_done, one, beta))
            divisor = t.select(is_done, one, alpha - beta)
            scales.store((*outer, k), scale)
            with t.loop(below, "i") as d:
                a.store((k + 1 + d, k), a[k + 1 + d, k] / divisor)
            a.store((k, k), beta)
            _reflect(t, a, sums, scale, k, a, k + 1)
        _give(t, a, y, outer)


def _reflect(
    t: ScalarBuilder, a: Array, sums: Array, scale: Scalar, k: Sym, vectors: Array, first: Sym | int
) -> None:
    """Apply the reflection of column k of `vectors` to the columns of a from `first` on."""
    below, columns = a.shape[0] - k - 1, a.shape[1] - first
    with t.loop(columns, "j") as j:
        sums.store((first + j,), a[k, first + j])
    with t.loop(below, "i") as d, t.loop(columns, "j") as j:
        row = k + 1 + d
        sums.store((first + j,), sums[first + j] + vectors[row, k] * a[row, first + j])
    with t.loop(columns, "j") as j:
        a.store((k, first + j), a[k, first + j] - scale * sums[first + j])
    with t.loop(below, "i") as d, t.loop(columns, "j") as j:
        row = k + 1 + d
        a.store((row, first + j), a[row, first + j] - scale * vectors[row, k] * sums[first + j])


def _orthogonal_types(x: TensorType, scales: TensorType, *, columns: Dim) -> tuple[TensorType, ...]:
    require_matrices(x)
    if scales.rank != x.rank - 1 or scales.shape[:-1] != x.shape[:-2] or scales.dtype != x.dtype:
        raise ValueError(f"the scales {scales} do not fit the reflections {x}")
    return (TensorType(x.dtype, (*x.shape[:-1], sym(columns))),)


@irregular(_orthogonal_types)
def householder_product(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, columns: Dim
) -> None:
    """The first `columns` columns of the product of the reflections that `householder_factor` gives."""
    (x, scales), (y,) = inputs, outputs
    *batch, rows, _ = x.shape
    count, width = scales.shape[-1], sym(columns)
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        vectors = _copied(t, x, outer)
        a, sums = t.alloc(x.dtype, (rows, width)), t.alloc(x.dtype, (width,))
        with t.loop(rows, "i") as i, t.loop(width, "j") as j:
            a.store((i, j), t.index(i).eq(t.index(j)).cast(x.dtype))
        with t.loop(count, "k") as step:
            k = count - 1 - step
            _reflect(t, a, sums, scales[(*outer, k)], k, vectors, 0)
        _give(t, a, y, outer)


householder_product.declares(Traits(continuous=frozenset({0, 1})))
