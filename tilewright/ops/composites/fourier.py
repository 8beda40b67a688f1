"""Discrete Fourier transforms along an axis, as products with constant matrices; long axes are divided (Cooley and
Tukey, 1965), those of large prime sizes become convolutions (Bluestein, 1970).

Inside, a tensor is [outer, parts, n, inner]: the parts of complex numbers (one of real ones) are an axis before the
one that is transformed. n = a * m elements are a matrix [a, m]: its columns are transformed by a product from the left,
each element is multiplied by a root of unity, and the rows, moved in front (Stockham's order), are transformed in turn.
Nothing else is moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.complex import (
    ComplexPair,
    Number,
    as_complex,
    as_real,
    each,
    real_of,
)
from tilewright.ops.composites.declared import composite
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.image import size_scalar
from tilewright.ops.index import gather
from tilewright.ops.reduce import dtype_of
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import concat, pad, reshape, reverse, section, shape_of, transpose

MAX_MATRIX = 16
"""The longest axis of complex numbers that is transformed by one matrix where it could be divided."""

MAX_REAL_MATRIX = 32
"""The same of real numbers."""

MAX_FACTOR = 64
"""The greatest factor that an axis is divided by where there is a choice."""

MAX_PRIME = 256
"""The greatest prime whose matrix is multiplied with; others are convolutions."""

LEAST_ROWS = 8
"""The least rows that are transformed side by side."""

GROUPS = range(16, 49)
"""Of many rows so many are transformed side by side, if their number has such a divisor: two vectors, with which all
strides stay short (measured on Zen 3: 16 take half of the time of 128)."""

STEP = 12
"""What a step more costs, as the elements of a factor: it reads and writes all numbers once more (measured on
Zen 4: 512 elements by 8, 8 and 8 take three quarters of the time of 16 and 32)."""


@composite
def fft(
    x: Number, axis: int, *, inverse: bool = False, bins: Sym | None = None, scale: float | None = None
) -> ComplexPair:
    """The transform along an axis, or the first `bins` of it, times `scale`: by default what makes the inverse one the
    opposite of the other."""
    n = shape_of(real_of(x))[axis]
    bins = n if bins is None else bins
    if not n.is_const:
        return _of_unknown_size(x, axis, inverse, bins, scale)
    size, factor = n.value, _scale(n.value, inverse, scale)
    planar, form = _planar(x, axis)
    if isinstance(x, ComplexPair):
        found = _cut(_transformed(planar, size, inverse, factor), 2, bins)
    else:
        found = _of_real(planar, size, bins.value, inverse, factor)
    return each(_apart(found), form.restored)


@composite
def irfft(x: ComplexPair, axis: int, n: Sym, *, scale: float | None = None) -> Value:
    """The n real numbers whose transform begins with x, of n // 2 + 1 elements along the axis; the others mirror these.
    """
    if not n.is_const:
        return fft(_mirrored_pair(x, axis, n), axis, inverse=True, scale=scale).real
    size, factor = n.value, _scale(n.value, True, scale)
    planar, form = _planar(x, axis)
    return form.restored(_to_real(planar, size, factor))


def _scale(n: int, inverse: bool, scale: float | None) -> float:
    return (1.0 / n if inverse else 1.0) if scale is None else scale


# Between tensors of any rank and [outer, parts, n, inner]


@dataclass(frozen=True)
class _Form:
    """How tensors become [outer, parts, n, inner]: `outer` and `inner` are the axes before and behind n. Of the last
    axis the axes before it are a number of groups, each of which is `inner` while it is transformed."""

    outer: tuple[Sym, ...]
    inner: tuple[Sym, ...]
    group: Sym | None

    def planar(self, x: Value, n: Sym) -> Value:
        count = product(self.outer)
        if self.group is None:
            return reshape(x, shape=(count, 1, n, product(self.inner)))
        moved = transpose(reshape(x, shape=(count // self.group, self.group, n)), perm=(0, 2, 1))
        return reshape(moved, shape=(count // self.group, 1, n, self.group))

    def restored(self, x: Value) -> Value:
        groups, _, n, _ = shape_of(x)
        if self.group is not None:
            x = transpose(reshape(x, shape=(groups, n, self.group)), perm=(0, 2, 1))
        return reshape(x, shape=(*self.outer, n, *self.inner))


def _planar(x: Number, axis: int) -> tuple[Value, _Form]:
    shape = shape_of(real_of(x))
    n, outer, inner = shape[axis], shape[:axis], shape[axis + 1 :]
    is_alone = n.value <= MAX_MATRIX or product(inner) != 1
    group = None if is_alone else _group(product(outer))
    form = _Form(outer, inner, group)
    parts = [form.planar(v, n) for v in ((x.real, x.imaginary) if isinstance(x, ComplexPair) else (x,))]
    return (concat(*parts, axis=1) if len(parts) > 1 else parts[0]), form


def _group(count: Sym) -> Sym | None:
    """How many of so many rows are transformed side by side, so that kernels have an axis of neighbours: a divisor
    where there is a good one, as rows of one group are near each other, else all. None for few rows."""
    if not count.is_const:
        return count
    if count.value < LEAST_ROWS:
        return None
    divisors = (d for d in GROUPS if count.value % d == 0)
    return sym(next(divisors, count.value))


def _apart(x: Value) -> ComplexPair:
    return ComplexPair(section(x, 1, 0, 1), section(x, 1, 1, 1))


def _cut(x: Value, axis: int, size: Sym | int) -> Value:
    return x if shape_of(x)[axis] == size else section(x, axis, 0, size)


# Matrices and turns


def _twiddles(n: int, inverse: bool, *places: np.ndarray) -> np.ndarray:
    """exp(-+2 pi i j k / n), exactly reduced first."""
    j, k = places
    return np.asarray(np.exp((2j if inverse else -2j) * np.pi * ((j * k) % n) / n))


def _roots(n: int, inverse: bool, rows: int, columns: int) -> np.ndarray:
    return _twiddles(n, inverse, np.arange(rows)[:, None], np.arange(columns)[None, :])


def _weights(array: np.ndarray, like: Value, name: str) -> Value:
    return constant(np.ascontiguousarray(array.astype(dtype_of(like).storage)), name)


def _multiplied(x: Value, matrix: np.ndarray) -> Value:
    """[outer, parts, n, inner] times a matrix [other parts * k, parts * n]: from the right where n is the last axis
    with more than one element, so that the product has rows."""
    outer, parts, n, inner = shape_of(x)
    rows = matrix.shape[0]
    if inner == 1:
        found = matmul(reshape(x, shape=(outer, parts * n)), _weights(matrix.T, x, "fourier"))
    else:
        found = matmul(_weights(matrix, x, "fourier"), reshape(x, shape=(outer, parts * n, inner)))
    return reshape(found, shape=(outer, 1, rows, inner))


def _by_matrix(x: Value, roots: np.ndarray) -> Value:
    """[outer, parts, n, inner] -> [outer, 2, k, inner], for complex roots [k, n]."""
    outer, parts, _, inner = shape_of(x)
    of_real = np.concatenate([roots.real, roots.imag])
    of_imaginary = np.concatenate([-roots.imag, roots.real])
    matrix = of_real if parts == 1 else np.concatenate([of_real, of_imaginary], 1)
    return reshape(_multiplied(x, matrix), shape=(outer, 2, roots.shape[0], inner))


def _times_roots(x: Value, roots: np.ndarray) -> Value:
    """x [outer, 2, *shape of the roots, inner], each element times its root."""
    turns = np.stack([roots.real, roots.imag]), np.stack([-roots.imag, roots.real])
    real, imaginary = (
        ew.mul(section(x, 1, k, 1), _weights(part[..., None], x, "turns")) for k, part in enumerate(turns)
    )
    return ew.add(real, imaginary)


# Transforms of complex numbers


@lru_cache(maxsize=256)
def factors_of(n: int) -> tuple[int, ...]:
    """What n elements are divided into: factors of which the sum is small, and not many."""
    best: tuple[int, ...] = (n,)
    cost: float = n if n <= MAX_MATRIX or _is_prime(n) else math.inf
    for factor in range(2, MAX_FACTOR + 1):
        if n % factor == 0 and n > max(factor, MAX_MATRIX):
            rest = factors_of(n // factor)
            own = factor + STEP + _cost(rest)
            if own < cost:
                best, cost = (factor, *rest), own
    return best


def _cost(factors: Sequence[int]) -> float:
    return sum(factors) + STEP * (len(factors) - 1)


def _is_prime(n: int) -> bool:
    return all(n % k for k in range(2, min(MAX_FACTOR, n - 1) + 1))


def _transformed(x: Value, n: int, inverse: bool, scale: float) -> Value:
    """[outer, parts, n, inner] -> [outer, 2, n, inner]"""
    first, *rest = factors_of(n)
    if not rest:
        if n > MAX_PRIME:
            return _by_convolution(x, n, inverse, scale)
        return _by_matrix(x, _roots(n, inverse, n, n) * scale)
    columns = _columns(x, first, n // first, _roots(first, inverse, first, first) * scale)
    return _rows(columns, first, n // first, inverse)


def _columns(x: Value, a: int, m: int, roots: np.ndarray) -> Value:
    """The columns of [a, m] transformed: [outer, 2, k, m, inner], for roots [k, a]."""
    outer, parts, _, inner = shape_of(x)
    found = _by_matrix(reshape(x, shape=(outer, parts, a, m * inner)), roots)
    return reshape(found, shape=(outer, 2, roots.shape[0], m, inner))


def _rows(x: Value, a: int, m: int, inverse: bool) -> Value:
    """The rows of transformed columns [outer, 2, k, m, inner] turned and transformed: [outer, 2, m * k, inner]."""
    outer, _, k, _, inner = shape_of(x)
    turned = transpose(_times_roots(x, _roots(a * m, inverse, k.value, m)), perm=(0, 1, 3, 2, 4))
    found = _transformed(reshape(turned, shape=(outer, 2, m, k * inner)), m, inverse, 1.0)
    return reshape(found, shape=(outer, 2, m * k, inner))


def _by_convolution(x: Value, n: int, inverse: bool, scale: float) -> Value:
    """j k = (j^2 + k^2 - (k - j)^2) / 2: a convolution with a chirp, along an axis of a better size."""
    size = better_size(2 * n - 1)
    places = np.arange(n)
    chirp = _twiddles(2 * n, inverse, places, places)
    wave = np.zeros(size, complex)
    wave[:n] = np.conj(chirp)
    wave[size - n + 1 :] = np.conj(chirp[1:][::-1])
    spectrum = np.fft.fft(wave) * (scale / size)
    if shape_of(x)[1] == 1:
        waves = _weights(np.stack([chirp.real, chirp.imag])[..., None], x, "chirp")
        turned = ew.mul(x, waves)
    else:
        turned = _times_roots(x, chirp)
    long = _transformed(resized(turned, 2, sym(size)), size, False, 1.0)
    found = _transformed(_times_roots(long, spectrum), size, True, 1.0)
    return _times_roots(section(found, 2, 0, n), chirp)


def better_size(least: int) -> int:
    """The least product of powers of 2, 3 and 5 that is not less."""
    best = 1 << (least - 1).bit_length()
    for threes in range(12):
        for fives in range(8):
            odd = 3**threes * 5**fives
            twos = max(0, (-(-least // odd) - 1).bit_length())
            best = min(best, odd << twos)
    return best


# Of real numbers, half of whose transform mirrors the other half


def _of_real(x: Value, n: int, bins: int, inverse: bool, scale: float) -> Value:
    """[outer, 1, n, inner] -> [outer, 2, bins, inner]. Of columns half are transformed where half is wanted; what
    else is among the first rows mirrors that: least of it where there are many columns."""
    factors = factors_of(n)
    first, rest = max(factors), factors[1:]
    if n <= MAX_REAL_MATRIX or (not rest and n <= MAX_PRIME):
        return _by_matrix(x, _roots(n, inverse, bins, n) * scale)
    if not rest or bins > n // 2 + 1 or first == 2:
        return _cut(_transformed(x, n, inverse, scale), 2, bins)
    m, half = n // first, first // 2 + 1
    columns = _columns(x, first, m, _roots(first, inverse, half, first) * scale)
    found = _rows(columns, first, m, inverse)
    outer, _, _, inner = shape_of(x)
    found = reshape(found, shape=(outer, 2, m, half, inner))
    count = -(-bins // first)
    others = reverse(section(section(found, 3, 1, first - half), 2, m - count, count), axes=(2, 3))
    whole = concat(section(found, 2, 0, count), _conjugated(others), axis=3)
    return _cut(reshape(whole, shape=(outer, 2, count * first, inner)), 2, bins)


def _conjugated(x: Value) -> Value:
    signs = np.array([1.0, -1.0]).reshape(2, *[1] * (len(shape_of(x)) - 2))
    return ew.mul(x, _weights(signs, x, "signs"))


def _to_real(x: Value, n: int, scale: float) -> Value:
    """[outer, 2, n // 2 + 1, inner] -> [outer, 1, n, inner]: the same in the opposite order."""
    last = factors_of(n)[:-1]
    outer, _, half, inner = shape_of(x)
    if n <= MAX_REAL_MATRIX or (not last and n <= MAX_PRIME):
        return _multiplied(x, _real_rows(n, half.value) * scale)
    whole = _mirrored(x, n)
    if not last:
        return section(_transformed(whole, n, True, scale), 1, 0, 1)
    a = max(last)
    m, half_a = n // a, a // 2 + 1
    columns = section(reshape(whole, shape=(outer, 2, m, a, inner)), 3, 0, half_a)
    columns = reshape(columns, shape=(outer, 2, m, half_a * inner))
    rows = reshape(_transformed(columns, m, True, scale), shape=(outer, 2, m, half_a, inner))
    turned = transpose(_times_roots(rows, _roots(n, True, m, half_a)), perm=(0, 1, 3, 2, 4))
    found = _multiplied(reshape(turned, shape=(outer, 2, half_a, m * inner)), _real_rows(a, half_a))
    return reshape(found, shape=(outer, 1, n, inner))


def _real_rows(n: int, half: int) -> np.ndarray:
    """[n, 2 * half]: what the parts of half of the numbers, and those that mirror them, add to each real one."""
    twice = np.where((np.arange(half) * 2) % n == 0, 1.0, 2.0)
    roots = _roots(n, True, n, half) * twice
    return np.concatenate([roots.real, -roots.imag], 1)


def _mirrored(x: Value, n: int) -> Value:
    """All n numbers of which [outer, 2, n // 2 + 1, inner] are the first."""
    rest = n - (n // 2 + 1)
    return concat(x, _conjugated(reverse(section(x, 2, 1, rest), axes=(2,))), axis=2) if rest else x


def _mirrored_pair(x: ComplexPair, axis: int, n: Sym) -> ComplexPair:
    rest = n - shape_of(x.real)[axis]
    real, imaginary = (reverse(section(v, axis, 1, rest), axes=(axis,)) for v in (x.real, x.imaginary))
    return ComplexPair(concat(x.real, real, axis=axis), concat(x.imaginary, ew.neg(imaginary), axis=axis))


# Of numbers whose parts are along the last axis


@composite
def transformed(x: Value, *, inverse: bool = False, bins: Sym | None = None) -> Value:
    """The transform of x [..., n, 1 or 2] of f32 or f64 as [..., n, 2], or the first `bins` of n; inverse ones are
    divided by n."""
    *outer, parts = shape_of(x)
    given = reshape(x, shape=tuple(outer)) if parts == 1 else as_complex(x)
    return as_real(fft(given, len(outer) - 1, inverse=inverse, bins=bins))


@composite
def real_inverse(x: Value, n: Sym) -> Value:
    """The n real numbers [..., n, 1] whose transform begins with x [..., n // 2 + 1, 2]; the others mirror these."""
    found = irfft(as_complex(x), len(shape_of(x)) - 2, n)
    return reshape(found, shape=(*shape_of(found), 1))


@composite
def resized(x: Value, axis: int, size: Sym) -> Value:
    """x with so many elements along an axis: the first ones, or zeros behind them."""
    own = shape_of(x)[axis]
    if own == size:
        return x
    extra = s.maximum(size - own, 0)
    if extra != 0:
        zeros = [sym(0)] * len(shape_of(x))
        x = pad(x, before=tuple(zeros), after=tuple(extra if k == axis else z for k, z in enumerate(zeros)))
    return _cut(x, axis, size)


# Of axes whose size is not known


def _of_unknown_size(x: Number, axis: int, inverse: bool, bins: Sym, scale: float | None) -> ComplexPair:
    """By a matrix of angles that are computed when the size is known."""
    shape = shape_of(real_of(x))
    n, last = shape[axis], len(shape) - 1
    order = list(range(len(shape)))
    order[axis], order[last] = last, axis
    cos, sin = _computed_roots(n, bins, inverse, dtype_of(real_of(x)))

    def times(v: Value, matrix: Value) -> Value:
        moved = transpose(v, perm=tuple(order)) if axis != last else v
        flat = matmul(moved if last else reshape(moved, shape=(1, n)), matrix)
        whole = flat if last else reshape(flat, shape=(bins,))
        return transpose(whole, perm=tuple(order)) if axis != last else whole

    if isinstance(x, ComplexPair):
        a = ew.sub(times(x.real, cos), times(x.imaginary, sin))
        b = ew.add(times(x.real, sin), times(x.imaginary, cos))
    else:
        a, b = times(x, cos), times(x, sin)
    if scale is None and not inverse:
        return ComplexPair(a, b)
    if scale is None:
        return each(ComplexPair(a, b), lambda v: ew.div(v, size_scalar(n, dtype_of(v))))
    factor = scale
    return each(ComplexPair(a, b), lambda v: ew.mul(v, factor))


def _computed_roots(n: Sym, bins: Sym, inverse: bool, dtype: DType) -> tuple[Value, Value]:
    """Roots of unity [n, bins], of which there are n different ones: these are computed, and gathered."""
    turns = ew.div(ew.cast(iota(shape=(n,), axis=0), dtype=dtype), size_scalar(n, dtype))
    steps = ew.mul(iota(shape=(n, 1), axis=0), iota(shape=(1, bins), axis=1))
    places = ew.mod(steps, dim_value(n))
    sin = _sine(turns)
    cos, sin = _sine(ew.add(turns, 0.25)), sin if inverse else ew.neg(sin)
    return gather(cos, places, in_range=True), gather(sin, places, in_range=True)


def _sine(turns: Value) -> Value:
    """sin(2 pi turns), exactly 0 at half turns: of what is left of these, an angle of at most a quarter."""
    halves = ew.round_(ew.mul(turns, 2.0))
    sign = ew.sub(1.0, ew.mul(ew.mod(halves, 2.0), 2.0))
    return ew.mul(sign, ew.sin(ew.mul(ew.sub(turns, ew.mul(halves, 0.5)), 2 * math.pi)))
