"""Discrete Fourier transforms as products with constant matrices, of long axes in steps (Cooley & Tukey, 1965).

Complex numbers are the last axis, real and imaginary part; the axis that is transformed is the one before.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.image import size_scalar
from tilewright.ops.reduce import dtype_of
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import concat, pad, reshape, reverse, shape_of, slice_, transpose

MAX_MATRIX = 256
"""The longest axis that is transformed by one matrix where it could be divided: its elements stay in L2."""

MAX_FACTOR = 64
"""The greatest factor that is divided off: both matrices of axes of some thousand elements are small then."""

MAX_PRIME = 2048
"""The longest axis without such factors: its matrix takes 64 MiB."""


def transformed(x: Value, *, inverse: bool = False, bins: Sym | None = None) -> Value:
    """The transform of x [..., n, 1 or 2] of f32 or f64 as [..., n, 2], or the first `bins` of n; inverse ones are
    divided by n."""
    n = shape_of(x)[-2]
    bins = n if bins is None else bins
    if not n.is_const:
        return _by_computed_matrix(x, inverse, bins)
    result = _cut(_known(x, n.value, inverse, bins.value), bins)
    return ew.mul(result, 1.0 / n.value) if inverse else result


def real_inverse(x: Value, n: Sym) -> Value:
    """The n real numbers [..., n, 1] whose transform begins with x [..., n // 2 + 1, 2]; the others mirror these."""
    half = shape_of(x)[-2]
    rank = len(shape_of(x))
    rest = _slice(x, rank - 2, sym(1), n - half)
    mirrored = reverse(rest, axes=(rank - 2,))
    conjugate = concat(
        _slice(mirrored, rank - 1, 0, 1), ew.neg(_slice(mirrored, rank - 1, 1, 1)), axis=rank - 1
    )
    whole = concat(x, conjugate, axis=rank - 2)
    return _slice(transformed(whole, inverse=True), rank - 1, 0, 1)


def resized(x: Value, axis: int, size: Sym) -> Value:
    """x with so many elements along an axis: the first ones, or zeros behind them."""
    own = shape_of(x)[axis]
    if own == size:
        return x
    extra = s.maximum(size - own, 0)
    if extra != 0:
        zeros = [sym(0)] * len(shape_of(x))
        x = pad(x, before=tuple(zeros), after=tuple(extra if k == axis else z for k, z in enumerate(zeros)))
    return x if shape_of(x)[axis] == size else _slice(x, axis, 0, size)


def _slice(x: Value, axis: int, start: Sym | int, size: Sym | int) -> Value:
    shape = shape_of(x)
    starts = tuple(sym(start) if k == axis else sym(0) for k in range(len(shape)))
    sizes = tuple(sym(size) if k == axis else d for k, d in enumerate(shape))
    return slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))


def _cut(x: Value, bins: Sym) -> Value:
    return x if shape_of(x)[-2] == bins else _slice(x, len(shape_of(x)) - 2, 0, bins)


def _roots(n: int, rows: int, columns: int, inverse: bool) -> np.ndarray:
    """exp(-+2 pi i j k / n) for j and k, exactly reduced first."""
    turns = (np.arange(rows)[:, None] * np.arange(columns)[None, :]) % n / n
    return np.asarray(np.exp((2j if inverse else -2j) * np.pi * turns))


def _known(x: Value, n: int, inverse: bool, bins: int) -> Value:
    """Not divided by n; at least the first `bins`."""
    factor = max((k for k in range(2, min(MAX_FACTOR, n - 1) + 1) if n % k == 0), default=1)
    if n <= MAX_MATRIX or factor == 1:
        if n > MAX_PRIME:
            raise UnsupportedError(
                f"a Fourier transform of {n} elements, which have no small factors, is not supported"
            )
        return _by_matrix(x, n, inverse, bins)
    *outer, _, parts = shape_of(x)
    rank, rest = len(outer), n // factor
    apart = reshape(x, shape=(*outer, factor, rest, parts))
    columns = transpose(apart, perm=(*range(rank), rank + 1, rank, rank + 2))
    first = _turned(_by_matrix(columns, factor, inverse, factor), _roots(n, rest, factor, inverse))
    second = _known(transpose(first, perm=(*range(rank), rank + 1, rank, rank + 2)), rest, inverse, rest)
    ordered = transpose(second, perm=(*range(rank), rank + 1, rank, rank + 2))
    return reshape(ordered, shape=(*outer, n, 2))


def _turned(x: Value, roots: np.ndarray) -> Value:
    """Complex x [..., rows, columns, 2] times known numbers."""
    axis = len(shape_of(x)) - 1
    quarter = concat(ew.neg(_slice(x, axis, 1, 1)), _slice(x, axis, 0, 1), axis=axis)
    real, imaginary = (
        constant(np.ascontiguousarray(part)[..., None].astype(dtype_of(x).storage), "turns")
        for part in (roots.real, roots.imag)
    )
    return ew.add(ew.mul(x, real), ew.mul(quarter, imaginary))


def _by_matrix(x: Value, n: int, inverse: bool, bins: int) -> Value:
    """[..., n, 1 or 2] -> [..., bins, 2]: real numbers times [n * parts, bins * 2]."""
    *outer, _, parts = shape_of(x)
    roots = _roots(n, n, bins, inverse)
    rows = [np.stack([roots.real, roots.imag], -1), np.stack([-roots.imag, roots.real], -1)][: parts.value]
    matrix = np.stack(rows, 1).reshape(n * parts.value, bins * 2)
    flat = reshape(x, shape=(*outer, sym(1), n * parts.value) if not outer else (*outer, n * parts.value))
    product = matmul(flat, constant(matrix.astype(dtype_of(x).storage), "fourier"))
    return reshape(product, shape=(*outer, bins, 2))


def _by_computed_matrix(x: Value, inverse: bool, bins: Sym) -> Value:
    """By a matrix of angles that are computed when the size is known."""
    *outer, n, parts = shape_of(x)
    cos, sin = _computed_roots(n, bins, inverse, dtype_of(x))
    axis = len(outer) + 1
    rows = outer or [sym(1)]
    real, *imaginary = (reshape(_slice(x, axis, k, 1), shape=(*rows, n)) for k in range(parts.value))
    a, b = matmul(real, cos), matmul(real, sin)
    for part in imaginary:
        a, b = ew.sub(a, matmul(part, sin)), ew.add(b, matmul(part, cos))
    result = concat(*[reshape(v, shape=(*outer, bins, 1)) for v in (a, b)], axis=axis)
    return ew.div(result, size_scalar(n, dtype_of(x))) if inverse else result


def _computed_roots(n: Sym, bins: Sym, inverse: bool, dtype: DType) -> tuple[Value, Value]:
    places = ew.mul(iota(shape=(n, 1), axis=0), iota(shape=(1, bins), axis=1))
    turns = ew.div(ew.cast(ew.mod(places, sym_tensor(values=(n,), scalar=True)), dtype=dtype), size_scalar(n, dtype))
    sin = _sine(turns)
    return _sine(ew.add(turns, 0.25)), sin if inverse else ew.neg(sin)


def _sine(turns: Value) -> Value:
    """sin(2 pi turns), exactly 0 at half turns: of what is left of these, an angle of at most a quarter."""
    halves = ew.round_(ew.mul(turns, 2.0))
    sign = ew.sub(1.0, ew.mul(ew.mod(halves, 2.0), 2.0))
    return ew.mul(sign, ew.sin(ew.mul(ew.sub(turns, ew.mul(halves, 0.5)), 2 * math.pi)))
