"""Eigenvalues of symmetric matrices, and singular values, by rotations of Jacobi's; exponentials of matrices.

All is computed in f64, whatever the element type. Rotations are as exact as any method and short; of matrices of
hundreds of rows LAPACK's reductions to bands take a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.linalg import require_matrices, require_square
from tilewright.ops.sort import unflattened
from tilewright.ops.traits.facts import FIRST, Traits

SWEEPS = 40
"""Passes over all pairs at most; rotations converge quadratically, some ten are enough for thousands of rows."""

EPSILON = 2.0**-52


def _eigen_types(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x)
    return TensorType(x.dtype, x.shape[:-1]), x


@irregular(_eigen_types)
def symmetric_eigen(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The eigenvalues of each symmetric matrix, least first, and its eigenvectors as columns of unit length, whose
    signs are arbitrary. Each pair of rows and columns is rotated until nothing beside the diagonal is left."""
    (x,), (values, vectors) = inputs, outputs
    batch, size = x.shape[:-2], x.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a, v = t.alloc(dt.f64, (size, size)), _identity(t, size)
        square = _cell(t, 0.0)
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            a.store((i, j), x[(*outer, i, j)].cast(dt.f64))
            square.store((0,), square[0] + a[i, j] * a[i, j])
        least = t.apply("sqrt", square[0]) * (EPSILON / 8)
        with _sweeps(t) as is_changed, _pairs(t, size) as (p, q):
            beside = a[p, q]
            with t.when(t.apply("abs", beside) > least):
                is_changed.store((0,), 1)
                c, s = _rotation(t, a[p, p], a[q, q], beside)
                _rotate_rows(t, a, p, q, c, s)
                with t.loop(size, "k") as k:
                    left, right = a[k, p], a[k, q]
                    a.store((k, p), c * left - s * right)
                    a.store((k, q), s * left + c * right)
                _rotate_rows(t, v, p, q, c, s)
        keys = t.alloc(dt.f64, (size,))
        with t.loop(size, "i") as i:
            keys.store((i,), -a[i, i])
        with _ranked(t, keys) as (i, rank):
            values.store((*outer, rank), a[i, i].cast(x.dtype))
            with t.loop(size, "k") as k:
                vectors.store((*outer, k, rank), v[i, k].cast(x.dtype))


def _singular_types(x: TensorType) -> tuple[TensorType, ...]:
    require_matrices(x)
    *outer, _, columns = x.shape
    return TensorType(x.dtype, (*outer, columns)), x, TensorType(x.dtype, (*outer, columns, columns))


@irregular(_singular_types)
def orthogonal_columns(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """For each matrix x an orthogonal v whose product x v has orthogonal columns: their lengths, greatest first, x v,
    and v. The lengths are the singular values, and those beyond the number of rows 0 (Hestenes, 1958)."""
    (x,), (lengths, products, rotations) = inputs, outputs
    *batch, rows, columns = x.shape
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a, v = t.alloc(dt.f64, (columns, rows)), _identity(t, columns)  # both hold columns as rows
        scale, square = _cell(t, 0.0), _cell(t, 0.0)
        with t.loop(columns, "j") as j, t.loop(rows, "i") as i:
            a.store((j, i), x[(*outer, i, j)].cast(dt.f64))
            scale.store((0,), t.apply("max", scale[0], t.apply("abs", a[j, i])))
        one = t.const(1, dt.f64)
        unit = t.select(scale[0].eq(0), one, scale[0])  # squares are of numbers up to 1
        with t.loop(columns, "j") as j, t.loop(rows, "i") as i:
            a.store((j, i), a[j, i] / unit)
            square.store((0,), square[0] + a[j, i] * a[j, i])
        nothing = square[0] * (EPSILON * EPSILON)
        dots = t.alloc(dt.f64, (3,))
        with _sweeps(t) as is_changed, _pairs(t, columns) as (p, q):
            _dot_products(t, dots, a, p, q)
            across = t.apply("abs", dots[2])
            bound = t.apply("sqrt", dots[0]) * t.apply("sqrt", dots[1]) * (4 * EPSILON)
            with t.when(across > bound, across > nothing):
                is_changed.store((0,), 1)
                c, s = _rotation(t, dots[0], dots[1], dots[2])
                _rotate_rows(t, a, p, q, c, s)
                _rotate_rows(t, v, p, q, c, s)
        keys = t.alloc(dt.f64, (columns,))
        with t.loop(columns, "j") as j:
            _dot_products(t, dots, a, j, j)
            keys.store((j,), t.apply("sqrt", dots[0]))
        with _ranked(t, keys) as (j, rank):
            lengths.store((*outer, rank), (keys[j] * unit).cast(x.dtype))
            with t.loop(rows, "i") as i:
                products.store((*outer, i, rank), (a[j, i] * unit).cast(x.dtype))
            with t.loop(columns, "k") as k:
                rotations.store((*outer, k, rank), v[j, k].cast(x.dtype))


# Parts of both


def _cell(t: ScalarBuilder, value: float) -> Array:
    cell = t.alloc(dt.f64, (1,))
    cell.store((0,), value)
    return cell


def _identity(t: ScalarBuilder, size: Sym) -> Array:
    found = t.alloc(dt.f64, (size, size))
    with t.loop(size, "i") as i, t.loop(size, "j") as j:
        found.store((i, j), t.index(i).eq(t.index(j)).cast(dt.f64))
    return found


@contextmanager
def _sweeps(t: ScalarBuilder) -> Iterator[Array]:
    """What is emitted inside is repeated until it leaves the cell that is given 0."""
    is_changed = _cell(t, 1.0)
    with t.loop(SWEEPS, "sweep"), t.when(is_changed[0].ne(0)):
        is_changed.store((0,), 0)
        yield is_changed


@contextmanager
def _pairs(t: ScalarBuilder, size: Sym) -> Iterator[tuple[Sym, Sym]]:
    with t.loop(size, "p") as p, t.loop(size - 1 - p, "d") as d:
        yield p, p + 1 + d


def _rotation(t: ScalarBuilder, first: Scalar, second: Scalar, beside: Scalar) -> tuple[Scalar, Scalar]:
    """The cosine and sine of the smaller angle that makes [[first, beside], [beside, second]] diagonal."""
    half = (second - first) / (beside * 2)
    one = t.const(1, dt.f64)
    size = one / (t.apply("abs", half) + t.apply("sqrt", half * half + 1))
    tangent = t.select(half < 0, -size, size)
    cosine = one / t.apply("sqrt", tangent * tangent + 1)
    return cosine, cosine * tangent


def _rotate_rows(t: ScalarBuilder, a: Array, p: Sym, q: Sym, c: Scalar, s: Scalar) -> None:
    with t.loop(a.shape[1], "k") as k:
        upper, lower = a[p, k], a[q, k]
        a.store((p, k), c * upper - s * lower)
        a.store((q, k), s * upper + c * lower)


def _dot_products(t: ScalarBuilder, found: Array, a: Array, p: Sym, q: Sym) -> None:
    """Those of row p with itself, q with itself, and of both."""
    for place in range(3):
        found.store((place,), 0)
    with t.loop(a.shape[1], "k") as k:
        upper, lower = a[p, k], a[q, k]
        for place, product_ in enumerate((upper * upper, lower * lower, upper * lower)):
            found.store((place,), found[place] + product_)


@contextmanager
def _ranked(t: ScalarBuilder, keys: Array) -> Iterator[tuple[Sym, Sym]]:
    """Each place of keys, and how many of the others come before it: those that are greater or, of equal ones, stand
    before. NaN counts as infinite."""
    (size,) = keys.shape
    count = t.alloc(dt.i64, (1,))

    def key(i: Sym) -> Scalar:
        return t.select(keys[i].eq(keys[i]), keys[i], float("inf"))

    with t.loop(size, "i") as i:
        count.store((0,), 0)
        with t.loop(size, "j") as j:
            is_same_before = key(j).eq(key(i)) & (t.index(j) < t.index(i))
            count.store((0,), count[0] + ((key(j) > key(i)) | is_same_before).cast(dt.i64))
        yield i, t.bind(count[0], "rank", 0, None)


# Exponentials

DEGREE = 18
"""Of the series of matrices whose norm is at most 1/2: what is left out is less than the last digit of f64."""


def _exponential_types(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x)
    return (x,)


@irregular(_exponential_types)
def matrix_exponential(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The exponential of each square matrix: the series of a matrix that is halved until it is small, squared as many
    times (Moler & Van Loan, 2003)."""
    (x,), (y,) = inputs, outputs
    batch, size = x.shape[:-2], x.shape[-1]
    with t.loop(product(batch), "matrix", "parallel") as matrix:
        outer = unflattened(matrix, batch)
        a, total, spare = (t.alloc(dt.f64, (size, size)) for _ in range(3))
        norm, row = _cell(t, 0.0), _cell(t, 0.0)
        with t.loop(size, "i") as i:
            row.store((0,), 0)
            with t.loop(size, "j") as j:
                a.store((i, j), x[(*outer, i, j)].cast(dt.f64))
                row.store((0,), row[0] + t.apply("abs", a[i, j]))
            norm.store((0,), t.apply("max", norm[0], row[0]))
        exponent = t.apply("ceil", t.apply("log", norm[0]) * 1.4426950408889634) + 1
        # of no number and of those beyond f64 no halving helps
        is_usual = (exponent > 0) & (exponent < 1100.0)
        halvings = t.select(is_usual, exponent, 0.0)
        times = t.bind(halvings.cast(dt.i64), "times", 0, 1100)
        factor = _cell(t, 1.0)
        with t.loop(times, "k"):
            factor.store((0,), factor[0] * 0.5)
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            a.store((i, j), a[i, j] * factor[0])
            total.store((i, j), t.index(i).eq(t.index(j)).cast(dt.f64))
        with t.loop(DEGREE, "term") as k:  # Horner's rule: total = 1 + a total / (DEGREE - k)
            _product(t, spare, a, total)
            divisor = t.index(DEGREE - k).cast(dt.f64)
            with t.loop(size, "i") as i, t.loop(size, "j") as j:
                total.store((i, j), spare[i, j] / divisor + t.index(i).eq(t.index(j)).cast(dt.f64))
        with t.loop(times, "k"):
            _product(t, spare, total, total)
            with t.loop(size, "i") as i, t.loop(size, "j") as j:
                total.store((i, j), spare[i, j])
        with t.loop(size, "i") as i, t.loop(size, "j") as j:
            y.store((*outer, i, j), total[i, j].cast(x.dtype))


matrix_exponential.declares(Traits(continuous=FIRST))


def _product(t: ScalarBuilder, c: Array, a: Array, b: Array) -> None:
    size = a.shape[0]
    with t.loop(size, "i") as i:
        with t.loop(size, "j") as j:
            c.store((i, j), 0)
        with t.loop(size, "k") as k, t.loop(size, "j") as j:
            c.store((i, j), c[i, j] + a[i, k] * b[k, j])
