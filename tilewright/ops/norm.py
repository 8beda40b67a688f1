"""Normalisations, in f32 at least: variances of centred values, softmax without its greatest element."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops.define import op
from tilewright.ops.define.demands import require_equal_dim
from tilewright.ops.elementwise import add, div, exp, log, max_, mul, pow_, rsqrt, sqrt, sub
from tilewright.ops.pool import sum_pool
from tilewright.ops.reduce import (
    as_dtype,
    dtype_of,
    reduce_l1,
    reduce_l2,
    reduce_max,
    reduce_mean,
    reduce_sum,
    widened,
)
from tilewright.ops.shape import checked_axes, checked_axis, require_unstretched
from tilewright.ops.view import reshape, shape_of


@op(keep=True)
def softmax(x: Value, *, axis: int = -1) -> Value:
    """exp(x) / sum(exp(x)) along `axis`."""
    wide = widened(x)
    powers = exp(sub(wide, reduce_max(wide, axes=(axis,))))
    return as_dtype(div(powers, reduce_sum(powers, axes=(axis,))), dtype_of(x))


@op(keep=True)
def log_softmax(x: Value, *, axis: int = -1) -> Value:
    """log(softmax(x)) along `axis`."""
    wide = widened(x)
    shifted = sub(wide, reduce_max(wide, axes=(axis,)))
    return as_dtype(sub(shifted, log(reduce_sum(exp(shifted), axes=(axis,)))), dtype_of(x))


def _trailing(x: Value, axis: int) -> tuple[int, ...]:
    rank = len(shape_of(x))
    return tuple(range(checked_axis(axis, rank), rank))


def standardized(x: Value, axes: Sequence[int], epsilon: float) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over `axes`."""
    centred = sub(x, reduce_mean(x, axes=axes))
    variance = reduce_mean(mul(centred, centred), axes=axes)
    return mul(centred, rsqrt(add(variance, epsilon)))


@op(keep=True)
def layer_norm(
    x: Value, scale: Value, bias: Value | None = None, *, axis: int = -1, epsilon: float = 1e-5
) -> Value:
    """x standardised over `axis` and all after it, times `scale`, plus `bias` (Ba et al., 2016)."""
    for other in (scale,) if bias is None else (scale, bias):
        require_unstretched(shape_of(x), shape_of(other), "scales and biases")
    result = mul(standardized(widened(x), _trailing(x, axis), epsilon), widened(scale))
    return as_dtype(result if bias is None else add(result, widened(bias)), dtype_of(x))


@op(keep=True)
def rms_norm(x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5) -> Value:
    """x / sqrt(mean(x^2) + epsilon) * scale over `axis` and all after it (Zhang & Sennrich, 2019)."""
    require_unstretched(shape_of(x), shape_of(scale), "scales")
    wide = widened(x)
    power = reduce_mean(mul(wide, wide), axes=_trailing(x, axis))
    normal = mul(wide, rsqrt(add(power, epsilon)))
    return as_dtype(mul(normal, as_dtype(scale, dtype_of(wide))), dtype_of(x))


def _per_channel(v: Value, x: Value) -> Value:
    """A vector over the channels of x [n, c, *space] in a shape that broadcasts against it. One entry is not for all
    channels."""
    (size,), channels = shape_of(v), shape_of(x)[1]
    require_equal_dim(size, channels, "the numbers for channels and the channels")
    return reshape(v, shape=(size if size.is_const else channels, *[sym(1)] * (len(shape_of(x)) - 2)))


@op
def batch_norm(
    x: Value, scale: Value, bias: Value, mean: Value, variance: Value, *, epsilon: float = 1e-5
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, by channel: one multiplication, one addition."""
    wide = widened(x)
    scale, bias, mean, variance = (as_dtype(v, dtype_of(wide)) for v in (scale, bias, mean, variance))
    factor = div(scale, sqrt(add(variance, epsilon)))
    offset = sub(bias, mul(mean, factor))
    result = add(mul(wide, _per_channel(factor, x)), _per_channel(offset, x))
    return as_dtype(result, dtype_of(x))


@op
def instance_norm(x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    """Each channel of each sample standardised, times `scale`, plus `bias` (Ulyanov et al., 2016)."""
    normal = standardized(widened(x), tuple(range(2, len(shape_of(x)))), epsilon)
    result = add(mul(normal, _per_channel(widened(scale), x)), _per_channel(widened(bias), x))
    return as_dtype(result, dtype_of(x))


instance_norm.onnx("InstanceNormalization", since=1, epsilon="epsilon")


@op
def group_norm(x: Value, scale: Value, bias: Value, *, groups: int, epsilon: float = 1e-5) -> Value:
    """Groups of channels standardised together, times `scale`, plus `bias` (by channel; Wu & He, 2018)."""
    n, c, *space = shape_of(x)
    if groups < 1 or c % groups != 0:
        raise ValueError(f"{c} channels do not make {groups} groups")
    apart = reshape(widened(x), shape=(n, sym(groups), c // groups * product(space)))
    normal = reshape(standardized(apart, (2,), epsilon), shape=(n, c, *space))
    result = add(mul(normal, _per_channel(widened(scale), x)), _per_channel(widened(bias), x))
    return as_dtype(result, dtype_of(x))


@op
def lp_norm(x: Value, *, axis: int = -1, p: int = 2) -> Value:
    """x divided by its l1 or l2 norm along `axis`; zeros stay zeros."""
    if p not in (1, 2):
        raise ValueError(f"p must be 1 or 2, not {p}")
    wide = widened(x)
    size = (reduce_l1 if p == 1 else reduce_l2)(wide, axes=(axis,))
    smallest = 2.0**-126  # the least normal float32: zeros over it are zeros, everything else is larger
    return as_dtype(div(wide, max_(size, smallest)), dtype_of(x))


lp_norm.onnx("LpNormalization", since=1, axis="axis", p="p")


@op
def local_response_norm(
    x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Value:
    """x / (bias + alpha / size * sum of squares over `size` near channels)^beta (Krizhevsky et al., 2012)."""
    n, c, *space = shape_of(x)
    wide = widened(x)
    flat = reshape(mul(wide, wide), shape=(n, sym(1), c, product(space)))
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    if c.is_const:  # no channel is farther than the last is from the first
        before, after = min(before, max(c.value - 1, 0)), min(after, max(c.value - 1, 0))
    near = sum_pool(flat, kernel=(before + 1 + after, 1), pads_begin=(before, 0), pads_end=(after, 0))
    power = reshape(near, shape=(n, c, *space))
    return as_dtype(div(wide, pow_(add(mul(power, alpha / size), bias), beta)), dtype_of(x))


local_response_norm.onnx("LRN", since=1, size="size", alpha="alpha", beta="beta", bias="bias")


@op
def mean_variance_norm(x: Value, *, axes: Sequence[int] = (0, 2, 3), epsilon: float = 1e-9) -> Value:
    """(x - mean) / (standard deviation + epsilon) over `axes`."""
    wide = widened(x)
    along = checked_axes(axes, len(shape_of(x)))
    centred = sub(wide, reduce_mean(wide, axes=along))
    deviation = sqrt(reduce_mean(mul(centred, centred), axes=along))
    return as_dtype(div(centred, add(deviation, epsilon)), dtype_of(x))


mean_variance_norm.onnx("MeanVarianceNormalization", since=9, axes="axes")
