"""Where in a resized axis of the input the elements of the output lie, in the floats that its engine computes with.

A position decides which element is read, so that it is computed as ONNX Runtime, PyTorch and TFLite do, with each
operation rounded to float32: `10 / 1.2` may be 8 or a little less. One recipe serves sizes that are known, on arrays,
and others, on values of the graph; there float32 is arithmetic of float64 whose results are rounded, which is the same
for one operation and no optimisation of floats changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops import image
from tilewright.ops.define import constant
from tilewright.ops.view import reshape, shape_of


@dataclass(frozen=True)
class Resizing:
    """How positions follow from sizes, and elements from positions.

    `multiplies`: positions are multiplied by the reciprocal of the scale, rounded, as PyTorch and TFLite do, not
    divided by the scale. `counts_fractions`: where corners are aligned, an axis is as long as its scale says, with
    the fraction of an element that its size leaves out. `integers` says how they are interpolated: all axes, and then
    "truncate" or "round"; or rounded after each axis, the last first ("round each"). `precision` is that of positions.
    """

    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    policy: str = "stretch"
    multiplies: bool = False
    counts_fractions: bool = False
    integers: Literal["truncate", "round", "round each"] = "truncate"
    precision: DType = dt.f32


@dataclass(frozen=True)
class ResizedAxis:
    """One axis that changes: `scale` is a number when the file gives it or both sizes are constants, an f64
    scalar tensor when it is computed, None when it is the ratio of the sizes. `start` and `end` are those of
    tf_crop_and_resize. Where all sizes of `copied` are equal in pairs, the axis is copied whatever its scale is."""

    axis: int
    old: Sym
    new: Sym
    scale: float | Value | None
    start: float | Value = 0.0
    end: float | Value = 1.0
    copied: tuple[tuple[Sym, Sym], ...] = ()

    @property
    def is_copied(self) -> Sym:
        """The condition under which it is."""
        return s.logical_and(*(s.eq(*pair) for pair in self.copied)) if self.copied else s.ZERO

    @property
    def is_computed(self) -> bool:
        return any(isinstance(v, Value) for v in (self.scale, self.start, self.end))

    @property
    def is_known(self) -> bool:
        """Whether its positions are known before the model runs."""
        return self.old.is_const and self.new.is_const and not self.is_computed


_ARRAYS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floor": np.floor, "ceil": np.ceil,
    "where": np.where,
}  # fmt: skip
_VALUES: Mapping[str, Callable[..., Value]] = {
    "add": ew.add, "sub": ew.sub, "mul": ew.mul, "div": ew.div, "floor": ew.floor, "ceil": ew.ceil, "where": ew.select,
}  # fmt: skip


@dataclass(frozen=True)
class Apply:
    """Computes operations by their names, each result rounded to `precision`: on arrays, or on values."""

    precision: DType
    on_values: bool

    def __call__(self, name: str, *operands: Any) -> Any:
        if not any(isinstance(x, Value) for x in operands):
            cast: Any = self.precision.storage.type
            with np.errstate(all="ignore"):
                found = _ARRAYS[name](*[x if k == 0 and name == "where" else cast(x) for k, x in enumerate(operands)])
            return float(found) if self.on_values else found
        first, *others = operands
        result = _VALUES[name](_scalar(first), *others)
        if self.precision is dt.f64 or name == "where":
            return result
        return ew.cast(ew.cast(result, dtype=self.precision), dtype=dt.f64)

    def wide(self) -> Apply:
        """The same in f64."""
        return Apply(dt.f64, self.on_values)


def _scalar(x: float | Value) -> Value:
    return x if isinstance(x, Value) else constant(np.array(x), "scalar")


def known_positions(plan: ResizedAxis, how: Resizing) -> np.ndarray:
    """Those of an axis whose sizes and scale are numbers, in f64."""
    old, new = float(plan.old.value), float(plan.new.value)
    at = np.arange(plan.new.value, dtype=np.float64)
    if plan.is_copied == 1:
        return at
    found = _positions(Apply(how.precision, on_values=False), at, old, new, new > 1, plan, how)
    return np.broadcast_to(found, at.shape).astype(np.float64)


def computed_positions(plan: ResizedAxis, how: Resizing) -> Value:
    """The same when the model runs."""
    old, new = image.size_scalar(plan.old, dt.f64), image.size_scalar(plan.new, dt.f64)
    at = image.counter(plan.new)
    found: Value = _positions(Apply(how.precision, on_values=True), at, old, new, ew.gt(new, 1.0), plan, how)
    condition = plan.is_copied
    return found if condition == 0 else ew.select(ew.ne(image.size_scalar(condition, dt.i64), 0), at, found)


def _positions(
    apply: Apply, at: Any, old: Any, new: Any, are_several: Any, plan: ResizedAxis, how: Resizing
) -> Any:
    """Positions of the elements `at`; `are_several` says whether there is more than one."""
    one_before = apply("sub", old, 1.0)
    if how.coordinates == "align_corners":
        wanted = apply("mul", old, plan.scale) if how.counts_fractions and plan.scale is not None else new
        last = apply("sub", wanted, 1.0)
        last = apply("where", are_several, last, 1.0)
        if how.multiplies:
            found = apply("mul", at, apply("div", one_before, last))
        else:
            found = apply("div", apply("mul", at, one_before), last)
        return apply("where", are_several, found, 0.0)
    if how.coordinates == "tf_crop_and_resize":
        return _in_region(apply, at, one_before, new, are_several, plan)
    by = _divide(apply, old, new, plan, how)
    if how.coordinates == "asymmetric":
        return by(at)
    centres = by(apply("add", at, 0.5))
    if how.coordinates == "tf_half_pixel_for_nn":
        return centres
    if how.coordinates == "half_pixel_symmetric":
        return _symmetric(apply, at, old, new, plan)
    found = apply("sub", centres, 0.5)
    return apply("where", are_several, found, 0.0) if how.coordinates == "pytorch_half_pixel" else found


def _symmetric(apply: Apply, at: Any, old: Any, new: Any, plan: ResizedAxis) -> Any:
    """ONNX Runtime computes the offset in float32, and the sum in float64."""
    scale = apply("div", new, old) if plan.scale is None else plan.scale
    share = apply("div", new, apply("mul", scale, old))
    offset = apply("mul", apply("div", old, 2.0), apply("sub", 1.0, share))
    wide = apply.wide()
    found = wide("sub", wide("add", wide("div", wide("add", at, 0.5), scale), offset), 0.5)
    return apply("add", found, 0.0)


def _divide(apply: Apply, old: Any, new: Any, plan: ResizedAxis, how: Resizing) -> Callable[[Any], Any]:
    """A division by the scale."""
    if not how.multiplies:
        scale = apply("div", new, old) if plan.scale is None else plan.scale
        return lambda x: apply("div", x, scale)
    if isinstance(plan.scale, float):
        factor: Any = float(how.precision.storage.type(1.0 / plan.scale))  # divided in f64
    else:
        factor = apply("div", old, new) if plan.scale is None else apply("div", 1.0, plan.scale)
    return lambda x: apply("mul", x, factor)


def _in_region(apply: Apply, at: Any, one_before: Any, new: Any, are_several: Any, plan: ResizedAxis) -> Any:
    start, end = plan.start, plan.end
    steps = apply("where", are_several, apply("sub", new, 1.0), 1.0)
    inner = apply("div", apply("mul", apply("mul", at, apply("sub", end, start)), one_before), steps)
    several = apply("add", apply("mul", start, one_before), inner)
    middle = apply("mul", apply("mul", 0.5, apply("add", start, end)), one_before)
    return apply("where", are_several, several, middle)


def with_extrapolation(x: Value, plan: ResizedAxis, how: Resizing) -> Value:
    """x [..., new, ...], and the value for extrapolation where a region goes beyond the ends of the axis."""
    if how.coordinates != "tf_crop_and_resize":
        return x
    lanes = tuple(plan.new if k == plan.axis else s.sym(1) for k in range(len(shape_of(x))))
    if plan.is_known:
        at = known_positions(plan, how)
        is_outside = (at < 0) | (at > plan.old.value - 1)
        if not is_outside.any():
            return x
        outside = constant(is_outside, "outside")
    else:
        computed, last = computed_positions(plan, how), ew.sub(image.size_scalar(plan.old, dt.f64), 1.0)
        outside = ew.or_(ew.lt(computed, 0.0), ew.gt(computed, last))
    return ew.select(reshape(outside, shape=lanes), how.extrapolation, x)


# The nearest element

NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
"""How a position becomes that of the nearest element. "simple", which ONNX Runtime has for files before operator set
11, is "ceil" where an axis shrinks, else "floor"."""


def nearest_known(at: np.ndarray, plan: ResizedAxis, how: Resizing) -> np.ndarray:
    scale = plan.scale if isinstance(plan.scale, float) else plan.new.value / plan.old.value
    return _nearest(Apply(dt.f64, on_values=False), at, how, np.asarray(scale < 1))


def nearest_computed(at: Value, plan: ResizedAxis, how: Resizing) -> Value:
    scale = plan.scale
    if scale is None:
        scale = ew.div(image.size_scalar(plan.new, dt.f64), image.size_scalar(plan.old, dt.f64))
    found: Value = _nearest(Apply(dt.f64, on_values=True), at, how, ew.lt(_scalar(scale), 1.0))
    return found


_HALVES = 1e-6
"""ONNX Runtime takes positions that are so close to a half for one; found by comparing with its results."""


def _nearest(apply: Apply, at: Any, how: Resizing, shrinks: Any) -> Any:
    mode, halves = how.nearest, 0.0 if how.multiplies else _HALVES
    if mode == "simple":
        return apply("where", shrinks, apply("ceil", at), apply("floor", at))
    if mode == "round_prefer_floor":
        return apply("ceil", apply("sub", at, 0.5 + halves))
    return apply("floor", apply("add", at, 0.5 + halves)) if mode == "round_prefer_ceil" else apply(mode, at)
