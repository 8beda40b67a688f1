"""Decompositions of matrices: calls of LAPACK as JAX writes them, and StableHLO's own ops."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tests.frontends.stablehlo.helpers import evaluated, program

A, B, T = "tensor<2x4x4xf32>", "tensor<2x4x3xf32>", "tensor<2x5x3xf32>"
S, I = "tensor<2xi32>", "tensor<2x4xi32>"  # noqa: E741


def call(routine: str, options: str, operands: str, results: str) -> str:
    count = results.count("tensor")
    names = ", ".join(f"%{'xy'[k]}" for k in range(operands.count("tensor")))
    return (
        f"%r:{count} = stablehlo.custom_call @lapack_{routine}_ffi({names}) {{mhlo.backend_config = {{{options}}}}} : "
        f"({operands}) -> ({results})"
    )


def called(routine: str, options: str, operands: str, results: str) -> bytes:
    types = operands.split(", ")
    arguments = ", ".join(f"%{name}: {type}" for name, type in zip("xy", types, strict=False))
    given = ", ".join(f"%r#{k}" for k in range(results.count("tensor")))
    return program(arguments, results, call(routine, options, operands, results), f"return {given} : {results}")


def letter(name: str, value: str) -> str:
    return f"{name} = {ord(value)} : ui8"


def matrices(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def symmetric() -> np.ndarray:
    x = matrices(2, 4, 4)
    return x @ x.transpose(0, 2, 1) + 2 * np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("half", ["L", "U"])
def test_cholesky(half: str) -> None:
    x = symmetric()
    factor, info = evaluated(called("spotrf", letter("uplo", half), A, f"{A}, {S}"), x)
    lower = np.linalg.cholesky(x)
    np.testing.assert_allclose(factor, lower if half == "L" else lower.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)
    assert not info.any()
    flag = "true" if half == "L" else "false"
    own = program(f"%x: {A}", A, f"%r = stablehlo.cholesky %x, lower = {flag} : {A}", f"return %r : {A}")
    np.testing.assert_array_equal(evaluated(own, x)[0], factor)


def test_factors_with_exchanged_rows() -> None:
    x = matrices(2, 4, 4)
    factors, pivots, info = evaluated(called("sgetrf", "", A, f"{A}, {I}, {S}"), x)
    for matrix, found, steps in zip(x, factors, pivots, strict=True):
        rows = np.arange(4)
        for k, step in enumerate(steps):
            rows[[k, step - 1]] = rows[[step - 1, k]]
        product = (np.tril(found, -1) + np.eye(4)) @ np.triu(found)
        np.testing.assert_allclose(product, matrix[rows], rtol=1e-4, atol=1e-5)
    assert not info.any()


@pytest.mark.sweep
@pytest.mark.parametrize("side", ["L", "R"])
@pytest.mark.parametrize("half", ["L", "U"])
@pytest.mark.parametrize("turned", ["N", "T"])
@pytest.mark.parametrize("diagonal", ["N", "U"])
def test_triangles(side: str, half: str, turned: str, diagonal: str) -> None:
    a = matrices(2, 4, 4) + 3 * np.eye(4, dtype=np.float32)
    b = matrices(2, 4, 3) if side == "L" else matrices(2, 3, 4)
    type = B if side == "L" else "tensor<2x3x4xf32>"
    letters = zip(("side", "uplo", "trans_x", "diag"), (side, half, turned, diagonal), strict=True)
    options = ", ".join(letter(name, value) for name, value in letters)
    (x,) = evaluated(called("strsm", options, f"{A}, {type}", type), a, b)
    triangle = np.tril(a) if half == "L" else np.triu(a)
    if diagonal == "U":
        triangle = triangle - triangle * np.eye(4, dtype=np.float32) + np.eye(4, dtype=np.float32)
    triangle = triangle.transpose(0, 2, 1) if turned == "T" else triangle
    np.testing.assert_allclose(triangle @ x if side == "L" else x @ triangle, b, rtol=1e-3, atol=1e-4)
    own = (
        f'%r = "stablehlo.triangular_solve"(%x, %y) {{left_side = {str(side == "L").lower()}, '
        f"lower = {str(half == 'L').lower()}, unit_diagonal = {str(diagonal == 'U').lower()}, "
        f"transpose_a = #stablehlo<transpose {'TRANSPOSE' if turned == 'T' else 'NO_TRANSPOSE'}>}} : "
        f"({A}, {type}) -> {type}"
    )
    source = program(f"%x: {A}, %y: {type}", type, own, f"return %r : {type}")
    np.testing.assert_array_equal(evaluated(source, a, b)[0], x)


def test_reflections() -> None:
    x = matrices(2, 5, 3)
    source = program(
        f"%x: {T}", f"{T}, {T}", call("sgeqrf", "", T, f"{T}, tensor<2x3xf32>"),
        f"%q = stablehlo.custom_call @lapack_sorgqr_ffi(%r#0, %r#1) {{mhlo.backend_config = {{}}}} : "
        f"({T}, tensor<2x3xf32>) -> {T}",
        f"return %q, %r#0 : {T}, {T}",
    )  # fmt: skip
    q, factors = evaluated(source, x)
    np.testing.assert_allclose(q @ np.triu(factors[:, :3]), x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q.transpose(0, 2, 1) @ q, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=1e-5)


def test_eigenvalues() -> None:
    x = symmetric()
    options = f"{letter('mode', 'V')}, {letter('uplo', 'L')}"
    vectors, values, _ = evaluated(called("ssyevd", options, A, f"{A}, tensor<2x4xf32>, {S}"), x)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), rtol=1e-4)
    np.testing.assert_allclose(x @ vectors, vectors * values[:, None], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("mode", "u"), [("A", "tensor<2x5x5xf32>"), ("S", T), ("N", "tensor<2x5x3xf32>")])
def test_singular_values(mode: str, u: str) -> None:
    x, v = matrices(2, 5, 3), "tensor<2x3x3xf32>"
    results = f"{T}, tensor<2x3xf32>, {u}, {v}, {S}"
    _, values, left, right, _ = evaluated(called("sgesdd", letter("mode", mode), T, results), x)
    np.testing.assert_allclose(values, np.linalg.svd(x, compute_uv=False), rtol=1e-4)
    if mode != "N":
        np.testing.assert_allclose((left[:, :, :3] * values[:, None]) @ right, x, rtol=1e-3, atol=1e-4)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(tilewright.UnsupportedError, match="lapack_sgeev_ffi"):
        evaluated(called("sgeev", "", A, f"{A}"), matrices(2, 4, 4))
    with pytest.raises(tilewright.ModelError, match="no option 'uplo'"):
        evaluated(called("spotrf", "", A, f"{A}, {S}"), symmetric())
