"""Factors of matrices, and what follows from these: solutions, inverses, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.torch.adapters.contract import product as matrix_product
from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import linalg as la
from tilewright.ops import reduce as rd
from tilewright.ops.composites import matrices as mx
from tilewright.ops.composites.matrices import cut, diagonal, identity, solved_triangle, turned
from tilewright.ops.eigen import matrix_exponential
from tilewright.ops.index import gather_elements, scatter_elements, triangle
from tilewright.ops.shape import broadcast
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import expand, shape_of, squeeze, unsqueeze


def _info(x: Value) -> Value:
    """0 for each matrix: that it has a factor is not checked."""
    return full(value=0, dtype=dt.i32, shape=shape_of(x)[:-2])


def _number(d: Sym | int) -> Value:
    return sym_tensor(values=(sym(d),), scalar=True)


# Elimination


@aten("linalg_lu_factor_ex", "_lu_with_info")
def lu_factor(node: AtenNode, pivot: bool = True, **how: Any) -> tuple[Value, Value, Value]:
    """Singular matrices are not reported: their factors have a 0 in the diagonal."""
    x = how["A"] if "A" in how else how["self"]
    factors, pivots = _factored(node, x, pivot)
    return factors, pivots, _info(x)


def _factored(node: AtenNode, x: Value, pivot: bool = True) -> tuple[Value, Value]:
    if not pivot:
        raise node.refuse("factors without an exchange of rows", "leave out pivot=False")
    factors, pivots = la.lu_factor(x)
    return factors, pivots


@aten("linalg_lu")
def lu(node: AtenNode, A: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    factors, pivots = _factored(node, A, pivot)
    return _unpacked(factors, pivots)


@aten("lu_unpack")
def lu_unpack(
    node: AtenNode, LU_data: Value, LU_pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Value, ...]:
    found = _unpacked(LU_data, LU_pivots)
    nothing = full(value=0, dtype=node.dtype, shape=(0,))
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return tuple(x if is_wanted else nothing for x, is_wanted in zip(found, wanted, strict=True))


def _unpacked(factors: Value, pivots: Value) -> tuple[Value, Value, Value]:
    """The permutation as a matrix, and the lower and the upper factor."""
    *_, m, n = shape_of(factors)
    k = m if m == n else s.minimum(m, n)
    lower = ew.add(triangle(cut(factors, m, k), diagonal=-1, upper=False), identity(factors, m, k))
    order = la.permutation(pivots, size=m)
    rows = iota(shape=(m, 1), axis=0)
    same = ew.eq(rows, unsqueeze(order, axes=(len(shape_of(order)) - 1,)))
    return ew.cast(same, dtype=type_of(factors).dtype), lower, triangle(cut(factors, k, n), diagonal=0, upper=True)


def _solved(factors: Value, pivots: Value, b: Value) -> Value:
    """x of a x = b, of the factors of a."""
    outer = broadcast(shape_of(factors)[:-2], shape_of(b)[:-2])
    n = shape_of(factors)[-1]
    factors, b = (expand(x, shape=(*outer, *shape_of(x)[-2:])) for x in (factors, b))
    order = expand(la.permutation(pivots, size=n), shape=(*outer, n))
    places = expand(unsqueeze(order, axes=(len(outer) + 1,)), shape=shape_of(b))
    exchanged = gather_elements(b, places, axis=len(outer))
    found = la.solve_triangular(factors, exchanged, upper=False, unit=True)
    return la.solve_triangular(factors, found, upper=True)


@aten("linalg_lu_solve")
def lu_solve(node: AtenNode, LU: Value, pivots: Value, B: Value, left: bool = True, adjoint: bool = False) -> Value:
    b = B if left else turned(B)
    found = _solved(LU, pivots, b) if adjoint is not left else _solved_turned(LU, pivots, b)
    return found if left else turned(found)


def _solved_turned(factors: Value, pivots: Value, b: Value) -> Value:
    """x of a^T x = b, of the factors of a."""
    outer = broadcast(shape_of(factors)[:-2], shape_of(b)[:-2])
    n = shape_of(factors)[-1]
    upside, b = (expand(x, shape=(*outer, *shape_of(x)[-2:])) for x in (turned(factors), b))
    found = la.solve_triangular(upside, b, upper=False)
    found = la.solve_triangular(upside, found, upper=True, unit=True)
    order = expand(la.permutation(pivots, size=n), shape=(*outer, n))
    places = expand(unsqueeze(order, axes=(len(outer) + 1,)), shape=shape_of(b))
    return scatter_elements(found, places, found, axis=len(outer))


@aten("_linalg_solve_ex")
def solve(
    node: AtenNode, A: Value, B: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value | None, ...]:
    """Right sides are vectors where they have the shape of a batch of these."""
    a = A if left else turned(A)
    is_vector = len(shape_of(B)) == 1 or (
        len(shape_of(A)) - 1 == len(shape_of(B)) and shape_of(B) == shape_of(A)[:-1]
    )
    b = unsqueeze(B, axes=(len(shape_of(B)),)) if is_vector else B
    factors, pivots = _factored(node, a)
    found = _solved(factors, pivots, b if left or is_vector else turned(b))
    found = squeeze(found, axes=(len(shape_of(found)) - 1,)) if is_vector else found if left else turned(found)
    return found, factors, pivots, _info(A)


@aten("linalg_inv_ex")
def inverse(node: AtenNode, A: Value, check_errors: bool = False) -> tuple[Value, Value]:
    return la.inverse(A), _info(A)


@aten("_linalg_det")
def determinant(node: AtenNode, A: Value) -> tuple[Value, Value, Value]:
    factors, pivots = _factored(node, A)
    return la.determinant(A), factors, pivots


@aten("_linalg_slogdet")
def log_determinant(node: AtenNode, A: Value) -> tuple[Value, ...]:
    """The sign of the determinant, and the logarithm of its size."""
    factors, pivots = _factored(node, A)
    values = diagonal(factors)
    axis = len(shape_of(values)) - 1
    steps = ew.add(iota(shape=(shape_of(A)[-1],), axis=0), _number(1))
    is_moved = ew.ne(ew.cast(pivots, dtype=dt.i64), steps)
    one = node.value(1, node.dtype)
    signs = ew.mul(ew.sign(values), ew.select(is_moved, ew.neg(one), one))
    how = {"axes": (axis,), "keepdims": False}
    logs = rd.reduce_sum(ew.log(ew.abs_(values)), **how)
    return rd.reduce_prod(signs, **how), logs, factors, pivots


# Triangles


@aten("linalg_solve_triangular")
def solve_triangular(
    node: AtenNode, self: Value, B: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    return solved_triangle(self, B, upper, left, unitriangular)


@aten("triangular_solve")
def triangular_solve(
    node: AtenNode, self: Value, A: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, Value]:
    a = turned(A) if transpose else A
    found = solved_triangle(a, self, upper is not transpose, True, unitriangular)
    return found, expand(A, shape=(*shape_of(found)[:-2], *shape_of(A)[-2:]))


@aten("cholesky", "linalg_cholesky_ex")
def cholesky(
    node: AtenNode, self: Value, upper: bool = False, check_errors: bool = False
) -> Value | tuple[Value, Value]:
    factor, info = la.cholesky(turned(self) if upper else self)
    found = turned(factor) if upper else factor
    return (found, info) if node.op.startswith("aten.linalg") else found


@aten("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(
    node: AtenNode, self: Value, upper: bool = False, input2: Value | None = None, A: Value | None = None
) -> Value:
    """x of l l^T x = b."""
    factor = input2 if input2 is not None else A
    assert factor is not None
    lower = turned(factor) if upper else factor
    return solved_triangle(turned(lower), solved_triangle(lower, self, False), True)


@aten("cholesky_inverse")
def cholesky_inverse(node: AtenNode, self: Value, upper: bool = False) -> Value:
    n = shape_of(self)[-1]
    one = expand(identity(self, n, n), shape=shape_of(self))
    return cholesky_solve(node, one, upper, input2=self)


# Reflections


@aten("geqrf")
def householder_factor(node: AtenNode, self: Value) -> tuple[Value, ...]:
    return tuple(la.householder_factor(self))


@aten("linalg_householder_product", "orgqr")
def householder_product(node: AtenNode, input: Value, tau: Value) -> Value:
    return la.householder_product(input, tau, columns=shape_of(input)[-1])


@aten("linalg_qr")
def qr(node: AtenNode, A: Value, mode: str = "reduced") -> tuple[Value, Value]:
    """`mode`: "reduced", "complete", or "r" without the orthogonal factor."""
    *_, m, n = shape_of(A)
    k = m if mode == "complete" else m if m == n else s.minimum(m, n)
    factors, scales = la.householder_factor(A)
    upper = triangle(cut(factors, k, n), diagonal=0, upper=True)
    if mode == "r":
        return full(value=0, dtype=node.dtype, shape=(0,)), upper
    return la.householder_product(factors, scales, columns=k), upper


@aten("ormqr")
def reflected(
    node: AtenNode, self: Value, input2: Value, input3: Value, left: bool = True, transpose: bool = False
) -> Value:
    """The product of a matrix and the orthogonal factor that reflections stand for."""
    q = la.householder_product(self, input2, columns=shape_of(self)[-2])
    q = turned(q) if transpose else q
    return matrix_product(q, input3) if left else matrix_product(input3, q)


# Eigenvalues and singular values


@aten("_linalg_eigh")
def symmetric_eigen(node: AtenNode, A: Value, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, Value]:
    """Eigenvalues, least first; the signs of vectors are arbitrary."""
    values, vectors = mx.eigen(A, UPLO.upper() == "L")
    return values, vectors if compute_v else _nothing(node)


@aten("_linalg_svd")
def singular(
    node: AtenNode, A: Value, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None
) -> tuple[Value, Value, Value]:
    """u, s and v^T; the signs of vectors are arbitrary."""
    if not compute_uv:
        return _nothing(node), mx.singular_values(A), _nothing(node)
    return mx.singular(A, full_matrices)


def _nothing(node: AtenNode) -> Value:
    return full(value=0, dtype=node.dtype, shape=(0,))


@aten("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(
    node: AtenNode, self: Value, atol: Value | None = None, rtol: Value | None = None, hermitian: bool = False
) -> Value:
    """Without limits, singular values count from their greatest times the accuracy and the number of rows on."""
    *outer, m, n = shape_of(self)
    if any(d.is_const and d.value == 0 for d in (m, n)):
        return full(value=0, dtype=node.dtype, shape=(*outer, n, m))
    zero = node.value(0, node.dtype)
    absolute = zero if atol is None else node.value(atol, node.dtype)
    if rtol is None:
        accuracy = node.value(float(np.finfo(node.dtype.storage).eps), node.dtype)
        usual = ew.mul(accuracy, node.value(s.maximum(m, n), node.dtype))
        relative = usual if atol is None else ew.select(ew.gt(absolute, zero), zero, usual)
    else:
        relative = node.value(rtol, node.dtype)
    if hermitian:
        return mx.symmetric_inverse(self, True, absolute, relative)
    return mx.pseudo_inverse(self, absolute, relative)


@aten("linalg_matrix_exp")
def exponential(node: AtenNode, self: Value) -> Value:
    return matrix_exponential(self)


# Checks


@aten("_linalg_check_errors")
def unchecked(node: AtenNode, info: Value | None = None, api_name: str = "", is_matrix: bool = True) -> tuple[()]:
    """Singular matrices are not reported: what is computed of them is not finite (`capture` leaves out the tokens that
    would keep such checks in order)."""
    return ()
