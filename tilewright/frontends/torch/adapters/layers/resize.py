"""Interpolation: to other sizes, and at computed coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops.composites.images.positions import ResizedAxis, Resizing
from tilewright.ops.composites.images.resizing import resized
from tilewright.ops.image import sampled
from tilewright.ops.reduce import dtype_of
from tilewright.ops.view import shape_of

_MODES = {
    "upsample_nearest1d": "nearest", "upsample_nearest2d": "nearest", "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "exact", "_upsample_nearest_exact2d": "exact", "_upsample_nearest_exact3d": "exact",
    "upsample_linear1d": "linear", "upsample_bilinear2d": "linear", "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic", "_upsample_bilinear2d_aa": "linear", "_upsample_bicubic2d_aa": "cubic",
}  # fmt: skip


@aten(*_MODES)
def upsample(
    node: AtenNode, self: Value | None = None, output_size: Any = None, align_corners: bool = False,
    input: Value | None = None, scale_factors: Sequence[float] | None = None, **scales: Any,
) -> Value:  # fmt: skip
    """Positions are computed with the factors where these are given, else with the ratios of the sizes."""
    x = self if self is not None else input
    assert x is not None
    op = node.op.split(".")[1]
    old, new = shape_of(x)[2:], node.shape[2:]
    given = list(scale_factors) if scale_factors else [scales.get(k) for k in _SCALES[-len(old) :]]
    if len(old) == 1 and "scales" in scales:
        given = [scales["scales"]]
    how = _how(_MODES[op], align_corners, op.endswith("_aa"), dtype_of(x))
    copies = how.antialias or _MODES[op] in ("nearest", "linear")  # an axis that keeps its size, whatever the factor
    plans = []
    for k, (a, b) in enumerate(zip(old, new, strict=True)):
        factor = given[k] if k < len(given) and not align_corners else None
        scale = float(factor) if isinstance(factor, int | float) and factor > 0 else None
        if scale is None and a.is_const and b.is_const and a.value:
            scale = b.value / a.value
        if a != b or scale not in (None, 1.0):
            copied = ((a, b),) if scale is not None and 1 <= scale < 2 and copies else ()
            plans.append(ResizedAxis(2 + k, a, b, scale, copied=copied))
    return resized(x, plans, how) if plans else x


_SCALES = ("scales_d", "scales_h", "scales_w")


def _how(mode: str, align_corners: bool, antialias: bool, dtype: dt.DType) -> Resizing:
    """Positions are in float32 but for float64; integers are rounded after each axis."""
    rules = partial(Resizing, multiplies=True, integers="round each", precision=dt.f64 if dtype is dt.f64 else dt.f32)
    if mode == "nearest":
        return rules("nearest", "asymmetric", "floor")
    if mode == "exact":
        return rules("nearest", "tf_half_pixel_for_nn", "floor")
    coordinates = "align_corners" if align_corners else "half_pixel"
    return rules(mode, coordinates, cubic_a=-0.5 if antialias else -0.75, antialias=antialias,
                 exclude_outside=antialias)  # fmt: skip


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sampler(
    node: AtenNode,
    input: Value,
    grid: Value,
    interpolation_mode: int = 0,
    padding_mode: int = 0,
    align_corners: bool = False,
) -> Value:
    mode = ("linear", "nearest", "cubic")[interpolation_mode]
    padding = ("zeros", "border", "reflection")[padding_mode]
    return sampled(input, grid, mode=mode, padding=padding, align_corners=bool(align_corners))
