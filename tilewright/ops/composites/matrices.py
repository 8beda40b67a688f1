"""What follows from decompositions of matrices that are operators: solutions, eigenvalues, singular values."""

from __future__ import annotations

from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, le, minimum, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import linalg as la
from tilewright.ops.composites.declared import composite
from tilewright.ops.contract import matmul
from tilewright.ops.eigen import orthogonal_columns, symmetric_eigen
from tilewright.ops.index import gather, triangle
from tilewright.ops.reduce import dtype_of
from tilewright.ops.shape import broadcast
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import concat, expand, reshape, section, shape_of, slice_, transpose, unsqueeze


@composite
def matrix_transpose(x: Value) -> Value:
    """Each matrix with its rows as columns."""
    rank = len(shape_of(x))
    return transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


@composite
def cut(x: Value, rows: Sym, columns: Sym) -> Value:
    """The first rows and columns of each matrix."""
    *outer, m, n = shape_of(x)
    if (m, n) == (rows, columns):
        return x
    rank = len(outer) + 2
    return slice_(x, starts=(0,) * rank, sizes=(*outer, rows, columns), steps=(1,) * rank)


@composite
def identity(like: Value, rows: Sym, columns: Sym) -> Value:
    """One matrix of the dtype of another value."""
    same = ew.eq(iota(shape=(rows, 1), axis=0), iota(shape=(1, columns), axis=1))
    return ew.cast(same, dtype=dtype_of(like))


@composite
def diagonal(x: Value) -> Value:
    """The diagonals of square matrices."""
    *outer, n, columns = shape_of(x)
    flat = reshape(x, shape=(*outer, n * columns))
    if columns.is_const:
        steps = (*[1] * len(outer), columns.value + 1)
        return slice_(flat, starts=(0,) * len(steps), sizes=(*outer, n), steps=steps)
    step = dim_value(columns + 1)
    return gather(flat, ew.mul(iota(shape=(n,), axis=0), step), axis=len(outer))


@composite
def as_rows(x: Value) -> Value:
    """Vectors as matrices of one row."""
    return unsqueeze(x, axes=(len(shape_of(x)) - 1,))


def least(a: Sym, b: Sym) -> Sym:
    return a if a == b else minimum(a, b)


@composite
def mirrored(x: Value, lower: bool) -> Value:
    """The symmetric matrices of which one half is given."""
    half = triangle(x, diagonal=-1 if lower else 1, upper=not lower)
    return ew.add(triangle(x, diagonal=0, upper=not lower), matrix_transpose(half))


@composite
def solved_triangle(a: Value, b: Value, upper: bool, left: bool = True, unit: bool = False) -> Value:
    """x of a x = b, or x a = b, for triangular matrices a; batches are broadcast. With `unit` the diagonal counts as
    1."""
    if not left:
        return matrix_transpose(solved_triangle(matrix_transpose(a), matrix_transpose(b), not upper, True, unit))
    outer = broadcast(shape_of(a)[:-2], shape_of(b)[:-2])
    a, b = (expand(x, shape=(*outer, *shape_of(x)[-2:])) for x in (a, b))
    return la.solve_triangular(a, b, upper=upper, unit=unit)


@composite
def eigen(x: Value, lower: bool = True) -> tuple[Value, Value]:
    """Eigenvalues, least first, and eigenvectors as columns, of symmetric matrices of which one half is read."""
    values, vectors = symmetric_eigen(mirrored(x, lower))
    return values, vectors


def _rotated(x: Value) -> tuple[Value, Value, Value, bool]:
    """`orthogonal_columns` of matrices, or of these with rows as columns where there are fewer of them."""
    *_, m, n = shape_of(x)
    is_wide = le(m, n)
    is_turned = m != n and is_wide.is_const and bool(is_wide.value)
    lengths, products, rotations = orthogonal_columns(matrix_transpose(x) if is_turned else x)
    return lengths, products, rotations, is_turned


def _first(x: Value, count: Sym) -> Value:
    """The first elements of the last axis."""
    return x if shape_of(x)[-1] == count else section(x, -1, 0, count)


@composite
def singular_values(x: Value) -> Value:
    """Greatest first."""
    *_, m, n = shape_of(x)
    return _first(_rotated(x)[0], least(m, n))


@composite
def singular(x: Value, full_matrices: bool) -> tuple[Value, Value, Value]:
    """u, s and v^T, where x = u diag(s) v^T. Columns of u that belong to no singular value, or to 0, are those which
    reflections complete the others by."""
    *outer, m, n = shape_of(x)
    lengths, products, rotations, is_turned = _rotated(x)
    rows, columns = (n, m) if is_turned else (m, n)
    k = least(m, n)
    factors, scales = la.householder_factor(products)
    left = la.householder_product(factors, scales, columns=rows if full_matrices else k)
    zero, one = (full(value=value, dtype=dtype_of(x), shape=()) for value in (0, 1))
    signs = ew.select(ew.lt(diagonal(cut(factors, k, k)), zero), ew.neg(one), one)
    if full_matrices and rows != k:
        signs = concat(signs, expand(one, shape=(*outer, rows - k)), axis=len(outer))
    left = ew.mul(left, as_rows(signs))
    right = rotations if full_matrices else cut(rotations, columns, k)
    u, v = (right, left) if is_turned else (left, right)
    return u, _first(lengths, k), matrix_transpose(v)


@composite
def pseudo_inverse(x: Value, absolute: Value, relative: Value) -> Value:
    """Moore's and Penrose's, of singular values above the greater of `absolute` and `relative` times the greatest;
    these are of the batch's shape, or scalars."""
    lengths, products, rotations, is_turned = _rotated(x)
    inverse = inverted(lengths, _first(lengths, sym(1)), absolute, relative)
    # x = p v^T, and the columns of p have these lengths
    scaled = ew.mul(rotations, as_rows(ew.mul(inverse, inverse)))
    found = matmul(scaled, products, transpose_b=True)
    return matrix_transpose(found) if is_turned else found


@composite
def symmetric_inverse(x: Value, lower: bool, absolute: Value, relative: Value) -> Value:
    """The pseudo-inverse of symmetric matrices."""
    values, vectors = eigen(x, lower)
    sizes = ew.abs_(values)
    n = shape_of(values)[-1]
    ends = ew.max_(_first(sizes, sym(1)), section(sizes, -1, n - 1, 1))
    inverse = inverted(values, ends, absolute, relative)
    return matmul(ew.mul(vectors, as_rows(inverse)), vectors, transpose_b=True)


@composite
def inverted(values: Value, greatest: Value, absolute: Value, relative: Value) -> Value:
    """1 over each value whose size is above the limits, 0 for others."""
    limit = ew.max_(_column(absolute), ew.mul(_column(relative), greatest))
    zero, one = (full(value=value, dtype=dtype_of(values), shape=()) for value in (0, 1))
    return ew.select(ew.gt(ew.abs_(values), limit), ew.div(one, values), zero)


def _column(x: Value) -> Value:
    rank = len(shape_of(x))
    return unsqueeze(x, axes=(rank,)) if rank else x
