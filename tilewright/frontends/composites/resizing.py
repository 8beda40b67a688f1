"""Images resized axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.translation import Translation
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.define import constant
from tilewright.ops.view import shape_of

NEED_SIZES = ("tf_crop_and_resize", "half_pixel_symmetric")
"""Coordinates that are worked out for known sizes only."""


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
    """One axis that changes: `scale` is a number when the file gives it or both sizes are constants, a scalar tensor
    when it is computed from dims, None when it is the ratio of the sizes."""

    axis: int
    old: Sym
    new: Sym
    scale: float | Value | None
    start: float = 0.0
    end: float = 1.0


def resized_along(translation: Translation, x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    if _is_repetition(plan, how):
        assert isinstance(plan.scale, float)
        return image.repeat_elements(x, axis=plan.axis, count=round(plan.scale))
    if plan.old.is_const and plan.new.is_const:
        return _with_known_sizes(x, plan, how)
    return _with_symbolic_sizes(translation, x, plan, how)


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
    if how.coordinates == "tf_crop_and_resize":
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


def _with_symbolic_sizes(translation: Translation, x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    """The same, computed when the model runs."""
    if how.mode == "cubic" or how.antialias or how.coordinates in NEED_SIZES:
        raise UnsupportedError(
            f"Resize of a symbolic dim, mode {how.mode}, coordinates {how.coordinates}, is not supported",
            hint=translation.fixing(plan.old, plan.new),
        )
    at = image.counter(plan.new)
    old, new = image.size_scalar(plan.old, dt.f64), image.size_scalar(plan.new, dt.f64)
    if how.coordinates == "align_corners":
        at = ew.mul(at, ew.div(ew.sub(old, 1.0), ew.max_(ew.sub(new, 1.0), 1.0)))
    else:
        scale = ew.div(new, old) if plan.scale is None else plan.scale
        half = 0.0 if how.coordinates == "asymmetric" else 0.5
        at = ew.sub(ew.div(ew.add(at, half), scale), half)
        if how.coordinates == "pytorch_half_pixel":
            at = ew.select(ew.gt(new, 1.0), at, 0.0)
    if how.mode == "linear":
        return image.linear_along(x, at, axis=plan.axis)
    return image.nearest_along(x, NEAREST[how.nearest][1](at), axis=plan.axis)
