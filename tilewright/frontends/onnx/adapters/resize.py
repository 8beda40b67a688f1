"""Resize and Upsample, axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.onnx.adapters.source import checked_shape
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.define import constant
from tilewright.ops.exact import Arithmetic, element_of
from tilewright.ops.floats import Element, Ratio, UnknownValueError, variables
from tilewright.ops.view import reshape, shape_of, slice_

_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
_NEED_SIZES = ("tf_crop_and_resize", "half_pixel_symmetric")
MAX_SCALE = 1e6


@dataclass(frozen=True)
class _How:
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
class _Axis:
    """One axis that changes: `scale` is a number when the file gives it or both sizes are constants, a scalar tensor
    when it is computed from dims, None when it is the ratio of the sizes."""

    axis: int
    old: Sym
    new: Sym
    scale: float | Value | None
    start: float = 0.0
    end: float = 1.0


_Target = tuple[Sym, float | Value | None]
"""The new size and the scale of an axis."""


def _mode(node: Node) -> str:
    return node.one_of("mode", "nearest", "linear", "bilinear", "cubic").removeprefix("bi")


@adapter("Upsample", "Resize", since=7)
def upsample(node: Node) -> Value:
    """Upsample, and Resize of opset 10."""
    given = node.has("scales")
    scales = [element_of(np.float32(f), dt.f32) for f in node.attr("scales")] if given else node.elements(1)
    return _resized(node, _How(_mode(node)), tuple(range(node.rank(0))), scales, 1)


@adapter("Resize", since=11)
def resize(node: Node) -> Value:
    how = _How(
        _mode(node),
        node.one_of("coordinate_transformation_mode", *_COORDINATES),
        node.one_of("nearest_mode", *_NEAREST),
        node.attr("cubic_coeff_a"),
        node.flag("exclude_outside"),
        bool(node.attr("antialias", 0)),
        node.attr("extrapolation_value"),
        node.one_of("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
        if node.version >= 18
        else "stretch",
    )
    if how.coordinates == "tf_half_pixel_for_nn":
        raise UnsupportedError("Resize with tf_half_pixel_for_nn is not supported")
    axes = node.checked_axes(node.attr("axes", tuple(range(node.rank(0)))))
    if node.optional(3) is not None and node.shape(3) != (sym(0),):
        return _resized(node, how, axes, node.symbols(3), 3)
    if node.optional(2) is None:
        raise ModelError("Resize needs scales or sizes")
    return _resized(node, how, axes, node.elements(2), 2)


def _resized(node: Node, how: _How, axes: Sequence[int], given: Sequence[Element], k: int) -> Value:
    """Operand 0 resized along `axes`, to sizes where k is 3, else by scales. Scales that dims determine are read from
    operand k when the model runs."""
    old = [node.shape(0)[a] for a in axes]
    if len(given) != len(axes):
        raise ModelError(f"{node.op} of {node.type(0)}: {len(given)} sizes or scales for {len(axes)} axes")
    if k == 3:
        sizes = [size for size in given if isinstance(size, Sym)]
        stretches = how.policy == "stretch"
        needs_all = not stretches or how.mode == "cubic" or how.coordinates in _NEED_SIZES or how.antialias
        if needs_all and not all(d.is_const for d in sizes):
            raise node.needs_constant(3)
        pairs = zip(old, sizes, strict=True)
        targets = [_sized(*p) for p in pairs] if stretches else _keep_ratio(node, how.policy, old, sizes)
    else:
        targets = [_scaled(node, d, scale, k, n) for n, (d, scale) in enumerate(zip(old, given, strict=True))]
    region = np.repeat((0.0, 1.0), len(axes))
    if how.coordinates == "tf_crop_and_resize":
        region = node.constant(1).reshape(-1)
        if len(region) != 2 * len(axes):
            raise ModelError(f"Resize: the region has {len(region)} numbers for {len(axes)} axes")
    ends = zip(*region.astype(np.float64).reshape(2, -1).tolist(), strict=True)
    plans = [_Axis(a, d, *t, *e) for a, d, t, e in zip(axes, old, targets, ends, strict=True)]
    shape = list(node.shape(0))
    for plan in plans:
        shape[plan.axis] = plan.new
    checked_shape(tuple(shape), node.op)
    x = node.input(0)
    for plan in plans:
        if plan.old != plan.new or (plan.scale not in (None, 1.0)) or how.coordinates == "tf_crop_and_resize":
            x = _resized_along(node, x, plan, how)
    return x


def _sized(old: Sym, size: Sym) -> _Target:
    if size.is_const and size.value < 0:
        raise ModelError(f"Resize to {size} elements")
    return size, size.value / old.value if size.is_const and old.is_const and old.value else None


def _scaled(node: Node, old: Sym, scale: Element, k: int, n: int) -> _Target:
    """Scale `n` of operand `k`: sizes are products of f32, without their fractions."""
    if scale.is_const:
        assert isinstance(scale, Ratio)
        if not 0 < scale.value <= MAX_SCALE:
            raise ModelError(f"Resize by a factor of {scale.value} is not possible")
    arithmetic = Arithmetic()
    try:
        product = arithmetic.apply("mul", (arithmetic.cast(old, dt.f32, dt.i64), scale), dt.f32, dt.f32)
        size = arithmetic.cast(product, dt.i64, dt.f32)
    except UnknownValueError as e:
        raise UnsupportedError(
            f"{node.op} of {old} elements by a factor whose product with that is not followed: {e}",
            hint=node.translation.fixing(old, *variables(scale)),
        ) from e
    node.rely_on(arithmetic)
    assert isinstance(size, Sym)
    if isinstance(scale, Ratio) and scale.is_const:
        return size, scale.value
    one = slice_(node.input(k), starts=(n,), sizes=(1,), steps=(1,))
    return size, ew.cast(reshape(one, shape=()), dtype=dt.f64)


def _keep_ratio(node: Node, policy: str, old: Sequence[Sym], sizes: Sequence[Sym]) -> list[_Target]:
    if not all(d.is_const for d in (*old, *sizes)):
        raise UnsupportedError(
            "Resize that keeps the aspect ratio of symbolic dims is not supported",
            hint=node.translation.fixing(*old, *sizes),
        )
    ratios = [size.value / d.value for size, d in zip(sizes, old, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [(sym(int(np.floor(scale * d.value + 0.5))), scale) for d in old]


def _resized_along(node: Node, x: Value, plan: _Axis, how: _How) -> Value:
    if _is_repetition(plan, how):
        assert isinstance(plan.scale, float)
        return image.repeat_elements(x, axis=plan.axis, count=round(plan.scale))
    if plan.old.is_const and plan.new.is_const:
        return _with_known_sizes(x, plan, how)
    return _with_symbolic_sizes(node, x, plan, how)


def _is_repetition(plan: _Axis, how: _How) -> bool:
    """Does every element simply appear `scale` times?"""
    if how.mode != "nearest" or not isinstance(plan.scale, float) or plan.scale != round(plan.scale):
        return False
    if plan.new != plan.old * round(plan.scale):
        return False
    if how.coordinates == "asymmetric":
        return how.nearest == "floor" or (plan.scale == 2 and how.nearest == "round_prefer_floor")
    return how.coordinates == "half_pixel" and how.nearest in ("round_prefer_floor", "round_prefer_ceil")


# Sizes that are known


def _with_known_sizes(x: Value, plan: _Axis, how: _How) -> Value:
    old, new = plan.old.value, plan.new.value
    if not new or not old:
        raise UnsupportedError(f"Resize of {old} to {new} elements is not supported")
    at = _coordinates(plan, how, np.arange(new, dtype=np.float64), old, new)
    if how.mode == "nearest":
        places = np.clip(_NEAREST[how.nearest][0](at), 0, old - 1).astype(np.int64)
        result = image.nearest_along(x, constant(places, "places"), axis=plan.axis)
    else:
        result = image.resample(x, plan.axis, *_taps(at, old, plan, how))
    if how.coordinates != "tf_crop_and_resize":
        return result
    outside = ((at < 0) | (at > old - 1)).reshape(
        [-1 if k == plan.axis else 1 for k in range(len(shape_of(x)))]
    )
    return ew.select(constant(outside, "outside"), how.extrapolation, result) if outside.any() else result


_NEAREST: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[Value], Value]]] = {
    "floor": (np.floor, ew.floor),
    "ceil": (np.ceil, ew.ceil),
    "round_prefer_floor": (lambda at: np.ceil(at - 0.5), lambda at: ew.ceil(ew.sub(at, 0.5))),
    "round_prefer_ceil": (lambda at: np.floor(at + 0.5), lambda at: ew.floor(ew.add(at, 0.5))),
}
"""How positions are rounded: of known sizes, and of others."""


def _coordinates(plan: _Axis, how: _How, at: np.ndarray, old: int, new: int) -> np.ndarray:
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


def _taps(at: np.ndarray, old: int, plan: _Axis, how: _How) -> tuple[np.ndarray, np.ndarray]:
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


def _with_symbolic_sizes(node: Node, x: Value, plan: _Axis, how: _How) -> Value:
    """The same, computed when the model runs."""
    if how.mode == "cubic" or how.antialias or how.coordinates in _NEED_SIZES:
        raise UnsupportedError(
            f"Resize of a symbolic dim, mode {how.mode}, coordinates {how.coordinates}, is not supported",
            hint=node.translation.fixing(plan.old, plan.new),
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
    return image.nearest_along(x, _NEAREST[how.nearest][1](at), axis=plan.axis)
