"""Resize and Upsample, axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.composites.resizing import NEAREST, NEED_SIZES, ResizedAxis, Resizing, resized_along
from tilewright.frontends.composites.shapes import checked_shape
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Element, Ratio, UnknownValueError, variables
from tilewright.ops.view import reshape, slice_

_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
MAX_SCALE = 1e6


_Target = tuple[Sym, float | Value | None]
"""The new size and the scale of an axis."""


def _mode(node: Node) -> str:
    return node.one_of("mode", "nearest", "linear", "bilinear", "cubic").removeprefix("bi")


@adapter("Upsample", "Resize", since=7)
def upsample(node: Node) -> Value:
    """Upsample, and Resize of opset 10."""
    given = node.has("scales")
    scales = [element_of(np.float32(f), dt.f32) for f in node.attr("scales")] if given else node.elements(1)
    return _resized(node, Resizing(_mode(node)), tuple(range(node.rank(0))), scales, 1)


@adapter("Resize", since=11)
def resize(node: Node) -> Value:
    how = Resizing(
        _mode(node),
        node.one_of("coordinate_transformation_mode", *_COORDINATES),
        node.one_of("nearest_mode", *NEAREST),
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


def _resized(node: Node, how: Resizing, axes: Sequence[int], given: Sequence[Element], k: int) -> Value:
    """Operand 0 resized along `axes`, to sizes where k is 3, else by scales. Scales that dims determine are read from
    operand k when the model runs."""
    old = [node.shape(0)[a] for a in axes]
    if len(given) != len(axes):
        raise ModelError(f"{node.op} of {node.type(0)}: {len(given)} sizes or scales for {len(axes)} axes")
    if k == 3:
        sizes = [size for size in given if isinstance(size, Sym)]
        stretches = how.policy == "stretch"
        needs_all = not stretches or how.mode == "cubic" or how.coordinates in NEED_SIZES or how.antialias
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
    plans = [ResizedAxis(a, d, *t, *e) for a, d, t, e in zip(axes, old, targets, ends, strict=True)]
    shape = list(node.shape(0))
    for plan in plans:
        shape[plan.axis] = plan.new
    checked_shape(tuple(shape), node.op)
    x = node.input(0)
    for plan in plans:
        if plan.old != plan.new or (plan.scale not in (None, 1.0)) or how.coordinates == "tf_crop_and_resize":
            x = resized_along(node.translation, x, plan, how)
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
