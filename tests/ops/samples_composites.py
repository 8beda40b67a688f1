"""Samples of functions over operators (`tilewright/ops/composites`): complex arrays stand for complex pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.ops.sampling import Sample, normal, sample
from tilewright.ir import dtype as dt
from tilewright.ir.sym import sym

LOOSE = 1e5
"""Special functions have ten digits at least, of the sixteen of f64."""


def numbers(shape: Sequence[int], seed: int = 0, dtype: Any = np.complex128) -> np.ndarray:
    """Complex numbers around 0."""
    return (normal(shape, np.float64, seed) + 1j * normal(shape, np.float64, seed + 1)).astype(dtype)


def heads() -> Iterator[Sample]:
    x = normal((2, 3, 8))
    apart = x.reshape(2, 3, 4, 2).transpose(0, 2, 1, 3)
    yield sample("attention.to_heads", [x], lambda: apart, count=4)
    yield sample("attention.from_heads", [apart], lambda: x)
    cos, sin, at = normal((5, 2)), normal((5, 2), seed=1), np.array([[4, 0, 2]])
    turned = normal((1, 2, 3, 6))

    def by_pairs(first: Any, second: Any) -> Callable[[], np.ndarray]:
        def expected() -> np.ndarray:
            y, c, s = turned.astype(np.float64), cos[at][:, None], sin[at][:, None]
            y[..., first], y[..., second] = (
                y[..., first] * c - y[..., second] * s, y[..., second] * c + y[..., first] * s
            )  # fmt: skip
            return y

        return expected

    halves, neighbours = (slice(0, 2), slice(2, 4)), (slice(0, 4, 2), slice(1, 4, 2))
    for interleaved, (first, second) in ((False, halves), (True, neighbours)):
        yield sample("attention.rotated", [turned, cos, sin, at], by_pairs(first, second), interleaved=interleaved)
    pairs = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 1, 4)
    yield sample("attention.quarter_turned", [pairs], lambda: [[[[-2, 1, -4, 3]]]], interleaved=True)
    yield sample("attention.quarter_turned", [pairs], lambda: [[[[-3, -4, 1, 2]]]], interleaved=False)


def matrices() -> Iterator[Sample]:
    x, square = normal((2, 4, 3), np.float64), normal((2, 4, 4), np.float64, 1)
    even = square + square.mT
    yield sample("matrices.matrix_transpose", [x], lambda: x.mT)
    yield sample("matrices.cut", [x], lambda: x[:, :2, :3], rows=sym(2), columns=sym(3))
    yield sample("matrices.identity", [x], lambda: np.eye(2, 3), rows=sym(2), columns=sym(3))
    yield sample("matrices.diagonal", [square], lambda: np.diagonal(square, axis1=1, axis2=2))
    yield sample("matrices.as_rows", [x], lambda: x[:, :, None, :])
    for lower in (False, True):
        half = np.tril(even) if lower else np.triu(even)
        yield sample("matrices.mirrored", [half], lambda: even, lower=lower)
        b, a = normal((1, 4, 2), np.float64, 2), half + 9 * np.eye(4)
        yield sample("matrices.solved_triangle", [a, b], upper=not lower, loose=9,
                     expected=lambda a=a, b=b: np.linalg.solve(a, b))  # fmt: skip
        unit = np.tril(half, -1) / 9 + np.eye(4) if lower else np.triu(half, 1) / 9 + np.eye(4)
        options = {"upper": not lower, "left": False, "unit": True}
        yield sample("matrices.solved_triangle", [unit + np.eye(4), b.mT], loose=99, **options,
                     expected=lambda u=unit, b=b: np.linalg.solve(u.mT, b).mT)  # fmt: skip
        limits = [np.float64(1e-9), np.float64(1e-9)]
        inverse = lambda: np.linalg.inv(even)  # noqa: E731
        yield sample("matrices.symmetric_inverse", [half, *limits], inverse, lower=lower, loose=999)
    diagonal = np.array([[-2.0, 0, 0], [0, 3, 0], [0, 0, 1]])
    order = (np.array([-2.0, 1, 3]), np.eye(3)[:, [0, 2, 1]])
    yield sample("matrices.eigen", [diagonal], lambda: order)
    yield sample("matrices.singular_values", [x], lambda: np.linalg.svd(x, compute_uv=False), loose=99)
    tall = np.array([[0.0, 2], [3, 0], [0, 0]])
    parts = ([[0, 1], [1, 0], [0, 0]], [3, 2], [[1, 0], [0, 1]])
    yield sample("matrices.singular", [tall], lambda: parts, full_matrices=False)
    sizes = [np.array([[4.0, -1, 0.1]]), np.array([[4.0]]), np.float64(0), np.float64(0.1)]
    yield sample("matrices.inverted", sizes, lambda: np.array([[0.25, -1, 0]]))
    limits = [np.float64(0), np.float64(1e-12)]
    for given in (x, x.mT):
        yield sample("matrices.pseudo_inverse", [given, *limits], lambda g=given: np.linalg.pinv(g), loose=999)


def products() -> Iterator[Sample]:
    a, b, bias = normal((2, 3, 4), np.float64), normal((4,), np.float64, 1), normal((3,), np.float64)
    yield sample("products.matrix_product", [a, b], lambda: a @ b)
    yield sample("products.matrix_product", [b, a.mT], lambda: b @ a.mT)
    yield sample("products.with_bias", [a, bias], lambda: a + bias[:, None])
    for equation, operands in (
        ("bij,j->ib", [a, b]), ("ij,jk,k", [a[0], a[0].T, bias]), ("...ij->...ji", [a]), ("ii->i", [a[0, :, :3]]),
    ):  # fmt: skip
        yield sample("products.einsum_of", operands, note=equation, equation=equation, loose=9,
                     expected=lambda e=equation, o=operands: np.einsum(e, *o))  # fmt: skip


def transforms() -> Iterator[Sample]:
    for n in (1, 6, 37):
        x, z = normal((2, n, 3), np.float64), numbers((2, n, 3))
        yield sample("fourier.fft", [z], lambda z=z: np.fft.fft(z, axis=1), axis=1, loose=99)
        yield sample("fourier.fft", [x], lambda x=x: np.fft.fft(x, axis=1), axis=1, loose=99)
        yield sample("fourier.fft", [z], lambda z=z: np.fft.ifft(z, axis=1), axis=1, inverse=True, loose=99)
        half = np.fft.rfft(x, axis=1)
        yield sample("fourier.irfft", [half], lambda x=x: x, axis=1, n=sym(n), loose=99)
        parts = np.stack([half.real, half.imag], -1)
        yield sample("fourier.real_inverse", [np.swapaxes(parts, 1, 2)], loose=99, n=sym(n),
                     expected=lambda x=x: np.swapaxes(x, 1, 2)[..., None])  # fmt: skip
        rows = x.transpose(0, 2, 1).copy()
        yield sample("fourier.transformed", [rows[..., None]], loose=99,
                     expected=lambda x=rows: np.fft.fft(x).view(np.float64).reshape(2, 3, -1, 2))  # fmt: skip
    short = normal((2, 3))
    yield sample("fourier.resized", [short], lambda: short[:, :2], axis=1, size=sym(2))
    yield sample("fourier.resized", [short], lambda: np.pad(short, ((0, 0), (0, 2))), axis=1, size=sym(5))


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as_pair": lambda z: z, "real_of": np.real, "zeros_like": np.zeros_like, "conj": np.conj, "neg": np.negative,
    "times_i": lambda z: z * 1j, "over_i": lambda z: z / 1j, "reciprocal": lambda z: 1 / z, "abs_": np.abs,
    "angle": np.angle, "sign": np.sign, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "cos": np.cos, "sin": np.sin,
    "cosh": np.cosh, "sinh": np.sinh, "tanh": np.tanh, "tan": np.tan, "expm1": np.expm1, "log1p": np.log1p,
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "acos": np.arccos, "asin": np.arcsin, "acosh": np.arccosh,
    "asinh": np.arcsinh, "atanh": np.arctanh, "atan": np.arctan,
}  # fmt: skip
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow_": np.power, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip


def complexes() -> Iterator[Sample]:
    z, other, x = numbers((2, 5)), numbers((2, 5), 7), normal((2, 5), np.float64, 3)
    for name, function in UNARY.items():
        given = x if name == "zeros_like" else z
        yield sample(f"complex.{name}", [given], lambda f=function, g=given: f(g), loose=999)
    for name, function in BINARY.items():
        for a, b in ((z, other), (z, x)) if name != "pow_" else ((z, other),):
            yield sample(f"complex.{name}", [a, b], lambda f=function, a=a, b=b: f(a, b), loose=999)
    yield sample("complex.pair_of", [x, x[:1]], lambda: x + 1j * x[:1])
    yield sample("complex.cast", [z], lambda: z.astype(np.complex64), dtype=dt.f32)
    yield sample("complex.as_real", [z], lambda: z.view(np.float64).reshape(2, 5, 2))
    yield sample("complex.as_complex", [z.view(np.float64).reshape(2, 5, 2)], lambda: z)
    for exponent in (-3, 0, 1, 5):
        yield sample("complex.power", [z], lambda e=exponent: z**e, exponent=exponent, loose=99)
    yield sample("complex.polar", [np.abs(x), x], lambda: np.abs(x) * np.exp(1j * x))
    yield sample("complex.select", [x > 0, z, other], lambda: np.where(x > 0, z, other))
    yield sample("complex.reduce_prod", [z], lambda: z.prod(axis=1, keepdims=True), axes=(1,), loose=99)
    moved = np.concatenate([z[:, :2], z[:, 2:] * z[:, :-2]], axis=1)
    yield sample("complex.step_of_scan", [z], lambda: moved, axis=1, step=2, loose=99)


def special() -> Iterator[Sample]:
    special = torch.special
    x = np.array([-3.7, -1.5, -0.25, 0.3, 1.0, 2.5, 9.5])
    positive, shares = np.array([0.2, 0.9, 1.7, 4.0, 12.5]), np.array([0.01, 0.3, 0.5, 0.9, 0.999])

    def by(function: Callable[..., Any], *arrays: np.ndarray) -> Callable[[], np.ndarray]:
        return lambda: np.asarray(function(*map(torch.from_numpy, arrays)))

    for name, function, given in (
        ("erfcx", special.erfcx, x), ("erfc", special.erfc, x), ("log_ndtr", special.log_ndtr, x),
        ("ndtri", special.ndtri, shares), ("erfinv", special.erfinv, shares), ("lgamma", special.gammaln, x),
        ("digamma", special.digamma, x), ("airy", special.airy_ai, x),
    ):  # fmt: skip
        yield sample(f"special.{name}", [given], by(function, given), loose=LOOSE)
    for name, functions in (
        ("bessel_j", (special.bessel_j0, special.bessel_j1)), ("bessel_y", (special.bessel_y0, special.bessel_y1)),
        ("bessel_i", (special.i0, special.i1)), ("bessel_k", (special.modified_bessel_k0, special.modified_bessel_k1)),
    ):  # fmt: skip
        for n, function in enumerate(functions):
            yield sample(f"special.{name}", [positive], by(function, positive), n=n, loose=LOOSE)
    yield sample("special.bessel_i", [x], by(special.i0e, x), n=0, scaled=True, loose=LOOSE)
    yield sample("special.zeta", [positive + 1.5, positive], by(special.zeta, positive + 1.5, positive), loose=LOOSE)
    second = by(lambda v: special.polygamma(2, v), positive)
    yield sample("special.polygamma", [positive], second, n=2, loose=LOOSE)
    for upper, function in ((False, special.gammainc), (True, special.gammaincc)):
        yield sample("special.incomplete_gamma", [positive, positive[::-1].copy()], loose=LOOSE, upper=upper,
                     expected=by(function, positive, positive[::-1].copy()))  # fmt: skip
    yield sample("special.polynomial", [x], lambda: 1 - 2 * x + 3 * x**2, coefficients=(1.0, -2.0, 3.0))
    fitted = np.polynomial.chebyshev.Chebyshev([0.5, -1.0, 0.25, 2.0])
    yield sample("special.chebyshev", [shares], lambda: fitted(shares), coefficients=tuple(fitted.coef))
    yield sample("special.where", [x > 0, x, -x], lambda: np.abs(x))
    assert math.isclose(float(special.erfc(torch.tensor(0.3, dtype=torch.float64))), math.erfc(0.3))


COMPOSITE_FAMILIES = (heads, matrices, products, transforms, complexes, special)
"""Each gives the samples of one family."""
