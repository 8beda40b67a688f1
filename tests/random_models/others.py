"""Steps of random models that add operators which few models have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.random_models.growth import Growth, Refused
from tests.random_models.networks import image, weights


def activation(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32")
    op = g.random.choice(("PRelu", "Shrink", "ThresholdedRelu", "LeakyRelu"))
    if op == "PRelu":
        g.emit(op, x, weights(g, g.part_of(x.shape), x.dtype), exact=True)
    elif op == "LeakyRelu":
        g.emit(op, x, alpha=g.random.choice((0.0, 0.25, 0.3, 2.0)))
    else:  # they jump where they begin
        g.emit(op, x, decides=True, **({"lambd": 0.5, "bias": 0.25} if op == "Shrink" else {"alpha": 0.5}))


def normalization(g: Growth) -> None:
    x = image(g)
    if 0 in x.shape:
        raise Refused
    op = g.random.choice(("LRN", "LpNormalization", "MeanVarianceNormalization", "GroupNormalization"))
    if op == "LRN":
        g.emit(op, x, size=g.random.choice((1, 3, 5)), alpha=0.1, beta=0.75, bias=1.0)
    elif op == "LpNormalization":
        g.emit(op, x, axis=g.axis(x), p=g.random.randint(1, 2))
    elif op == "GroupNormalization" and g.opset >= 21 and not g.symbolic:  # of a known number of channels
        channels = (x.shape[1],)
        groups = g.random.choice([d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0])
        scale, bias = weights(g, channels, x.dtype), weights(g, channels, x.dtype)
        g.emit(op, x, scale, bias, num_groups=groups, epsilon=1e-2)
    elif op == "MeanVarianceNormalization" and x.rank == 4:
        g.emit(op, x, axes=g.random.choice(([0, 2, 3], [2, 3], [1])))
    else:
        raise Refused


def question(g: Growth) -> None:
    x = g.float()
    if x.dtype != "float32":
        raise Refused
    g.emit(g.random.choice(("IsNaN", "IsInf")), x, exact=True)


def cast_like(g: Growth) -> None:
    x, y = g.pick(lambda v: v.dtype in ("bool", "int32", "int64", "float32")), g.float()
    g.emit("CastLike", x, y, exact=True)


def shift(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "uint8")
    direction = g.random.choice(("LEFT", "RIGHT"))
    g.emit("BitShift", x, g.rng.integers(0, 7, x.shape).astype(np.uint8), direction=direction, exact=True)


def eye(g: Growth) -> None:
    x = g.pick(lambda v: v.rank == 2)
    g.emit("EyeLike", x, k=g.random.randint(-2, 2), dtype=1, exact=True)


def reverse_sequence(g: Growth) -> None:
    x = g.pick(lambda v: v.rank >= 2 and 0 not in v.shape[:2])
    lengths = g.rng.integers(1, x.shape[0] + 1, x.shape[1]).astype(np.int64)
    g.emit("ReverseSequence", x, lengths, time_axis=0, batch_axis=1, exact=True)


def compress(g: Growth) -> None:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    g.least_size = max(g.least_size, x.shape[axis])  # a condition may be shorter than the axis, not longer
    g.emit("Compress", x, np.asarray(g.rng.random(x.shape[axis]) < 0.5), axis=axis, exact=True)


def dynamic_quantization(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.exact and v.array.size > 0)
    q, _, zero = g.emit("DynamicQuantizeLinear", x, outputs=3, decides=True)
    if x.rank >= 2 and x.shape[-1]:
        g.emit("MatMulInteger", q, g.elements((x.shape[-1], 8), "int8"), zero, exact=True)


def quantised_product(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("uint8", "int8") and v.rank >= 2 and 0 not in v.shape)
    w = g.elements((x.shape[-1], g.random.choice((1, 5, 16))), x.dtype)
    one = np.array(0.5, np.float32)
    zero = np.array(g.random.randint(0, 3), x.dtype)
    g.emit("QLinearMatMul", x, one, zero, w, one, zero, np.array(1, np.float32), zero, exact=True)


def integer_convolution(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "uint8" and v.rank == 4 and min(v.shape, default=0) > 0)
    w = g.elements((g.random.choice((1, 4, 16)), x.shape[1], 1, 1), "uint8")
    zero = np.array(g.random.randint(0, 3), np.uint8) if g.chance(0.5) else None
    g.emit("ConvInteger", x, w, zero, exact=True)


def pooled_norm(g: Growth) -> None:
    x = image(g, 4)
    if min(x.shape[2:], default=0) < 2:
        raise Refused
    g.least_size = max(2, g.least_size)
    g.emit("LpPool", x, kernel_shape=[2, 2], p=g.random.randint(1, 2), strides=[g.random.randint(1, 2)] * 2)


def grid(g: Growth) -> None:
    x = image(g, 4)
    if 0 in x.shape:
        raise Refused
    at = np.asarray(g.rng.uniform(-1.2, 1.2, (x.shape[0], 3, 4, 2)), np.float32)
    modes = ("linear", "nearest") if g.opset >= 20 else ("bilinear", "nearest")
    attrs = {"mode": g.random.choice(modes), "padding_mode": g.random.choice(("zeros", "border"))}
    g.emit("GridSample", x, at, align_corners=g.random.randint(0, 1), **attrs)


def float_remainder(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.exact)
    divisor = g.elements(g.part_of(x.shape))
    divisor[divisor == 0] = 1.5
    g.emit("Mod", x, divisor, fmod=1, decides=True)


OTHERS: dict[str, tuple[Callable[[Growth], object], float]] = {
    "activation": (activation, 0.4), "normalization": (normalization, 0.4), "question": (question, 0.1),
    "cast like": (cast_like, 0.2), "shift": (shift, 0.2), "eye": (eye, 0.1),
    "reverse sequence": (reverse_sequence, 0.2),
    "compress": (compress, 0.2), "dynamic quantization": (dynamic_quantization, 0.3),
    "quantised product": (quantised_product, 0.3), "integer convolution": (integer_convolution, 0.2),
    "pooled norm": (pooled_norm, 0.2), "grid": (grid, 0.2), "float remainder": (float_remainder, 0.2),
}  # fmt: skip
