"""Images resized axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.view import expand, reshape, shape_of, transpose


@dataclass(frozen=True)
class Resizing:
    """The attributes of Resize."""

    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    policy: str = "stretch"


@dataclass(frozen=True)
class ResizedAxis:
    """One axis that changes: `scale` is a number when the file gives it or both sizes are constants, an f64
    scalar tensor when it is computed, None when it is the ratio of the sizes. `start` and `end` are those of
    tf_crop_and_resize."""

    axis: int
    old: Sym
    new: Sym
    scale: float | Value | None
    start: float | Value = 0.0
    end: float | Value = 1.0

    @property
    def is_computed(self) -> bool:
        return any(isinstance(v, Value) for v in (self.scale, self.start, self.end))


def resized_along(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    if plan.old == 1 and how.coordinates != "tf_crop_and_resize" and not how.exclude_outside:
        return expand(x, shape=tuple(plan.new if k == plan.axis else d for k, d in enumerate(shape_of(x))))
    if _is_repetition(plan, how):
        assert isinstance(plan.scale, float)
        return image.repeat_elements(x, axis=plan.axis, count=round(plan.scale))
    if plan.old.is_const and plan.new.is_const and not plan.is_computed:
        return _with_known_sizes(x, plan, how)
    return _with_symbolic_sizes(x, plan, how)


def _is_repetition(plan: ResizedAxis, how: Resizing) -> bool:
    """Does every element simply appear `scale` times?"""
    if how.mode != "nearest" or not isinstance(plan.scale, float) or plan.scale != round(plan.scale):
        return False
    if plan.new != plan.old * round(plan.scale):
        return False
    if how.coordinates == "asymmetric":
        return how.nearest == "floor" or (plan.scale == 2 and how.nearest == "round_prefer_floor")
    return how.coordinates == "half_pixel" and how.nearest in ("round_prefer_floor", "round_prefer_ceil")


# Sizes that are known


def _with_known_sizes(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    old, new = plan.old.value, plan.new.value
    if not new or not old:
        raise UnsupportedError(f"Resize of {old} to {new} elements is not supported")
    at = _coordinates(plan, how, np.arange(new, dtype=np.float64), old, new)
    if how.mode == "nearest":
        places = np.clip(NEAREST[how.nearest][0](at), 0, old - 1).astype(np.int64)
        result = image.nearest_along(x, constant(places, "places"), axis=plan.axis)
    else:
        result = image.resample(x, plan.axis, *_taps(at, old, plan, how))
    if how.coordinates != "tf_crop_and_resize":
        return result
    outside = ((at < 0) | (at > old - 1)).reshape(
        [-1 if k == plan.axis else 1 for k in range(len(shape_of(x)))]
    )
    return ew.select(constant(outside, "outside"), how.extrapolation, result) if outside.any() else result


NEAREST: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Value], Value]]] = {
    "floor": (np.floor, ew.floor),
    "ceil": (np.ceil, ew.ceil),
    "round_prefer_floor": (lambda at: np.ceil(at - 0.5), lambda at: ew.ceil(ew.sub(at, 0.5))),
    "round_prefer_ceil": (lambda at: np.floor(at + 0.5), lambda at: ew.floor(ew.add(at, 0.5))),
}
"""How positions are rounded: of known sizes, and of others."""


def _coordinates(plan: ResizedAxis, how: Resizing, at: np.ndarray, old: int, new: int) -> np.ndarray:
    """Where in the input the centres of the output's elements lie."""
    scale = plan.scale if isinstance(plan.scale, float) else new / old
    if how.coordinates == "align_corners":
        return at * ((old - 1) / (scale * old - 1)) if new > 1 and scale * old != 1 else at * 0
    if how.coordinates == "asymmetric":
        return at / scale
    if how.coordinates == "pytorch_half_pixel" and new == 1:
        return at * 0
    if how.coordinates == "half_pixel_symmetric":
        offset = old / 2 * (1 - new / (scale * old))
        return offset + (at + 0.5) / scale - 0.5
    if how.coordinates == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if how.coordinates == "tf_crop_and_resize":
        assert isinstance(plan.start, float) and isinstance(plan.end, float)
        if new == 1:
            return at * 0 + 0.5 * (plan.start + plan.end) * (old - 1)
        return plan.start * (old - 1) + at * (plan.end - plan.start) * (old - 1) / (new - 1)
    return (at + 0.5) / scale - 0.5


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
    at = _symbolic_coordinates(plan, how)
    if how.mode == "nearest":
        result = image.nearest_along(x, NEAREST[how.nearest][1](at), axis=plan.axis)
    elif how.antialias:
        result = _weighted_by_all(x, at, plan, how)
    elif how.mode == "linear" and not how.exclude_outside:
        result = image.linear_along(x, at, axis=plan.axis)
    else:
        result = _weighted_by_taps(x, at, plan, how)
    if how.coordinates != "tf_crop_and_resize":
        return result
    last = ew.sub(image.size_scalar(plan.old, dt.f64), 1.0)
    outside = ew.or_(ew.lt(at, 0.0), ew.gt(at, last))
    lanes = tuple(plan.new if k == plan.axis else sym(1) for k in range(len(shape_of(x))))
    return ew.select(reshape(outside, shape=lanes), how.extrapolation, result)


def _symbolic_coordinates(plan: ResizedAxis, how: Resizing) -> Value:
    at = image.counter(plan.new)
    old, new = image.size_scalar(plan.old, dt.f64), image.size_scalar(plan.new, dt.f64)
    scale: Value | float = ew.div(new, old) if plan.scale is None else plan.scale
    one_before = ew.sub(old, 1.0)
    if how.coordinates == "align_corners":
        last = ew.sub(new if plan.scale is None else ew.mul(old, scale), 1.0)
        is_usual = ew.and_(ew.gt(new, 1.0), ew.ne(last, 0.0))
        return ew.select(is_usual, ew.mul(at, ew.div(one_before, ew.select(is_usual, last, 1.0))), 0.0)
    if how.coordinates == "tf_crop_and_resize":
        steps = ew.max_(ew.sub(new, 1.0), 1.0)
        inner = ew.mul(at, ew.div(ew.mul(one_before, _difference(plan.end, plan.start)), steps))
        several = ew.add(ew.mul(one_before, plan.start), inner)
        middle = ew.mul(ew.mul(one_before, 0.5), ew.add(_as_scalar(plan.start), plan.end))
        return ew.select(ew.gt(new, 1.0), several, middle)
    if how.coordinates == "asymmetric":
        return ew.div(at, scale)
    centres = ew.div(ew.add(at, 0.5), scale)
    if how.coordinates == "tf_half_pixel_for_nn":
        return centres
    at = ew.sub(centres, 0.5)
    if how.coordinates == "pytorch_half_pixel":
        return ew.select(ew.gt(new, 1.0), at, 0.0)
    if how.coordinates == "half_pixel_symmetric":
        share = ew.div(new, ew.mul(old, scale))
        return ew.add(at, ew.mul(ew.mul(old, 0.5), ew.sub(1.0, share)))
    return at


def _as_scalar(x: float | Value) -> Value:
    return x if isinstance(x, Value) else constant(np.array(x), "scalar")


def _difference(a: float | Value, b: float | Value) -> Value:
    return ew.sub(_as_scalar(a), b)


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
    wide = gather(x, image.clamped(ew.cast(places, dtype=dt.i64), plan.old), axis=plan.axis)
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
