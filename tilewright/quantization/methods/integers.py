"""Integers for floats: parameters, their checks, and arrays rounded to them.

A quantised number q stands for `(q - zero_point) * scale`; rounding is to the nearest, halves to even, and what lies
outside of the type is clipped, as QuantizeLinear of ONNX defines it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.runtime.errors import InputError

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Scales below are denormal, and count as zero in compiled models."""


@dataclass(frozen=True)
class IntegerType:
    """A type of integers by its bits: the limits `low` and `high` of what is stored."""

    name: str
    low: int
    high: int

    @property
    def steps(self) -> int:
        return self.high - self.low


TYPES = {
    t.name: t
    for t in (
        IntegerType("uint8", 0, 255),
        IntegerType("int8", -128, 127),
        IntegerType("uint4", 0, 15),
        IntegerType("int4", -8, 7),
    )
}


@dataclass(frozen=True)
class QParameters:
    """Parameters of one tensor or of each of its channels: float32 scales, integers as zero points."""

    scale: np.ndarray
    zero_point: np.ndarray
    type: IntegerType

    def __post_init__(self) -> None:
        check_parameters(self.scale, self.zero_point, self.type)

    def shaped(self, rank: int, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point that broadcast against a tensor whose channels lie along `axis`."""
        if axis is None or self.scale.ndim == 0:
            return self.scale, self.zero_point
        shape = [1] * rank
        shape[axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)


def check_parameters(
    scale: np.ndarray,
    zero_point: np.ndarray,
    kind: IntegerType,
    *,
    channels: int | None = None,
    where: str | None = None,
) -> None:
    """InputError for scales that are zero, negative, NaN, infinite or not as many as the channels, and for zero
    points out of the type's range or of another shape."""
    scale, zero_point = np.asarray(scale), np.asarray(zero_point)
    hint = "a scale is a positive, normal float32 number; calibrate again, or leave the layer in float32"
    if scale.ndim and channels is not None and scale.size not in (1, channels):
        raise InputError(
            f"{scale.size} scales for {channels} channels", where=where, hint="give one, or one each"
        )
    if not scale.size:
        raise InputError("there is no scale", where=where, hint="give one, or one for each channel")
    for wrong, word in (
        (np.isnan(scale), "NaN"),
        (np.isinf(scale), "infinite"),
        (scale == 0, "zero"),
        (scale < 0, "negative"),
        (scale < SMALLEST_SCALE, "denormal"),
    ):
        if wrong.any():
            which = f" of channel {int(np.argmax(wrong))}" if scale.ndim else ""
            raise InputError(f"the scale{which} is {word}", where=where, hint=hint)
    if zero_point.shape not in ((), scale.shape):
        raise InputError(
            f"zero points of shape {list(zero_point.shape)} for scales of shape {list(scale.shape)}",
            where=where,
            hint="give as many zero points as scales",
        )
    outside = (zero_point < kind.low) | (zero_point > kind.high)
    if outside.any():
        value = zero_point[outside].flat[0] if zero_point.ndim else zero_point
        raise InputError(
            f"the zero point {value} is out of the range of {kind.name}, {kind.low} to {kind.high}",
            where=where,
            hint="the zero point is the integer that stands for 0",
        )


def affine(low: float, high: float, kind: IntegerType) -> QParameters:
    """Parameters of a tensor whose elements lie from `low` to `high`; 0 is always exact, as paddings need it."""
    if not (np.isfinite(low) and np.isfinite(high)) or low > high:
        raise InputError(f"{low} to {high} is no range", hint="ranges are finite; does the model give NaN?")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    scale = np.float32(max((high - low) / kind.steps, SMALLEST_SCALE * 2))
    zero = int(np.clip(np.rint(kind.low - low / float(scale)), kind.low, kind.high))
    return QParameters(np.asarray(scale), np.asarray(zero), kind)


def symmetric(extent: np.ndarray, kind: IntegerType) -> QParameters:
    """Parameters of channels whose elements have these largest magnitudes; channels of zeros get the scale 1."""
    extent = np.asarray(extent, np.float64)
    middle = (kind.low + kind.high + 1) // 2
    scale = np.where(extent > 0, np.maximum(extent / (kind.high - middle), SMALLEST_SCALE * 2), 1.0)
    return QParameters(scale.astype(np.float32), np.full(extent.shape, middle, np.int64), kind)


def quantized(x: np.ndarray, parameters: QParameters, axis: int | None = None) -> np.ndarray:
    """The integers of an array, as int32."""
    scale, zero = parameters.shaped(x.ndim, axis)
    steps = np.rint(x.astype(np.float32) / scale) + zero
    return np.asarray(np.clip(steps, parameters.type.low, parameters.type.high), np.int32)


def rounded(x: np.ndarray, parameters: QParameters, axis: int | None = None) -> np.ndarray:
    """The floats that remain of an array when it is quantised."""
    scale, zero = parameters.shaped(x.ndim, axis)
    low, high = (
        np.asarray(limit - zero, np.float32) for limit in (parameters.type.low, parameters.type.high)
    )
    steps = x.astype(np.float32) / scale
    return np.asarray(np.clip(np.rint(steps, out=steps), low, high, out=steps) * scale, np.float32)
