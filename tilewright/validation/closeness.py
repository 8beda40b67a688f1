"""Whether two arrays are one result: up to the rounding that passes may change, and to how much the result itself moves
where its operands do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDINGS = {"float64": 1e-10, "float32": 3e-4, "float16": 1e-2, "bfloat16": 8e-2}
"""Differences, in parts of the element and of the root mean square of its tensor, that come of sums in another order,
of Winograd's algorithm and of factors that are folded."""

COARSE = 0.5
"""The same for floats of 8 bits and fewer."""

LAST_BITS = {"float64": 2.0**-50, "float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-7}
"""By so much of themselves operands are moved, to see by how much results are."""

ROUNDED_OPERANDS = {"fast": 2.0**-13}
"""The same of float32 where products may round their operands (`numerics="fast"`): `MOVED` times that is six times the
mean error of bfloat16, and more for rounding to float16."""

ROUNDED_ROWS = {"int8": 2.0**-11, "int16": 2.0**-19}
"""The part of its row's largest element by which float32 is moved where rows are rounded to integers (`activations=`):
`MOVED` times that is four times the largest error, half of a 127th or 32767th part."""

MOVED = 32
"""So many times the distance by which results move where operands do by the last bits is no difference."""

AS_EXACT = 4.0
"""So many times the largest error of a few ways to round is no more than the error of another way."""

FLIPS = 0.02
"""The share of integers and truth values that floats decide, and that rounding may decide otherwise."""

SHARE_OFF = 0.2
"""Of the elements of a short float: so many differ only where it is rounded another way."""

FAR = 1 << 15
"""By so much integers do not differ because floats that decide them are rounded another way: they are positions, or
whole parts. An integer that ends at another limit of its type does."""

FEW = 32
"""Elements of which so large a share may be chance."""


@dataclass(frozen=True)
class Deviation:
    """Where two arrays differ most, and in how many of their elements."""

    index: tuple[int, ...]
    wanted: Any
    found: Any
    count: int
    size: int

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]"
        return f"{self.found} instead of {self.wanted} at {at}, {self.count} of {self.size} elements differ"


def deviation(
    wanted: np.ndarray,
    found: np.ndarray,
    *,
    moved: Callable[[], np.ndarray | None] = lambda: None,
    of_floats: bool = False,
) -> Deviation | None:
    """How `found` differs from `wanted`; None where rounding explains it. `moved` gives by how much results move where
    operands do by their last bits (`steps`); integers and truth values `of_floats` may flip where these do.

    Elements that are not finite in `wanted` say nothing.
    """
    if wanted.shape != found.shape:
        return Deviation((), list(wanted.shape), list(found.shape), found.size, wanted.size)
    if not wanted.size or wanted.dtype == object:
        return None
    bad = _beyond(wanted, found, None)
    if not bad.any():
        return None
    if not is_float(wanted.dtype):
        if not of_floats:
            return _where(wanted, found, bad)
        if _by_one(wanted, found, bad) and bad.sum() <= max(1, FLIPS * bad.size):
            return None
        step = moved()
        allowed = 0 if step is None else MOVED * int((step != 0).sum())
        return None if bad.sum() <= allowed and not _are_far(wanted, found, bad) else _where(wanted, found, bad)
    step = moved()
    if step is not None:
        bad &= _beyond(wanted, found, step)
    return _where(wanted, found, bad) if bad.any() else None


@np.errstate(all="ignore")
def as_exact(exact: np.ndarray, rounded: Sequence[np.ndarray], found: np.ndarray, dtype: np.dtype) -> bool:
    """Whether `found` is as near to the `exact` result as those are that were computed with roundings of short floats,
    up to a factor and to the rounding of the result, which is of this type. All are of 64 bits."""
    if any(a.shape != exact.shape for a in (found, *rounded)) or exact.dtype.kind != "f":
        return False
    finite = np.isfinite(exact) & np.logical_and.reduce([np.isfinite(a) for a in rounded])
    error = np.max([np.abs(np.where(finite, a - exact, 0)) for a in rounded], axis=0)
    size = np.abs(np.where(finite, exact, 0))
    allowed = AS_EXACT * (error + _rms(error)) + tolerance(dtype) * (size + _rms(size))
    return bool((~finite | (np.abs(found - exact) <= allowed)).all())


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.square(array).mean())) if array.size else 0.0


@np.errstate(all="ignore")
def rounded_otherwise(wanted: np.ndarray, found: np.ndarray) -> Deviation | None:
    """How a short float is rounded another way than by its definition: a few elements are where sums are in another
    order, many are not."""
    if wanted.shape != found.shape or found.dtype.itemsize != 2 or "float" not in found.dtype.name:
        return None
    off = (wanted != found) & np.isfinite(wanted.astype(np.float32))
    return _where(wanted, found, off) if wanted.size > FEW and off.mean() > SHARE_OFF else None


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fc" or "float" in dtype.name


def tolerance(dtype: np.dtype) -> float:
    """The part of an element, and of the root mean square of its tensor, by which it may differ."""
    return ROUNDINGS.get(dtype.name, COARSE)


@np.errstate(all="ignore")
def _beyond(wanted: np.ndarray, found: np.ndarray, step: np.ndarray | None) -> np.ndarray:
    """The elements that differ by more than is allowed, with `step` by how much they move."""
    if not is_float(wanted.dtype):
        return np.asarray(wanted != found)
    bad = np.asarray((wanted != found) & np.isfinite(wanted))
    if bad.any():  # most tensors are equal in most elements
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        distance = np.abs(found[bad].astype(wide) - wanted[bad].astype(wide))
        bad[bad] = ~(distance <= allowance(wanted, step, bad))
    return bad


@np.errstate(all="ignore")
def allowance(wanted: np.ndarray, step: np.ndarray | None, where: Any = ...) -> np.ndarray:
    """By how much each element may differ, or those of a mask, in float64; nothing of what is no float."""
    if not is_float(wanted.dtype) or not wanted.size:
        return np.zeros(wanted[where].shape)
    a = wanted.astype(np.complex128 if wanted.dtype.kind == "c" else np.float64)
    size = np.abs(np.where(np.isfinite(a), a, 0))
    scale = _rms(size) if np.isfinite(size).all() else 0.0
    allowed = tolerance(wanted.dtype) * (size[where] + scale)
    return np.asarray(allowed if step is None else allowed + MOVED * (step[where] + _rms(step[np.isfinite(step)])))


def _are_far(wanted: np.ndarray, found: np.ndarray, bad: np.ndarray) -> bool:
    """Whether integers differ by more than rounding can exchange: positions of equal numbers are no such."""
    return bool((np.abs(wanted[bad].astype(np.float64) - found[bad].astype(np.float64)) > FAR).any())


def _by_one(wanted: np.ndarray, found: np.ndarray, bad: np.ndarray) -> bool:
    if wanted.dtype == np.bool_:
        return True
    return bool((np.abs(wanted[bad].astype(np.float64) - found[bad].astype(np.float64)) <= 1).all())


@np.errstate(all="ignore")
def _where(wanted: np.ndarray, found: np.ndarray, bad: np.ndarray) -> Deviation:
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    distance = np.where(bad, np.abs(found.astype(wide) - wanted.astype(wide)), -1.0)
    distance = np.where(np.isnan(distance), np.inf, distance)
    index = np.unravel_index(int(np.argmax(distance)), wanted.shape)
    at = tuple(map(int, index))
    return Deviation(at, wanted[at], found[at], int(bad.sum()), wanted.size)


@np.errstate(all="ignore")
def steps(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """By how much each element of a result has moved; zeros for strings, which no last bit moves."""
    if before.dtype == object:
        return np.zeros(before.shape)
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    step = np.abs(after.astype(wide) - before.astype(wide))
    return np.where(np.isfinite(before.astype(wide)) & ~np.isfinite(step), np.inf, np.nan_to_num(step))


def nudged(array: np.ndarray, seed: int = 0, *, rounding: str = "", times: float = 1.0) -> np.ndarray:
    """The array with floats moved by some `times` about their last bits, or those that products keep where they round
    (`ROUNDED_OPERANDS`, `ROUNDED_ROWS`); integers as they are."""
    if not is_float(array.dtype) or not array.size:
        return array
    rng = np.random.default_rng(seed)
    step = LAST_BITS.get(array.dtype.name, 0.0)
    if array.dtype == np.float32:
        step = max(step, ROUNDED_OPERANDS.get(rounding, 0.0))
    step *= times
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    signs = rng.choice([-1.0, 1.0], array.shape)
    with np.errstate(all="ignore"):
        if array.dtype == np.float32 and array.ndim and rounding in ROUNDED_ROWS:
            largest = np.abs(np.where(np.isfinite(wide), wide, 0)).max(axis=-1, keepdims=True)
            return np.asarray(wide + ROUNDED_ROWS[rounding] * largest * signs).astype(array.dtype)
        moved: np.ndarray = (wide * (1 + step * signs)).astype(array.dtype)
    return moved
