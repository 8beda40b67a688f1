"""Resize and Upsample, axis by axis: which elements of the input make an element of the output, with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym, var
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.images.positions import NEAREST, ResizedAxis, Resizing
from tilewright.ops.composites.images.resizing import resized
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define import constant
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Element, Ratio, UnknownValueError
from tilewright.ops.define.staged import measure_size
from tilewright.ops.image import size_scalar
from tilewright.ops.reduce import reduce_max, reduce_min
from tilewright.ops.source import sym_tensor
from tilewright.ops.view import reshape, slice_

_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize", "tf_half_pixel_for_nn",
)  # fmt: skip
MAX_SCALE = 1e6


_Target = tuple[Sym, float | Value | None]
"""The new size and the scale of an axis."""


def mode_of(node: Node) -> str:
    return node.one_of("mode", "nearest", "linear", "bilinear", "cubic").removeprefix("bi")


@adapter("Upsample", "Resize", since=7)
def upsample(node: Node) -> Value:
    """Upsample, and Resize of opset 10."""
    given = node.has("scales")
    scales = [element_of(np.float32(f), dt.f32) for f in node.attr("scales")] if given else node.elements_or_none(1)
    return resized_to(node, Resizing(mode_of(node), nearest="simple"), tuple(range(node.rank(0))), scales, 1)


@adapter("Resize", since=11)
def resize(node: Node) -> Value:
    how = Resizing(
        mode_of(node),
        node.one_of("coordinate_transformation_mode", *_COORDINATES),
        node.one_of("nearest_mode", *NEAREST),
        node.attr("cubic_coeff_a"),
        node.flag("exclude_outside"),
        node.flag("antialias", 0),
        node.attr("extrapolation_value"),
        node.one_of("keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
        if node.version >= 18
        else "stretch",
        integers="round each" if node.attr("antialias", 0) else "truncate",
    )
    axes = node.checked_axes(node.attr("axes", tuple(range(node.rank(0)))))
    if node.optional(3) is not None and node.shape(3) != (sym(0),):
        return resized_to(node, how, axes, node.symbols(3), 3)
    if node.optional(2) is None:
        raise ModelError("Resize needs scales or sizes")
    # The standard counts the fraction of an element that a scale gives, PyTorch does not.
    counts = not node.producer.startswith("pytorch")
    return resized_to(node, replace(how, counts_fractions=counts), axes, node.elements_or_none(2), 2)


def resized_to(
    node: Node, how: Resizing, axes: Sequence[int], given: Sequence[Element] | None, k: int
) -> Value:
    """Operand 0 resized along `axes`, to sizes where k is 3, else by scales; those that dims or data determine (None)
    are read from operand k when the model runs."""
    old = [node.shape(0)[a] for a in axes]
    count = node.known_dim(k, 0) if given is None else len(given)
    if count != len(axes):
        raise ModelError(f"{node.op} of {node.type(0)}: {count} sizes or scales for {len(axes)} axes")
    if given is None:
        targets = [_measured(node, d, _number(node, k, n)) for n, d in enumerate(old)]
    elif k == 3:
        sizes = [size for size in given if isinstance(size, Sym)]
        pairs = zip(old, sizes, strict=True)
        stretches = how.policy == "stretch"
        for before, size in zip(old, sizes, strict=True):
            if not size.is_const:
                require(node.translation, s.le(s.minimum(before, 1), size), "Resize to fewer elements than one")
        targets = [_sized(*p) for p in pairs] if stretches else _keep_ratio(node, how.policy, old, sizes)
    else:
        targets = [_scaled(node, d, scale, k, n) for n, (d, scale) in enumerate(zip(old, given, strict=True))]
    ends = _region(node, len(axes)) if how.coordinates == "tf_crop_and_resize" else [(0.0, 1.0)] * len(axes)
    plans = [ResizedAxis(a, d, *t, *e) for a, d, t, e in zip(axes, old, targets, ends, strict=True)]
    if how.coordinates != "tf_crop_and_resize":
        plans = _with_copies(plans, how)
    shape = list(node.shape(0))
    for plan in plans:
        shape[plan.axis] = plan.new
    checked_shape(tuple(shape), node.op)
    changed = [p for p in plans if p.old != p.new or p.scale not in (None, 1.0) or (p.start, p.end) != (0.0, 1.0)]
    return resized(node.input(0), changed, how) if changed else node.input(0)


def _with_copies(plans: list[ResizedAxis], how: Resizing) -> list[ResizedAxis]:
    """ONNX Runtime copies an image that keeps its size, and an axis when antialiasing, though scales are not 1; and an
    axis with a scale of 1, also where that gives other positions (in all other modes they are the same)."""
    if how.antialias:
        return [replace(p, copied=((p.old, p.new),)) if _may_keep_size(p) else p for p in plans]
    if how.coordinates in ("align_corners", "tf_half_pixel_for_nn"):
        plans = [p if p.scale is not None else replace(p, copied=((p.old, p.new),)) for p in plans]
    if not all(map(_may_keep_size, plans)):
        return plans
    pairs = tuple((p.old, p.new) for p in plans)
    return [p if p.scale is None else replace(p, copied=pairs) for p in plans]


def _may_keep_size(plan: ResizedAxis) -> bool:
    """Whether a scale can give the size that it is given: those from 1 to below 2 can, of axes that are not empty."""
    return not isinstance(plan.scale, float) or 1 <= plan.scale < 2


def _region(node: Node, count: int) -> list[tuple[float | Value, float | Value]]:
    """Start and end of the part of each axis that tf_crop_and_resize reads, as shares of its length."""
    fits = s.eq(node.type(1).size, 2 * count)
    require(node.translation, fits, f"Resize: the region is {node.type(1)} for {count} axes")
    known = node.constant_or_none(1)
    if known is None:
        return [(_number(node, 1, k), _number(node, 1, count + k)) for k in range(count)]
    starts, ends = known.reshape(2, -1).astype(np.float64).tolist()
    return list(zip(starts, ends, strict=True))


def _number(node: Node, k: int, n: int) -> Value:
    """Element n of operand k as an f64 scalar."""
    one = slice_(node.input(k), starts=(n,), sizes=(1,), steps=(1,))
    return ew.cast(reshape(one, shape=()), dtype=dt.f64)


def _product(old: Sym, scale: Value) -> Value:
    """The whole part of a length times a scale, in f32."""
    return ew.cast(ew.mul(size_scalar(old, dt.f32), ew.cast(scale, dtype=dt.f32)), dtype=dt.i64)


def _measured(node: Node, old: Sym, scale: Value) -> _Target:
    """The size that a scale, an f64 scalar, gives which is computed when the model runs."""
    factor = ew.cast(scale, dtype=dt.f32)
    is_possible = ew.and_(ew.gt(factor, 0.0), ew.le(factor, MAX_SCALE))  # NaN is neither
    size = var(node.translation.new_size().name, None)
    measure_size(ew.select(is_possible, _product(old, scale), -1), size)
    message = f"{node.op} by a factor that is not above 0, or above {MAX_SCALE:g}, is not possible"
    node.translation.require(s.le(0, size), message)
    return size, scale


def _sized(old: Sym, size: Sym) -> _Target:
    if size.is_const and size.value < (0 if old == 0 else 1):
        raise ModelError(f"Resize to {size} elements")
    known = size.is_const and old.is_const and old.value
    return size, float(np.float32(size.value) / np.float32(old.value)) if known else None


def _scaled(node: Node, old: Sym, scale: Element, k: int, n: int) -> _Target:
    """Scale `n` of operand `k`: sizes are products of f32, without their fractions."""
    if scale.is_const:
        assert isinstance(scale, Ratio)
        if not 0 < scale.value <= MAX_SCALE:
            raise ModelError(f"Resize by a factor of {scale.value} is not possible")
    arithmetic = Arithmetic(exceptions=False)
    try:
        product = arithmetic.apply("mul", (arithmetic.cast(old, dt.f32, dt.i64), scale), dt.f32, dt.f32)
        size = arithmetic.cast(product, dt.i64, dt.f32)
    except UnknownValueError:  # rounding gives some dims another size, or there are several
        if not isinstance(scale, Ratio) or not scale.is_const:
            return _measured(node, old, _number(node, k, n))
        whole = _product(old, constant(np.array(scale.value), "scale"))
        return measure_size(whole, node.translation.new_size()), scale.value
    node.rely_on(arithmetic)
    assert isinstance(size, Sym)
    if isinstance(scale, Ratio) and scale.is_const:
        return size, scale.value
    return size, _number(node, k, n)


def _keep_ratio(node: Node, policy: str, old: Sequence[Sym], sizes: Sequence[Sym]) -> list[_Target]:
    """One scale for all axes, in f32, and the sizes that it gives, rounded."""
    if all(d.is_const for d in (*old, *sizes)):
        ratios = [np.float32(size.value) / np.float32(d.value) for size, d in zip(sizes, old, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        return [(sym(int(np.floor(float(scale * np.float32(d.value)) + 0.5))), float(scale)) for d in old]
    wanted, lengths = (ew.cast(sym_tensor(values=tuple(v)), dtype=dt.f64) for v in (sizes, old))
    least = reduce_min if policy == "not_larger" else reduce_max
    common = least(_rounded(ew.div(wanted, lengths)), axes=(0,), keepdims=False)
    products = _rounded(ew.mul(lengths, common))
    found = node.translation.measure(ew.cast(ew.floor(ew.add(products, 0.5)), dtype=dt.i64))
    assert found is not None
    return [(size, common) for size in found]


def _rounded(x: Value) -> Value:
    """Floats of 64 bits rounded to 32, still as f64."""
    return ew.cast(ew.cast(x, dtype=dt.f32), dtype=dt.f64)
