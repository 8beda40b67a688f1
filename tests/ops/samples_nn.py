"""Samples of contractions, pooling, indexing, activations, norms and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import erf
from typing import Any

import numpy as np

from tests.ops.sampling import FLOATS, Sample, normal, onnx_reference, sample, wide
from tilewright.ir import dtype as dt


def contractions() -> Iterator[Sample]:
    pairs = (
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 0), (0, 3)),
        ((0, 4), (4, 2)),
    )
    for dtype in (*FLOATS, np.dtype(np.int32), np.dtype(np.int64)):
        for left, right in pairs:
            a, b = normal(left, dtype), normal(right, dtype, 1)
            yield sample("matmul", [a, b], lambda a=a, b=b: wide(a) @ wide(b), loose=4)
    for left, right in pairs:
        for one, other in ((np.uint8, np.int8), (np.int16, np.uint8)):
            a, b = normal(left, one), normal(right, other, 1)
            wide_product = partial(lambda a, b: a.astype(np.int32) @ b.astype(np.int32), a, b)
            yield sample("matmul_widening", [a, b], wide_product, sums=dt.i32)
        a, b = (normal(shape, dt.bf16.storage, k) for k, shape in enumerate((left, right)))
        yield sample("matmul_widening", [a, b], lambda a=a, b=b: wide(a) @ wide(b), sums=dt.f32)
    a, b = (normal(shape, dt.bf16.storage, k) for k, shape in enumerate(((2, 3, 4), (2, 5, 4))))
    yield sample(
        "matmul_widening", [a, b], lambda a=a, b=b: wide(a) @ wide(b).swapaxes(1, 2), sums=dt.f32, transpose_b=True
    )
    a, b = normal((2, 4, 3)), normal((2, 5, 4))
    yield sample(
        "matmul", [a, b], lambda: wide(a).swapaxes(1, 2) @ wide(b).swapaxes(1, 2),
        transpose_a=True, transpose_b=True, loose=4,
    )  # fmt: skip
    for spatial, kernel, groups in (
        ((9,), (3,), 1),
        ((7, 8), (3, 2), 1),
        ((6, 5), (1, 1), 2),
        ((4, 5, 6), (2, 3, 1), 3),
    ):
        n = len(spatial)
        x, w = normal((2, 6, *spatial)), normal((12, 6 // groups, *kernel), seed=1)
        for strides, begin, end, dilations in (
            ((), (), (), ()),
            ((2,) * n, (1,) * n, (0,) * n, (1,) * n),
            ((1,) * n, (2,) * n, (1,) * n, (2,) * n),
        ):
            given = {
                "strides": strides,
                "pads_begin": begin,
                "pads_end": end,
                "dilations": dilations,
                "groups": groups,
            }
            yield sample("conv", [x, w], lambda x=x, w=w, g=given: convolution(x, w, **g), loose=4, **given)
            flipped = normal((6, 12 // groups, *kernel), seed=2)
            attrs = {
                "group": groups,
                "strides": strides or (1,) * n,
                "pads": (*(begin or (0,) * n), *(end or (0,) * n)),
            }
            attrs["dilations"] = dilations or (1,) * n
            yield sample(
                "conv_transpose", [x, flipped],
                lambda x=x, w=flipped, at=attrs: transposed_convolution(x, w, **at), loose=4, **given,
            )  # fmt: skip
    for x, w in ((normal(a), normal(b)) for a, b in (((2, 4, 9), (0, 1, 3)), ((2, 0, 9), (4, 0, 3)))):
        yield sample("conv", [x, w], lambda x=x, w=w: convolution(x, w, groups=4), note="of none", groups=4)
    none = [normal((2, 4, 9)), normal((4, 0, 3))]
    yield sample("conv_transpose", none, lambda: np.zeros((2, 0, 11)), note="of none", groups=2)
    half = normal((1, 3, 5, 5), np.float16), normal((2, 3, 3, 3), np.float16)
    yield sample("conv", half, lambda: convolution(*half), loose=2)


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    strides: Any = (),
    pads_begin: Any = (),
    pads_end: Any = (),
    dilations: Any = (),
    groups: int = 1,
) -> np.ndarray:
    """Convolution in float64, one kernel position after the other."""
    n = x.ndim - 2
    strides, dilations = strides or (1,) * n, dilations or (1,) * n
    padding = [(0, 0), (0, 0), *zip(pads_begin or (0,) * n, pads_end or (0,) * n, strict=True)]
    padded = np.pad(wide(x), padding)
    kernel = w.shape[2:]
    sizes = [
        (p - d * (k - 1) - 1) // s + 1
        for p, d, k, s in zip(padded.shape[2:], dilations, kernel, strides, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    c, o = x.shape[1] // groups, w.shape[0] // groups
    for position in np.ndindex(*kernel):
        window = tuple(
            slice(k * d, k * d + (m - 1) * s + 1, s)
            for k, d, m, s in zip(position, dilations, sizes, strides, strict=True)
        )
        for g in range(groups):
            part = padded[(slice(None), slice(g * c, g * c + c), *window)]
            filters = wide(w)[(slice(g * o, g * o + o), slice(None), *position)]
            out[:, g * o : g * o + o] += np.einsum("nc...,oc->no...", part, filters)
    return out


def transposed_convolution(
    x: np.ndarray, w: np.ndarray, strides: Any, pads: Any, dilations: Any, group: int
) -> np.ndarray:
    """Every input element spreads its filter over the result, in float64."""
    n = x.ndim - 2
    kernel, o, c = w.shape[2:], w.shape[1], x.shape[1] // group
    full = [
        (d - 1) * s + r * (k - 1) + 1
        for d, s, r, k in zip(x.shape[2:], strides, dilations, kernel, strict=True)
    ]
    out = np.zeros((x.shape[0], o * group, *full))
    for position in np.ndindex(*kernel):
        window = tuple(
            slice(k * r, k * r + (d - 1) * s + 1, s)
            for k, r, d, s in zip(position, dilations, x.shape[2:], strides, strict=True)
        )
        for g in range(group):
            part, filters = (
                wide(x)[:, g * c : g * c + c],
                wide(w)[(slice(g * c, g * c + c), slice(None), *position)],
            )
            out[(slice(None), slice(g * o, g * o + o), *window)] += np.einsum(
                "nc...,co->no...", part, filters
            )
    cut = tuple(slice(b, m - e) for b, e, m in zip(pads[:n], pads[n:], full, strict=True))
    return out[(slice(None), slice(None), *cut)]


def grouped() -> Iterator[Sample]:
    """Groups as an axis: the convolution is that of all channels in a row."""
    for spatial, kernel in (((9,), (3,)), ((7, 8), (3, 2)), ((3, 4, 5), (2, 1, 3))):
        n = len(spatial)
        x, w = normal((2, 3, 4, *spatial)), normal((3, 5, 4, *kernel), seed=1)
        wide_x, wide_w = x.reshape(2, 12, *spatial), w.reshape(15, 4, *kernel)
        for window in (
            {},
            {"strides": (2,) * n, "pads_begin": (1,) * n, "pads_end": (0,) * n, "dilations": (1,) * n},
        ):
            y = convolution(wide_x, wide_w, groups=3, **window)
            y = y.reshape(2, 3, 5, *y.shape[2:])
            yield sample("conv_grouped", [x, w], lambda y=y: y, loose=4, **window)
    x, w = normal((2, 3, 4, 7, 6)), normal((3, 5, 4, 3, 2), seed=1)
    windows = convolution(x.reshape(2, 12, 7, 6), w.reshape(15, 4, 3, 2), groups=3, dilations=(2, 1))
    within = np.arange(3)[:, None] * 6 + np.arange(5)  # of the positions, those that lie within a line
    flat = [
        np.einsum(
            "ngcp,goc->ngop", x.reshape(2, 3, 4, 42)[..., a : a + 17], w[:, :, :, i, j].astype(np.float64)
        )
        for i, j in np.ndindex(3, 2)
        for a in (12 * i + j,)
    ]
    assert np.allclose(sum(flat)[..., within], windows.reshape(2, 3, 5, 3, 5), atol=1e-4)
    sizes = {"pitches": (12, 1), "count": 17}
    yield sample("conv_flat", [x.reshape(2, 3, 4, 42), w], lambda: sum(flat), loose=4, **sizes)


def blocked() -> Iterator[Sample]:
    for channels in (8, 6, 1):
        x = normal((2, channels, 5, 4))
        yield sample("block_channels", [x], lambda x=x: block(x, 4), block=4)
        yield sample("unblock_channels", [block(x, 4)], lambda x=x: x, channels=channels)
        w = normal((channels, 1, 3, 2), seed=1)
        window = {"strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 1), "dilations": (1, 1)}
        yield sample(
            "depthwise_blocked", [block(x, 4), w],
            lambda x=x, w=w, c=channels, a=window: block(convolution(x, w, groups=c, **a), 4),
            loose=4, **window,
        )  # fmt: skip
        filters = normal((7, channels, 3, 2), seed=2)
        for is_blocked in (True, False):
            yield sample(
                "conv_blocked", [block(x, 4) if is_blocked else x, filters],
                lambda x=x, w=filters, a=window: block(convolution(x, w, **a), 4),
                block=4, loose=4, **window,
            )  # fmt: skip
        pool = {"kernel": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 1)}
        ref = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
        yield sample("max_pool_blocked", [block(x, 4)], lambda x=x, r=ref: _max_of_blocks(x, r), **pool)
        yield sample("sum_pool_blocked", [block(x, 4)], lambda x=x: block(_sum_pool(x), 4), **pool)
    x, w = normal((1, 8, 4)), normal((8, 4, 3), seed=1)
    yield sample(
        "conv_blocked", [block(x, 4), w], lambda: block(convolution(x, w, groups=2), 4),
        groups=2, block=4, loose=4,
    )  # fmt: skip


def block(x: np.ndarray, size: int) -> np.ndarray:
    """[n, c, *space] -> [n, ceil(c / size), *space, size], filled up with zeros."""
    missing = -x.shape[1] % size
    full = np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])
    return np.moveaxis(full.reshape(x.shape[0], -1, size, *x.shape[2:]), 2, -1)


def _max_of_blocks(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    missing = -x.shape[1] % 4
    return block(onnx_reference("MaxPool", [np.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)])], **attrs), 4)


def _sum_pool(x: np.ndarray) -> np.ndarray:
    ones = np.ones((x.shape[1], 1, 3, 2))
    return convolution(x, ones, (2, 1), (1, 0), (1, 1), groups=x.shape[1])


def pools() -> Iterator[Sample]:
    x = normal((2, 3, 7, 8))
    ours = {"kernel": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 1)}
    theirs = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
    for dtype in (np.float32, np.float64, np.float16, np.int8, np.uint8):
        v = normal((2, 3, 7, 8), dtype)
        yield sample("max_pool", [v], lambda v=v: onnx_reference("MaxPool", [v], **theirs), **ours)
    line = normal((1, 2, 10))
    yield sample(
        "max_pool", [line], lambda: onnx_reference("MaxPool", [line], kernel_shape=(3,), dilations=(2,)),
        kernel=(3,), dilations=(2,), note="dilated",
    )  # fmt: skip
    yield sample("sum_pool", [x], lambda: _sum_pool(x), **ours, loose=4)
    for include in (False, True):
        yield sample(
            "average_pool", [x],
            lambda i=include: onnx_reference("AveragePool", [x], count_include_pad=int(i), **theirs),
            **ours, include_pad=include, loose=4, note=str(include),
        )  # fmt: skip
    yield sample(
        "average_pool", [x],
        lambda: _means_of_cells(wide(x), 3),
        kernel=(3, 3), strides=(3, 3), overhang=(2, 1), loose=4, note="overhang",
    )  # fmt: skip
    yield sample("lp_pool", [x], lambda: np.sqrt(_sum_pool(wide(x) ** 2)), **ours, loose=4)
    pooled, where = onnx_reference("MaxPool", [x], outputs=2, **theirs)
    yield sample("max_pool_positions", [x, pooled], lambda: where, **ours)


def _means_of_cells(x: np.ndarray, size: int) -> np.ndarray:
    """The means of the cells of a grid over the last two axes; the last cells may be smaller."""
    rows, columns = (range(0, d, size) for d in x.shape[2:])
    means = [[x[:, :, i : i + size, j : j + size].mean((2, 3)) for j in columns] for i in rows]
    return np.moveaxis(np.array(means), (0, 1), (2, 3))


def indexing() -> Iterator[Sample]:
    x = normal((3, 4, 5))
    rows = np.array([[2, 0], [-1, 1]])
    for axis in (0, 1, -1):
        yield sample("gather", [x, rows], lambda a=axis: np.take(x, rows, a), axis=axis, note=str(axis))
    yield sample("gather", [x, np.array(-1, np.int32)], lambda: x[:, -1], axis=1)
    yield sample("gather", [x, np.zeros((0, 2), np.int64)], lambda: x[np.zeros((0, 2), int)], axis=0)
    yield sample("within", [rows], lambda: rows, low=-1, high=2, what="beyond")
    picks = np.array([[[3, -1, 0, 1, 2]], [[0, 0, 0, 0, -4]]])
    yield sample("gather_elements", [x, picks], lambda: np.take_along_axis(x[:2], picks, 1), axis=1)
    vectors = np.array([[0, 1], [2, -1]])
    yield sample("gather_nd", [x, vectors], lambda: x[[0, 2], [1, -1]])
    batched = np.array([[1], [0], [-1]])
    yield sample("gather_nd", [x, batched], lambda: np.stack([x[0, 1], x[1, 0], x[2, -1]]), batch_dims=1)
    codes, values = np.array([0, 2, -1, 7]), np.array([5, 9], np.float32)
    yield sample(
        "one_hot", [codes, values], lambda: onnx_reference("OneHot", [codes, np.array(3), values]), depth=3
    )
    yield sample(
        "one_hot",
        [codes, values],
        lambda: onnx_reference("OneHot", [codes, np.array(3), values], axis=0),
        depth=3,
        axis=0,
    )
    updates = normal((2, 1, 5), seed=3)
    for reduction in ("none", "add", "mul", "min", "max"):
        at = np.array([[[1, -1, 0, 1, 2]], [[0, 0, 0, 0, -4]]])
        yield sample(
            "scatter_elements", [x, at, updates], lambda at=at, r=reduction: _scattered(x, at, updates, 1, r),
            axis=1, reduction=reduction, note=reduction,
        )  # fmt: skip
        slices = normal((3, 5), seed=4)
        points = np.array([[0, 1], [2, -1], [0, 1]])
        yield sample(
            "scatter_nd", [x, points, slices],
            lambda r=reduction, p=points, s=slices: onnx_reference("ScatterND", [x, p, s], reduction=r),
            reduction=reduction, note=reduction,
        )  # fmt: skip
    outside = np.array([[0, 0], [-1, 1], [1, 9]])  # the last two are left out
    yield sample(
        "scatter_nd", [x, outside, slices],
        lambda: onnx_reference("ScatterND", [x, outside[:1], slices[:1]], reduction="add"),
        reduction="add", drop=True, note="drop",
    )  # fmt: skip


_COMBINE = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def _scattered(x: np.ndarray, at: np.ndarray, updates: np.ndarray, axis: int, reduction: str) -> np.ndarray:
    out = x.copy()
    for position in np.ndindex(*at.shape):
        target = (*position[:axis], at[position], *position[axis + 1 :])
        out[target] = _COMBINE[reduction](out[target], updates[position])
    return out


def activations() -> Iterator[Sample]:
    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2))) / 2

    def gelu_tanh(x: np.ndarray) -> np.ndarray:
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2

    def sig(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    cases: list[tuple[str, Callable[[Any], Any], dict[str, Any]]] = [
        ("relu", lambda x: x.clip(0), {}),
        ("leaky_relu", lambda x: np.where(x < 0, 0.2 * x, x), {"alpha": 0.2}),
        ("elu", lambda x: np.where(x < 0, 1.5 * np.expm1(x), x), {"alpha": 1.5}),
        ("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), {}),
        ("celu", lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2)), {"alpha": 2.0}),
        ("gelu", gelu, {}),
        ("gelu", gelu_tanh, {"approximate": "tanh"}),
        ("silu", lambda x: x * sig(x), {}),
        ("swish", lambda x: x * sig(1.7 * x), {"alpha": 1.7}),
        ("hard_sigmoid", lambda x: np.clip(0.3 * x + 0.4, 0, 1), {"alpha": 0.3, "beta": 0.4}),
        ("hard_swish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), {}),
        ("softplus", lambda x: np.logaddexp(0, x), {}),
        ("softsign", lambda x: x / (1 + np.abs(x)), {}),
        ("mish", lambda x: x * np.tanh(np.logaddexp(0, x)), {}),
        ("thresholded_relu", lambda x: np.where(x > 0.7, x, 0), {"alpha": 0.7}),
        (
            "shrink",
            lambda x: np.where(x < -1, x + 0.5, np.where(x > 1, x - 0.5, 0)),
            {"bias": 0.5, "lambd": 1.0},
        ),
    ]
    for name, fn, attrs in cases:
        for dtype in FLOATS:
            for shape in ((), (0,), (3, 37)):
                x = normal(shape, dtype)
                yield sample(name, [x], lambda fn=fn, x=x: fn(wide(x)), loose=6, **attrs)
    far = np.array([-1e4, -100, -88, 88, 100, 1e4], np.float32)
    yield sample("softplus", [far], lambda: np.logaddexp(0, wide(far)), note="far")
    yield sample(
        "silu", [far], lambda: np.where(far > 0, far, far * np.exp(np.minimum(wide(far), 0))), note="far"
    )
    yield sample("elu", [far], lambda: np.where(far > 0, far, -1), note="far")
    x, slope = normal((2, 3, 4)), normal((3, 1), seed=1)
    yield sample("prelu", [x, slope], lambda: np.where(x < 0, wide(x) * slope, x))
    yield sample("clip", [x, np.float32(-1), np.float32(2)], lambda: x.clip(-1, 2))


def norms() -> Iterator[Sample]:
    for dtype in FLOATS:
        x = normal((3, 4, 6), dtype)
        loose = 8.0
        for axis in (-1, 1, 0):
            yield sample("softmax", [x], lambda x=x, a=axis: _softmax(wide(x), a), axis=axis, loose=loose)
            yield sample(
                "log_softmax", [x], lambda x=x, a=axis: np.log(_softmax(wide(x), a)), axis=axis, loose=loose
            )
        scale, bias = normal((6,), dtype, 1), normal((6,), dtype, 2)
        yield sample(
            "layer_norm",
            [x, scale, bias],
            lambda x=x, s=scale, b=bias: _standard(wide(x), -1) * wide(s) + wide(b),
            loose=loose,
        )
        yield sample(
            "layer_norm",
            [x, scale],
            lambda x=x, s=scale: _standard(wide(x), (1, 2)) * wide(s),
            axis=1,
            loose=loose,
        )
        yield sample(
            "rms_norm",
            [x, scale],
            lambda x=x, s=scale: _rms(wide(x), 1e-3) * wide(s),
            epsilon=1e-3,
            loose=loose,
        )
        for p in (1, 2):
            yield sample(
                "lp_norm",
                [x],
                lambda x=x, p=p: wide(x) / np.linalg.norm(wide(x), p, 1, keepdims=True),
                axis=1,
                p=p,
                loose=loose,
            )
    shifted = normal((2, 64)) + np.float32(1e4)
    yield sample(
        "layer_norm",
        [shifted, np.ones(64, np.float32)],
        lambda: _standard(wide(shifted), -1),
        note="far",
        loose=4000,
    )
    large = np.array([[1e4, 0, -1e4], [-np.inf, 0, 0]], np.float32)
    yield sample("softmax", [large], lambda: np.array([[1, 0, 0], [0, 0.5, 0.5]]), note="far")
    zero = np.zeros((2, 3), np.float32)
    yield sample("lp_norm", [zero], lambda: zero, note="zero")
    x = normal((2, 6, 5, 4))
    channel = [normal((6,), seed=k) for k in (1, 2, 3)]
    variance = np.abs(normal((6,), seed=4)) + 0.1
    wise = [wide(v).reshape(6, 1, 1) for v in (*channel, variance)]
    yield sample(
        "batch_norm", [x, *channel, variance],
        lambda: (wide(x) - wise[2]) / np.sqrt(wise[3] + 1e-5) * wise[0] + wise[1], loose=20,
    )  # fmt: skip
    yield sample(
        "instance_norm", [x, *channel[:2]], lambda: _standard(wide(x), (2, 3)) * wise[0] + wise[1], loose=8
    )
    yield sample(
        "group_norm", [x, *channel[:2]],
        lambda: _standard(wide(x).reshape(2, 3, -1), -1).reshape(x.shape) * wise[0] + wise[1],
        groups=3, loose=8,
    )  # fmt: skip
    for size, before, after in ((3, 1, 1), (2, 0, 1), (5, 2, 2)):
        squares = np.pad(wide(x) ** 2, ((0, 0), (before, after), (0, 0), (0, 0)))
        near = sum(squares[:, k : k + 6] for k in range(size))
        yield sample(
            "local_response_norm", [x], lambda n=near, s=size: wide(x) / (1.5 + 0.3 / s * n) ** 0.6,
            size=size, alpha=0.3, beta=0.6, bias=1.5, loose=8,
        )  # fmt: skip
    yield sample(
        "mean_variance_norm", [x],
        lambda: (wide(x) - wide(x).mean((0, 2, 3), keepdims=True)) / wide(x).std((0, 2, 3), keepdims=True),
        loose=8,
    )  # fmt: skip


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _standard(x: np.ndarray, axes: Any) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def _rms(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def attentions() -> Iterator[Sample]:
    for dtype in FLOATS:
        q, k, v = normal((2, 3, 5, 8), dtype), normal((2, 3, 7, 8), dtype, 1), normal((2, 3, 7, 4), dtype, 2)
        additive, allowed = normal((5, 7), dtype, 3), np.tri(5, 7, 2, dtype=bool)

        def attended(q: Any, k: Any, v: Any, bias: Any, scale: float = 8**-0.5) -> np.ndarray:
            return _softmax(wide(q) @ wide(k).swapaxes(-1, -2) * scale + bias, -1) @ wide(v)

        yield sample("attention", [q, k, v], lambda f=attended, a=(q, k, v): f(*a, 0), loose=20)
        yield sample(
            "attention", [q, k, v], lambda f=attended, a=(q, k, v): f(*a, 0, 0.3), scale=0.3, loose=20
        )
        yield sample(
            "attention",
            [q, k, v, additive],
            lambda f=attended, a=(q, k, v), m=additive: f(*a, wide(m)),
            loose=20,
        )
        hidden = np.where(allowed, 0, -np.inf)
        yield sample(
            "attention", [q, k, v, allowed], lambda f=attended, a=(q, k, v), m=hidden: f(*a, m), loose=20
        )
        yield sample(
            "attention",
            [q, k, v],
            lambda f=attended, a=(q, k, v), m=hidden: f(*a, m),
            causal=True,
            causal_offset=2,
            loose=20,
        )
