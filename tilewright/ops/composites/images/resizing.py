"""Images resized axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.composites.images.integers import blended, can_be_blended, rounded, truncated
from tilewright.ops.composites.images.positions import (
    ResizedAxis,
    Resizing,
    computed_positions,
    known_positions,
    nearest_computed,
    nearest_known,
    with_extrapolation,
)
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.define.floats import mantissa
from tilewright.ops.index import gather
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.view import expand, reshape, shape_of, slice_, transpose


def resized(x: Value, plans: Sequence[ResizedAxis], how: Resizing) -> Value:
    """x with all axes resized. Narrow floats are interpolated in f32 along all axes and rounded once; integers, too,
    and become integers as `how` says."""
    dtype = dtype_of(x)
    if how.mode == "nearest" or dtype in (dt.f32, dt.f64):
        return _resized_along_all(x, plans, how)
    if dtype.is_float:
        return ew.cast(_resized_along_all(ew.cast(x, dtype=dt.f32), plans, how), dtype=dtype)
    if how.integers == "round each":
        for plan in sorted(plans, key=lambda p: -p.axis):
            x = rounded(resized_along(ew.cast(x, dtype=dt.f32), plan, how), dtype)
        return x
    if can_be_blended(x, plans, how):
        return blended(x, plans, how)
    x = _resized_along_all(ew.cast(x, dtype=dt.f32), plans, how)
    return rounded(x, dtype) if how.integers == "round" else truncated(x, dtype)


def _resized_along_all(x: Value, plans: Sequence[ResizedAxis], how: Resizing) -> Value:
    """Axes that grow come last: fewer elements are gathered along the others. So do those before the last one that stay
    as they are: along it single elements are gathered, and along these whole lines."""
    last = len(shape_of(x)) - 1
    for plan in sorted(plans, key=lambda p: (_growth(p), p.axis != last)):
        x = resized_along(x, plan, how)
    return x


def _growth(plan: ResizedAxis) -> float:
    """How many times as long an axis becomes, as far as that is known; 1 where it is not."""
    if plan.old.is_const and plan.new.is_const:
        return plan.new.value / max(plan.old.value, 1)
    return plan.scale if isinstance(plan.scale, float) else 1.0


def resized_along(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    if plan.old == 1 and how.coordinates != "tf_crop_and_resize" and not how.exclude_outside:
        return expand(x, shape=tuple(plan.new if k == plan.axis else d for k, d in enumerate(shape_of(x))))
    if _is_repetition(plan, how):
        assert isinstance(plan.scale, float)
        return image.repeat_elements(x, axis=plan.axis, count=round(plan.scale))
    if plan.is_copied == 1:
        return x
    if plan.is_known:
        return _with_known_sizes(x, plan, how)
    return _with_symbolic_sizes(x, plan, how)


def _is_repetition(plan: ResizedAxis, how: Resizing) -> bool:
    """Does every element simply appear `scale` times?"""
    if how.mode != "nearest" or not isinstance(plan.scale, float) or plan.scale != round(plan.scale):
        return False
    if plan.new != plan.old * round(plan.scale):
        return False
    if how.multiplies and not _divides_evenly(round(plan.scale), how.precision):
        return False
    if how.coordinates == "asymmetric":
        return how.nearest in ("floor", "simple") or (plan.scale == 2 and how.nearest == "round_prefer_floor")
    if how.coordinates == "tf_half_pixel_for_nn":
        return how.nearest == "floor"
    return how.coordinates == "half_pixel" and how.nearest in ("round_prefer_floor", "round_prefer_ceil")


def _divides_evenly(scale: int, precision: dt.DType) -> bool:
    """Whether all multiples of the scale, times its rounded reciprocal, are rounded to whole numbers or above (proved
    in `ops.define.roundings`)."""
    product = Fraction(float(precision.storage.type(1 / scale))) * scale
    return product >= 1 - Fraction(1, 1 << mantissa(precision) + 1)


# Sizes that are known


def _with_known_sizes(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    old, new = plan.old.value, plan.new.value
    if old and not new:
        return image.nearest_along(x, constant(np.zeros(0, np.int64), "places"), axis=plan.axis)
    if not old:
        raise UnsupportedError(f"Resize of {old} to {new} elements is not supported")
    at = known_positions(plan, how)
    if how.mode == "nearest":
        places = np.clip(nearest_known(at, plan, how), 0, old - 1).astype(np.int64)
        result = _taken(x, places, plan.axis)
    else:
        result = image.resample(x, plan.axis, *_taps(at, old, plan, how))
    return with_extrapolation(result, plan, how)


def _taken(x: Value, places: np.ndarray, axis: int) -> Value:
    """The elements at known places along an axis, which are a slice where these are equally far apart."""
    steps = np.unique(np.diff(places))
    if len(steps) != 1 or steps[0] < 1:
        return gather(x, image.known_places(places, "places"), axis=axis, in_range=True)
    shape = shape_of(x)
    starts, strides = ([given if k == axis else other for k in range(len(shape))] for given, other in
                       ((int(places[0]), 0), (int(steps[0]), 1)))  # fmt: skip
    sizes = tuple(len(places) if k == axis else d for k, d in enumerate(shape))
    return slice_(x, starts=tuple(starts), sizes=sizes, steps=tuple(strides))


def _taps(at: np.ndarray, old: int, plan: ResizedAxis, how: Resizing) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights [new, taps] of linear and cubic interpolation."""
    scale = min(plan.scale or 1.0, 1.0) if how.antialias and isinstance(plan.scale, float) else 1.0
    reach = 1 if how.mode == "linear" else 2
    support = int(np.ceil(reach / scale))
    first = np.floor(at).astype(np.int64) - support + 1
    places = first[:, None] + np.arange(2 * support)
    distance = np.abs(places - at[:, None]) * scale
    weights = np.maximum(1 - distance, 0) if how.mode == "linear" else _cubic(distance, how.cubic_a)
    inside = (places >= 0) & (places < old)
    if how.exclude_outside:
        weights = np.where(inside, weights, 0)
    if how.exclude_outside or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, old - 1), weights


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic at distance d."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


# Sizes that follow from the inputs


def _with_symbolic_sizes(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    """The same, computed when the model runs."""
    at = computed_positions(plan, how)
    if how.mode == "nearest":
        result = image.nearest_along(x, nearest_computed(at, plan, how), axis=plan.axis)
    elif how.antialias:
        result = _weighted_by_all(x, at, plan, how)
    elif how.mode == "linear" and not how.exclude_outside:
        result = image.linear_along(x, at, axis=plan.axis)
    else:
        result = _weighted_by_taps(x, at, plan, how)
    return with_extrapolation(result, plan, how)


def _as_scalar(x: float | Value) -> Value:
    return x if isinstance(x, Value) else constant(np.array(x), "scalar")


def _weighted_by_taps(x: Value, at: Value, plan: ResizedAxis, how: Resizing) -> Value:
    """Interpolation between the two or four nearest elements."""
    support = 1 if how.mode == "linear" else 2
    first = reshape(ew.sub(ew.floor(at), float(support - 1)), shape=(plan.new, 1))
    places = ew.add(first, constant(np.arange(2.0 * support).reshape(1, -1), "taps"))
    weights = _symbolic_weights(places, at, 1.0, plan, how)
    chosen = image.clamped(ew.cast(places, dtype=dt.i64), plan.old)
    return image.weighted_gather(x, chosen, _in_accuracy_of(x, weights), axis=plan.axis)


def _weighted_by_all(x: Value, at: Value, plan: ResizedAxis, how: Resizing) -> Value:
    """Antialiasing reads as many elements as the scale says: a matrix of weights for all, and for those beyond the ends
    that it can reach, where the last elements are read again."""
    scale = ew.div(image.size_scalar(plan.new, dt.f64), image.size_scalar(plan.old, dt.f64))
    scale = ew.min_(scale if plan.scale is None else _as_scalar(plan.scale), 1.0)
    reach = 0 if how.exclude_outside else plan.old * 2
    width = plan.old + reach * 2
    places = ew.sub(image.counter(width), image.size_scalar(sym(reach), dt.f64))
    weights = _symbolic_weights(reshape(places, shape=(1, width)), at, scale, plan, how)
    wide = gather(x, image.clamped(ew.cast(places, dtype=dt.i64), plan.old), axis=plan.axis, in_range=True)
    rank = len(shape_of(x))
    order = (*[k for k in range(rank) if k != plan.axis], plan.axis)
    weights = _in_accuracy_of(x, weights)
    rows = ew.cast(transpose(wide, perm=order), dtype=dtype_of(weights))
    made = matmul(rows, transpose(weights, perm=(1, 0)))
    return ew.cast(transpose(made, perm=tuple(order.index(k) for k in range(rank))), dtype=dtype_of(x))


def _symbolic_weights(
    places: Value, at: Value, scale: float | Value, plan: ResizedAxis, how: Resizing
) -> Value:
    """The weights [new, places] of elements at `places` (one row, or one for each new element), in f64."""
    distance = ew.mul(ew.abs_(ew.sub(places, reshape(at, shape=(plan.new, 1)))), scale)
    is_linear = how.mode == "linear"
    weights = ew.max_(ew.sub(1.0, distance), 0.0) if is_linear else _symbolic_cubic(distance, how.cubic_a)
    if how.exclude_outside:
        last = ew.sub(image.size_scalar(plan.old, dt.f64), 1.0)
        inside = ew.and_(ew.ge(places, 0.0), ew.le(places, last))
        weights = ew.select(inside, weights, 0.0)
    if how.exclude_outside or how.antialias:
        weights = ew.div(weights, reduce_sum(weights, axes=(1,), keepdims=True))
    return weights


def _symbolic_cubic(d: Value, a: float) -> Value:
    near = _polynomial(d, (a + 2, -(a + 3), 0.0, 1.0))
    far = _polynomial(d, (a, -5 * a, 8 * a, -4 * a))
    return ew.select(ew.le(d, 1.0), near, ew.select(ew.lt(d, 2.0), far, 0.0))


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, that of the highest power first."""
    total = ew.add(ew.mul(x, coefficients[0]), coefficients[1])
    for c in coefficients[2:]:
        total = ew.add(ew.mul(total, x), c)
    return total


def _in_accuracy_of(x: Value, weights: Value) -> Value:
    return ew.cast(weights, dtype=dt.f64 if dtype_of(x) == dt.f64 else dt.f32)
