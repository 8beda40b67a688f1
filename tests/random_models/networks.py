"""Steps of random models that are layers of networks: products, convolutions, pooling, norms, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.random_models.growth import Grown, Growth, Refused

CHANNELS = (1, 2, 3, 4, 8, 16, 24)


def weights(g: Growth, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Of a layer: small, and often exact."""
    if np.prod(shape, dtype=int) > 40_000:
        raise Refused
    return np.asarray(g.elements(shape, dtype, exact=g.chance(0.5)) / 4, dtype)


def factor(g: Growth, shape: tuple[int, ...], dtype: str) -> Grown | np.ndarray:
    """An operand of a product: a tensor of the model, an input of its own, or a constant."""
    found = [v for v in g.values if v.dtype == dtype and v.shape == shape]
    return g.random.choice(found) if found and g.chance(0.5) else weights(g, shape, dtype)


def matmul(g: Growth) -> None:
    x = g.float(1, 4)
    depth, width = x.shape[-1], g.random.choice((1, 1, 3, 8, 16, 33, 80))
    batch = g.part_of(x.shape[:-2]) if x.rank > 2 and g.chance(0.5) else ()
    shape = (depth,) if g.chance(0.15) else (*batch, depth, width)
    if g.chance(0.25) and x.rank > 1:
        (y,) = g.emit("Transpose", x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2], exact=True)
        g.emit("MatMul", *g.random.sample([x, y], 2), exact=True)
    elif g.chance(0.2) and x.rank > 1:
        g.emit("MatMul", factor(g, (width, x.shape[-2]), x.dtype), x, exact=True)
    else:
        g.emit("MatMul", x, factor(g, shape, x.dtype), exact=True)


def gemm(g: Growth) -> None:
    x = g.pick(lambda v: v.rank == 2 and v.dtype in ("float32", "float64"))
    a, b = g.random.randint(0, 1), g.random.randint(0, 1)
    rows, depth = x.shape[::-1] if a else x.shape
    width = g.random.choice((1, 2, 5, 16, 24))
    w = factor(g, (width, depth) if b else (depth, width), x.dtype)
    bias = weights(g, g.part_of((rows, width)), x.dtype) if g.chance(0.6) else None
    attrs: dict[str, Any] = {"alpha": 0.5} if g.chance(0.3) else {}
    attrs |= {"beta": 2.0} if g.chance(0.3) else {}
    g.emit("Gemm", x, w, bias, transA=a, transB=b, exact=True, **attrs)


def einsum(g: Growth) -> None:
    x = g.float(2, 3)
    if not x.array.size:
        raise Refused  # ONNX Runtime divides by zero, which ends the process
    n = g.random.choice((1, 2, 5))
    if x.rank == 2:
        i, j = x.shape
        choices = {
            "ij,jk->ik": (j, n),
            "ij,kj->ki": (n, j),
            "ij,ij->i": (i, j),
            "ij,j->": (j,),
            "ij,k->kji": (n,),
        }
    else:
        b, i, j = x.shape
        choices = {
            "bij,bjk->bik": (b, j, n),
            "bij,bkj->ikb": (b, n, j),
            "bij,bij->b": (b, i, j),
            "bij,jk->kbi": (j, n),
        }
    equation = g.random.choice(list(choices))
    g.emit("Einsum", x, factor(g, choices[equation], x.dtype), equation=equation, exact=True)


def image(g: Growth, least: int = 3, most: int = 4) -> Grown:
    """A tensor of floats with a batch and channels: one that is there, or another one reshaped, or a new input."""
    if g.chance(0.35):
        space = tuple(g.random.choice((1, 2, 3, 5, 6, 8)) for _ in range(g.random.randint(least, most) - 2))
        shape = (g.random.choice((1, 1, 2)), g.random.choice(CHANNELS), *space)
        array = g.elements(shape, "float32", exact=g.chance(0.5))
        return g.emit("Identity", array, exact=True)[0]
    return g.pick(lambda v: v.dtype == "float32" and least <= v.rank <= most)


def window(g: Growth, x: Grown) -> dict[str, Any]:
    """Kernel, strides, dilations and padding for the axes of an image."""
    space = x.shape[2:]
    kernel = [g.random.choice((1, 1, 2, 3, 3, 5)) for _ in space]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.5):
        attrs["strides"] = [g.random.choice((1, 1, 2, 3)) for _ in space]
    if g.chance(0.25):
        attrs["dilations"] = [g.random.choice((1, 2)) for _ in space]
    pads = [0] * (2 * len(space))
    how = g.random.choice(("none", "same", "any", "any"))
    if how == "same":
        attrs["auto_pad"] = g.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif how == "any":
        attrs["pads"] = pads = [g.random.randint(0, max(0, k // 2)) for k in (*kernel, *kernel)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.get("dilations", [1] * len(space)), strict=True)]
    g.least_size = max(1, g.least_size, *reach)
    if attrs.get("auto_pad", "").startswith("SAME"):
        if any(r < s for r, s in zip(reach, attrs.get("strides", reach), strict=True)):
            raise Refused  # the padding would be negative, of which each implementation makes something else
    elif any(n + a + b < r for n, a, b, r in zip(space, pads, pads[len(space) :], reach, strict=False)):
        raise Refused  # ONNX Runtime has sizes of its own for windows that do not fit
    return attrs


def convolution(g: Growth) -> None:
    x = image(g)
    channels = x.shape[1]
    groups = (
        g.random.choice([d for d in range(1, channels + 1) if channels % d == 0] or [1])
        if g.chance(0.5)
        else 1
    )
    filters = groups * g.random.choice((1, 1, 2, 4, 8))
    attrs = window(g, x)
    w = weights(g, (filters, channels // groups, *attrs["kernel_shape"]), x.dtype)
    bias = weights(g, (filters,), x.dtype) if g.chance(0.5) else None
    (y,) = g.emit("Conv", x, w, bias, group=groups, exact=True, **attrs)
    if g.chance(0.3):
        g.emit("Relu", y, exact=True)


def residual_block(g: Growth) -> None:
    """Convolutions of one size with elementwise work between them, as networks have many: whole groups of nodes."""
    if g.size == "large" and g.chance(0.7):
        shape = (1, g.random.choice((8, 16, 32, 48)), *(g.random.choice((6, 7, 9, 14, 20)),) * 2)
        (x,) = g.emit("Identity", g.elements(shape), exact=True)
    else:
        x = image(g, 4)
    channels = x.shape[1]
    if not channels:
        raise Refused
    y = x
    for _ in range(g.random.randint(1, 3)):
        groups, kernel = g.random.choice(((1, 1), (1, 3), (channels, 3), (1, 3)))
        attrs = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups}
        w = weights(g, (channels, channels // groups, kernel, kernel), x.dtype) / np.float32(kernel)
        (y,) = g.emit("Conv", y, w, weights(g, (channels,), x.dtype), exact=True, **attrs)
        y = g.emit(g.random.choice(("Relu", "Sigmoid", "HardSwish", "Identity")), y, exact=True)[0]
        if g.chance(0.3):
            (y,) = g.emit("Add", y, x, exact=True)
    if g.chance(0.3):
        g.emit("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], exact=True)
    elif g.chance(0.3):
        g.emit("GlobalAveragePool", y)


def transposed_convolution(g: Growth) -> None:
    x = image(g)
    channels = x.shape[1]
    groups = g.random.choice([d for d in (1, 1, 2, channels) if d and channels % d == 0])
    attrs = window(g, x)
    if attrs.pop("auto_pad", None):
        attrs.pop("dilations", None)
    w = weights(g, (channels, g.random.choice((1, 2, 4)), *attrs["kernel_shape"]), x.dtype)
    bias = weights(g, (w.shape[1] * groups,), x.dtype) if g.chance(0.5) else None
    g.emit("ConvTranspose", x, w, bias, group=groups, exact=True, **attrs)


def pooling(g: Growth) -> None:
    x = image(g)
    attrs = window(g, x)
    g.least_size = max(1, g.least_size)
    if g.chance(0.3) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if g.chance(0.5):
        g.emit("MaxPool", x, exact=True, **attrs)
    else:
        if g.opset < 19:
            attrs.pop("dilations", None)
        g.emit("AveragePool", x, count_include_pad=g.random.randint(0, 1), **attrs)


def global_pooling(g: Growth) -> None:
    g.least_size = max(1, g.least_size)
    g.emit(g.random.choice(("GlobalAveragePool", "GlobalMaxPool")), image(g))


def batch_norm(g: Growth) -> None:
    x = image(g)
    channels = (x.shape[1],)
    scale, bias, mean = (weights(g, channels, x.dtype) for _ in range(3))
    variance = (np.abs(weights(g, channels, x.dtype)) + 0.5).astype(x.dtype)
    g.emit("BatchNormalization", x, scale, bias, mean, variance)


def norm(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.rank >= 2 and 0 not in v.shape)
    if g.chance(0.6) or x.rank < 3:
        axis = g.random.randrange(1, x.rank)
        shape = x.shape[axis:]
        scale = weights(g, shape, x.dtype)
        bias = weights(g, shape, x.dtype) if g.chance(0.7) else None
        g.emit("LayerNormalization", x, scale, bias, axis=axis, epsilon=1e-3)
    else:
        shape = (x.shape[1],)
        g.emit(
            "InstanceNormalization", x, weights(g, shape, x.dtype), weights(g, shape, x.dtype), epsilon=1e-3
        )


def resize(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and 3 <= v.rank <= 4 and 0 not in v.shape)
    factors = [1.0, 1.0, *(g.random.choice((0.5, 1.0, 2.0, 2.0, 3.0, 1.5)) for _ in x.shape[2:])]
    # ONNX Runtime takes the whole size for corners, where the reference takes the size times the scale.
    by_sizes = g.chance(0.5)
    coordinates = ("half_pixel", "asymmetric", "align_corners" if by_sizes else "asymmetric")
    attrs = {
        "mode": g.random.choice(("nearest", "nearest", "linear", "cubic")),
        "coordinate_transformation_mode": g.random.choice(coordinates),
        "nearest_mode": g.random.choice(("floor", "round_prefer_floor", "ceil")),
    }
    if by_sizes:
        sizes = np.array([max(1, int(d * f)) for d, f in zip(x.shape, factors, strict=True)], np.int64)
        g.emit("Resize", x, None, None, sizes, **attrs)
    else:
        g.emit("Resize", x, None, np.array(factors, np.float32), **attrs)


def attention(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.rank in (3, 4) and 0 not in v.shape)
    width = g.random.choice((1, 4, 8, 16))
    q, k, v = (g.emit("MatMul", x, weights(g, (x.shape[-1], width), x.dtype))[0] for _ in range(3))
    (transposed,) = g.emit("Transpose", k, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])
    (scores,) = g.emit("MatMul", q, transposed)
    if g.chance(0.5):
        (scores,) = g.emit("Mul", scores, np.array(0.5, np.float32))
    if g.chance(0.4):
        (scores,) = g.emit("Add", scores, g.like(scores, most=0))
    (shares,) = g.emit("Softmax", scores, axis=-1)
    g.emit("MatMul", shares, v)


def recurrent(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.rank == 3 and 0 not in v.shape)
    op, gates = g.random.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    hidden = g.random.choice((1, 2, 5, 8))
    direction = g.random.choice(("forward", "reverse", "bidirectional"))
    count = 2 if direction == "bidirectional" else 1
    w = weights(g, (count, gates * hidden, x.shape[-1]), x.dtype)
    r = weights(g, (count, gates * hidden, hidden), x.dtype)
    b = weights(g, (count, 2 * gates * hidden), x.dtype) if g.chance(0.7) else None
    attrs: dict[str, Any] = {"linear_before_reset": g.random.randint(0, 1)} if op == "GRU" else {}
    outputs = 3 if op == "LSTM" else 2
    g.least_size = 1  # ONNX Runtime ends the process for an empty batch
    g.emit(op, x, w, r, b, outputs=outputs, hidden_size=hidden, direction=direction, **attrs)


def quantised(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.exact and 0 not in v.shape)
    dtype = g.random.choice((np.uint8, np.int8))
    scale, zero = np.array(g.random.choice((0.25, 0.5)), np.float32), np.array(g.random.randint(0, 5), dtype)
    (q,) = g.emit("QuantizeLinear", x, scale, zero, decides=True)
    if g.chance(0.7):
        g.emit("DequantizeLinear", q, scale, zero, exact=True)


def integer_product(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype in ("uint8", "int8") and v.rank >= 2)
    w = g.elements((x.shape[-1], g.random.choice((1, 4, 16))), g.random.choice(("int8", "uint8")))
    zero = np.array(g.random.randint(0, 3), x.dtype) if g.chance(0.5) else None
    g.emit("MatMulInteger", x, w, zero, exact=True)


NETWORKS: dict[str, tuple[Callable[[Growth], object], float]] = {
    "matmul": (matmul, 1.5), "gemm": (gemm, 0.7), "einsum": (einsum, 0.5), "convolution": (convolution, 1.5),
    "transposed convolution": (transposed_convolution, 0.7), "pooling": (pooling, 0.8),
    "residual block": (residual_block, 0.6),
    "global pooling": (global_pooling, 0.3), "batch norm": (batch_norm, 0.4), "norm": (norm, 0.6),
    "resize": (resize, 0.5), "attention": (attention, 0.4), "recurrent": (recurrent, 0.4),
    "quantised": (quantised, 0.4), "integer product": (integer_product, 0.3),
}  # fmt: skip
