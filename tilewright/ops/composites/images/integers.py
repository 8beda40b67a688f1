"""How interpolated integers become integers again, as the engines have it to the last bit.

What lies within a rounding error of a whole number becomes another number as soon as a sum is rounded otherwise, which
happens in one element of hundred. So linear interpolation is added up as ONNX Runtime does it: along both axes at once,
each product and each sum rounded to float32 (`ops.image.blend`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.composites.images.positions import (
    ResizedAxis,
    Resizing,
    computed_positions,
    known_positions,
    with_extrapolation,
)
from tilewright.ops.define import constant
from tilewright.ops.reduce import dtype_of
from tilewright.ops.view import concat, reshape, shape_of

_NUDGE = 2.0**-13
"""What is added before truncation, so that a sum which is an integer in exact arithmetic stays that."""


def rounded(x: Value, dtype: dt.DType) -> Value:
    """Floats rounded to integers of a type: halves up in bytes, which engines compute with fixed points, else away from
    zero. Nothing is added to floats that are whole already, which may have no bits for halves."""
    if dtype.bits == 8:
        return as_integers(ew.floor(ew.add(x, 0.5)), dtype)
    size = ew.abs_(x)
    whole = ew.floor(size)
    found = ew.add(whole, ew.cast(ew.ge(ew.sub(size, whole), 0.5), dtype=dt.f32))
    return as_integers(ew.select(ew.lt(x, 0.0), ew.neg(found), found), dtype)


def truncated(x: Value, dtype: dt.DType) -> Value:
    """Floats truncated to integers of a type, those nearly whole to that number."""
    up, down = (constant(np.array(n, np.float32), "nudge") for n in (_NUDGE, -_NUDGE))
    return as_integers(ew.add(x, ew.select(ew.lt(x, 0.0), down, up)), dtype)


def as_integers(x: Value, dtype: dt.DType) -> Value:
    """Floats truncated; those beyond a narrow type are its ends."""
    if dtype.bits <= 16:
        low, high = _ends(dtype)
        x = ew.max_(ew.min_(x, float(high)), float(low))
    return ew.cast(x, dtype=dtype)


def blended(x: Value, plans: Sequence[ResizedAxis], how: Resizing) -> Value:
    """Integers interpolated linearly along two axes (or one: another one stays) at once, and truncated."""
    dtype = dtype_of(x)
    shape = shape_of(x)
    tables = {plan.axis: _taps(plan, how) for plan in plans}
    if len(plans) == 1:
        beside = plans[0].axis + (-1 if plans[0].axis == len(shape) - 1 else 1)
        tables[beside] = _taps_of_all(shape[beside])
    (first, rows), (second, columns) = sorted(tables.items())
    found = image.blend(x, *rows, *columns, axes=(first, second))
    if how.coordinates != "tf_crop_and_resize":
        return found
    low, high = _ends(dtype)
    outside = int(min(max(how.extrapolation, low), high)) if how.extrapolation == how.extrapolation else 0
    for plan in plans:
        found = with_extrapolation(found, plan, replace(how, extrapolation=outside))
    return found


def can_be_blended(x: Value, plans: Sequence[ResizedAxis], how: Resizing) -> bool:
    """Whether there are two axes, and elements to make others of."""
    is_linear = how.integers == "truncate" and how.mode == "linear" and not how.antialias
    return is_linear and 1 <= len(plans) <= 2 <= len(shape_of(x)) and not any(0 in (p.old, p.new) for p in plans)


def _ends(dtype: dt.DType) -> tuple[int, int]:
    ends = np.iinfo(dtype.storage)
    return int(ends.min), int(ends.max)


def _taps(plan: ResizedAxis, how: Resizing) -> tuple[Value, Value]:
    """The two elements along an axis that each new one lies between [2, new], and their weights in f32."""
    if plan.is_known:
        return _known_taps(plan, how)
    at, last = computed_positions(plan, how), ew.sub(image.size_scalar(plan.old, dt.f64), 1.0)
    at = ew.max_(ew.min_(at, last), 0.0)
    low = ew.floor(at)
    high = ew.min_(ew.add(low, 1.0), last)
    is_end = ew.eq(low, high)
    weights = _pair(ew.select(is_end, 0.5, ew.sub(high, at)), ew.select(is_end, 0.5, ew.sub(at, low)))
    return ew.cast(_pair(low, high), dtype=dt.i64), ew.cast(weights, dtype=dt.f32)


def _known_taps(plan: ResizedAxis, how: Resizing) -> tuple[Value, Value]:
    last = max(plan.old.value - 1, 0)
    at = np.clip(known_positions(plan, how), 0, last)
    low = np.floor(at)
    high = np.minimum(low + 1, last)
    weights = [np.where(low == high, 0.5, d).astype(np.float32) for d in (high - at, at - low)]
    places = np.stack([low, high]).astype(np.int64)
    return constant(places, "places"), constant(np.stack(weights), "weights")


def _taps_of_all(size: Sym) -> tuple[Value, Value]:
    """Those of an axis that stays: each element and its neighbour, which counts nothing; the last one is its own."""
    places, last = image.counter(size), ew.sub(image.size_scalar(size, dt.f64), 1.0)
    is_end = ew.cast(ew.eq(places, last), dtype=dt.f64)
    half = ew.mul(is_end, 0.5)
    weights = ew.cast(_pair(ew.sub(1.0, half), half), dtype=dt.f32)
    return ew.cast(_pair(places, ew.min_(ew.add(places, 1.0), last)), dtype=dt.i64), weights


def _pair(first: Value, second: Value) -> Value:
    lines = [reshape(line, shape=(1, *shape_of(line))) for line in (first, second)]
    return concat(*lines, axis=0)
