"""Tensors of numbers as integers times factors, which are known when compiling with the range of the integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.match import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.fixed_point import fixed_point, requantize_fixed, rescale_fixed
from tilewright.ops.quant import limits
from tilewright.ops.source import full

GREATEST = (1 << 31) - 1
"""The greatest i32."""

SUM_DIGITS = 29
"""Binary digits of sums of numbers of different factors."""

KNOWN_DIGITS = 15
"""Binary digits of floats that are known when compiling."""

LEAST_ERROR = 2.0**-20
"""Of a factor that is rounded to an integer; a byte has 8 digits."""

HUGE = 1e30
"""Known numbers above stand for infinity, such as those of masks."""

INFINITY = 65536.0
"""What takes their place in sums, at least: exp(-65536) is 0."""


@dataclass(frozen=True, eq=False)
class Fixed:
    """The numbers (value - zero) * scale, with value - zero in low..high.

    `scale` has no axes or is broadcastable to the tensor, and is positive.
    """

    value: Value
    scale: np.ndarray
    low: int
    high: int
    zero: int = 0

    @property
    def bound(self) -> int:
        """The greatest magnitude of the integers."""
        return max(abs(self.low), abs(self.high), 1)

    @property
    def range(self) -> float:
        """The greatest magnitude of the numbers."""
        return float(self.bound * self.scale.max())

    @property
    def is_uniform(self) -> bool:
        """Whether one factor is all there is."""
        return self.scale.ndim == 0

    @property
    def is_narrow(self) -> bool:
        """Whether they are bytes that an operator gave (or 16 bits), with a zero point."""
        return dtype_of(self.value).bits < 32

    def on(self, value: Value) -> Fixed:
        """Other integers in the same range."""
        return replace(self, value=value)


def as_scale(array: np.ndarray | float) -> np.ndarray:
    """Factors as double precision, without axes where they are all the same."""
    exact = np.asarray(array, np.float64)
    return exact.reshape(-1)[0].reshape(()) if exact.size and np.all(exact == exact.reshape(-1)[0]) else exact


def of_integers(value: Value, scale: np.ndarray | float, zero: int = 0) -> Fixed:
    """Integers of a narrow dtype, in its whole range."""
    low, high = map(int, limits(dtype_of(value)))
    return Fixed(value, as_scale(scale), low - zero, high - zero, zero)


def integers(array: np.ndarray, dtype: DType = dt.i32) -> Value:
    """A constant; without a tensor where all elements are the same."""
    flat = array.reshape(-1)
    if flat.size and np.all(flat == flat[0]) and array.ndim == 0:
        return full(value=int(flat[0]), dtype=dtype, shape=())
    return constant(np.ascontiguousarray(array.astype(dtype.storage)), "integers")


def centred(x: Fixed) -> Value:
    """The integers themselves, in i32."""
    wide = x.value if dtype_of(x.value) is dt.i32 else ew.cast(x.value, dtype=dt.i32)
    return ew.sub(wide, x.zero) if x.zero else wide


def known_numbers(array: np.ndarray) -> Fixed:
    """Floats that are known when compiling."""
    numbers = without_infinities(array, float(np.abs(array[np.abs(array) < HUGE], dtype=np.float64).max(initial=0.0)))
    greatest = float(np.abs(numbers).max(initial=0.0)) or 1.0
    scale = greatest / ((1 << KNOWN_DIGITS) - 1)
    found = np.rint(numbers / scale).astype(np.int16)
    return Fixed(constant(found, "numbers"), as_scale(scale), int(found.min(initial=0)), int(found.max(initial=0)))


def without_infinities(array: np.ndarray, beside: float) -> np.ndarray:
    """Known numbers, the huge ones as numbers that are much greater than those `beside` them."""
    exact = np.asarray(array, np.float64)
    if np.isnan(exact).any():
        raise Obstacle("one of its constants is no number")
    greatest = max(INFINITY, 16 * beside)
    return np.where(np.abs(exact) > HUGE, np.sign(exact) * greatest, exact)


def rescaled(x: Fixed, scale: np.ndarray | float, limit: int = GREATEST) -> Fixed:
    """The same numbers as i32 with other factors, rounded; what is beyond `limit` becomes that."""
    wanted = as_scale(scale)
    ratio = as_scale(x.scale / wanted)
    rounded = np.rint(ratio)
    error = float(np.max(np.abs(ratio - rounded))) * x.bound
    greatest = float(ratio.max()) * x.bound
    if error <= LEAST_ERROR * greatest and rounded.max() * x.bound <= limit:
        value = centred(x)
        moved = value if ratio.ndim == 0 and rounded == 1 else ew.mul(value, integers(rounded))
        return Fixed(moved, wanted, *_range(x, ratio, limit))
    multipliers, shift = multipliers_of(ratio)
    moved = rescale_fixed(centred(x), integers(multipliers), shift=shift, limit=limit)
    return Fixed(moved, wanted, *_range(x, ratio, limit))


def _range(x: Fixed, ratio: np.ndarray, limit: int) -> tuple[int, int]:
    low, high = (float(np.asarray(end * ratio).min()) for end in (x.low, x.high))
    low, high = min(low, float(np.max(x.low * ratio))), max(high, float(np.max(x.high * ratio)))
    return max(int(np.floor(low)) - 1, -limit), min(int(np.ceil(high)) + 1, limit)


def multipliers_of(ratio: np.ndarray) -> tuple[np.ndarray, int]:
    """Factors in fixed point; an Obstacle where they are none."""
    try:
        return fixed_point(ratio)
    except ValueError as e:
        raise Obstacle(f"its scales do not fit one another: {e}") from e


def uniform(x: Fixed) -> Fixed:
    """The same numbers with one factor."""
    return x if x.is_uniform else rescaled(x, x.range / (1 << SUM_DIGITS))


def common(parts: list[Fixed], digits: int = SUM_DIGITS, total: float = 0.0) -> list[Fixed]:
    """Numbers with one factor for all, so that the sum of their ranges (or `total`) has so many digits."""
    if all(p.is_uniform and p.scale == parts[0].scale for p in parts):
        return parts
    goal = (total or sum(p.range for p in parts)) / (1 << digits)
    narrow = [p for p in parts if p.is_uniform and p.is_narrow]
    if narrow:  # one of them exactly, by a shift
        first = max(narrow, key=lambda p: float(p.scale))
        goal = float(first.scale) * 2.0 ** -np.floor(np.log2(float(first.scale) / goal))
    return [rescaled(p, goal) for p in parts]


def narrowed(x: Fixed, bound: int) -> Fixed:
    """The same numbers with one factor, as integers up to `bound`, rounded where that takes digits off."""
    if x.is_uniform and x.bound <= bound:
        return x
    return rescaled(x, x.range / (bound - 1), bound)


def requantized(x: Fixed, scale: np.ndarray, zero: int, dtype: DType) -> Value:
    """Integers of `dtype` by other parameters, saturated."""
    ratio = as_scale(x.scale / scale)
    if ratio.ndim == 0 and ratio == 1:
        low, high = (int(end) - zero for end in limits(dtype))
        value = centred(x)
        value = ew.max_(value, low) if x.low < low else value
        value = ew.min_(value, high) if x.high > high else value
        return ew.cast(ew.add(value, zero) if zero else value, dtype=dtype)
    multipliers, shift = multipliers_of(np.minimum(ratio, 1 << dtype.bits + 2))  # beyond, all but 0 is saturated
    return requantize_fixed(centred(x), integers(multipliers), shift=shift, zero_point=zero, dtype=dtype)


def times(x: Fixed, factors: np.ndarray) -> Fixed:
    """Numbers times known ones: these go into the scale."""
    exact = np.asarray(factors, np.float64)
    if not np.all(np.isfinite(exact)):
        raise Obstacle("one of its factors is not finite")
    signs, sizes = np.sign(exact), np.abs(exact)
    greatest = float(sizes.max(initial=0.0)) or 1.0
    sizes = np.where(sizes > 0, sizes, greatest)
    scale = as_scale(x.scale * sizes)
    if np.all(signs > 0):
        return replace(x, scale=scale)
    return Fixed(ew.mul(centred(x), integers(as_integers(signs))), scale, -x.bound, x.bound)


def as_integers(array: np.ndarray) -> np.ndarray:
    """Whole numbers, without axes where they are all the same."""
    found = np.asarray(array)
    return found.reshape(-1)[0].reshape(()) if found.size and np.all(found == found.reshape(-1)[0]) else found
