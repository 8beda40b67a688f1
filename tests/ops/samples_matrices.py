"""Samples of factorizations and other operators on single matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.ops.sampling import FLOATS, Sample, normal, sample, wide
from tilewright.ir.sym import sym


def matrices() -> Iterator[Sample]:
    for dtype in FLOATS[:2]:
        for shape in ((3, 3), (2, 0, 4, 4), (2, 3, 5, 5), (1, 1), (0, 0)):
            x = normal(shape, dtype)
            yield sample("determinant", [x], lambda x=x: np.linalg.det(wide(x)), loose=30)
            yield sample("inverse", [x], lambda x=x: np.linalg.inv(wide(x)), loose=300)
    x = np.array([[[0, 2, 1], [0, 0, 3], [4, 5, 6]], [[1, 2, 3], [2, 4, 6], [1, 0, 1]]], np.float32)
    yield sample("determinant", [x], lambda: np.array([24.0, 0.0]), note="pivots")
    yield sample("inverse", [x[:1]], lambda: np.linalg.inv(wide(x[:1])), loose=10, note="pivots")


def factors() -> Iterator[Sample]:
    for dtype in FLOATS[:2]:
        for shape in ((3, 3), (2, 4, 2), (2, 2, 4)):
            x = normal(shape, dtype)
            yield sample("lu_factor", [x], lambda x=x: _each(_lu, x), loose=300)
            yield sample("householder_factor", [x], lambda x=x: _each(_reflections, x), loose=300)
        square, side = normal((2, 4, 4), dtype), normal((2, 4, 3), dtype)
        definite = (wide(square) @ wide(square).swapaxes(1, 2) + 4 * np.eye(4)).astype(dtype)
        yield sample(
            "cholesky", [definite],
            lambda x=definite: (np.linalg.cholesky(wide(x)), np.zeros(2, np.int32)), loose=100,
        )  # fmt: skip
        square = (square + 4 * np.eye(4)).astype(dtype)
        for upper in (False, True):
            for unit in (False, True):
                yield sample(
                    "solve_triangular",
                    [square, side],
                    lambda a=square, b=side, u=upper, n=unit: np.linalg.solve(_triangle(wide(a), u, n), wide(b)),
                    upper=upper,
                    unit=unit,
                    loose=3000,
                )
        tall = normal((2, 4, 3), dtype)
        reflections, scales = (v.astype(dtype) for v in _each(_reflections, tall))
        yield sample(
            "householder_product", [reflections, scales],
            lambda x=tall: _each(lambda m: (np.linalg.qr(m, mode="complete")[0],), x)[0], columns=sym(4), loose=300,
        )  # fmt: skip
    exchanges = np.array([[2, 3, 3], [1, 2, 3]], np.int32)
    yield sample("permutation", [exchanges], lambda: np.array([[1, 2, 0, 3], [0, 1, 2, 3]]), size=sym(4))


def eigen() -> Iterator[Sample]:
    """Of matrices whose vectors are near the axes, so that their signs are known."""
    for dtype in FLOATS[:2]:
        for shape in ((2, 4, 4), (1, 1)):
            near = normal(shape, dtype) * dtype.type(0.1) + np.diag(np.arange(shape[-1], dtype=dtype) * 4 - 5)
            near = (near + near.swapaxes(-1, -2)).astype(dtype)
            yield sample("symmetric_eigen", [near], lambda x=near: _each(_eigen, x), loose=30)
            x = normal(shape, dtype) / dtype.type(2)
            yield sample("matrix_exponential", [x], lambda x=x: _each(_series, x)[0], loose=30)
        near = (normal((2, 5, 3), dtype) * 0.1 + np.eye(5, 3) * [3, 9, 6]).astype(dtype)
        yield sample("orthogonal_columns", [near], lambda x=near: _each(_singular, x), loose=30)
        nothing = np.zeros((0, 0), dtype)
        yield sample("symmetric_eigen", [nothing], lambda x=nothing: (x[0:0].sum(0), x))
        yield sample("matrix_exponential", [nothing], lambda x=nothing: x)
        nothing = np.zeros((1, 0, 2), dtype)
        yield sample("orthogonal_columns", [nothing], lambda x=nothing: (np.zeros((1, 2)), x, np.eye(2)[None]))


def _eigen(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(a)
    return values, vectors * _signs(vectors)


def _signs(vectors: np.ndarray) -> np.ndarray:
    """By which the greatest element of each column is positive."""
    return np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0, keepdims=True), axis=0))


def _singular(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    _, values, rows = np.linalg.svd(a)
    vectors = rows.T * _signs(rows.T)
    return values, a @ vectors, vectors


def _series(a: np.ndarray) -> tuple[np.ndarray]:
    found, term = np.eye(len(a)), np.eye(len(a))
    for k in range(1, 80):
        term = term @ a / k
        found = found + term
    return (found,)


def _each(fn: Callable[[np.ndarray], tuple[np.ndarray, ...]], x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The results for each matrix of the last two axes, stacked."""
    found = [fn(m.copy()) for m in wide(x).reshape(-1, *x.shape[-2:])]
    return tuple(np.stack(parts).reshape(*x.shape[:-2], *parts[0].shape) for parts in zip(*found, strict=True))


def _lu(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    pivots = np.zeros(min(a.shape), np.int32)
    for k in range(min(a.shape)):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        pivots[k] = pivot + 1
        a[[k, pivot]] = a[[pivot, k]]
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, pivots


def _reflections(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As LAPACK has them."""
    raw, scales = np.linalg.qr(a, mode="raw")
    return raw.T, scales


def _triangle(a: np.ndarray, upper: bool, unit: bool) -> np.ndarray:
    found = np.triu(a) if upper else np.tril(a)
    return found - found * np.eye(a.shape[-1]) + np.eye(a.shape[-1]) if unit else found
