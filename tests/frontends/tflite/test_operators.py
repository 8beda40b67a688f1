"""Operators on floats: each gives what NumPy gives in float64."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.tflite.models import Tensor, check, constant, node_model, run
from tilewright.frontends.tflite import adapters  # noqa: F401
from tilewright.frontends.tflite.registry import ADAPTERS
from tilewright.frontends.tflite.variables import STATE_OPERATORS

RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


X, Y, ROW = normal(2, 3, 4), normal(2, 3, 4), normal(4)
P = np.abs(X) + 0.5
B = X > 0
WIDE = X.astype(np.float64)

UNARY = {
    "NEG": (X, -X), "ABS": (X, np.abs(X)), "EXP": (X, np.exp(X)), "LOG": (P, np.log(P)), "SQRT": (P, np.sqrt(P)),
    "RSQRT": (P, 1 / np.sqrt(P)), "SQUARE": (X, X * X), "SIN": (X, np.sin(X)), "COS": (X, np.cos(X)),
    "FLOOR": (X, np.floor(X)), "CEIL": (X, np.ceil(X)), "ROUND": (X, np.round(X)), "SIGN": (X, np.sign(X)),
    "TANH": (X, np.tanh(X)), "LOGISTIC": (X, sigmoid(X)), "LOGICAL_NOT": (B, ~B),
    "ELU": (X, np.where(X > 0, X, np.exp(X) - 1)), "HARD_SWISH": (X, X * np.clip(X + 3, 0, 6) / 6),
    "RELU": (X, np.maximum(X, 0)), "RELU6": (4 * X, np.clip(4 * X, 0, 6)),
    "RELU_N1_TO_1": (X, np.clip(X, -1, 1)), "RELU_0_TO_1": (X, np.clip(X, 0, 1)), "ZEROS_LIKE": (X, 0 * X),
}  # fmt: skip
BINARY = {
    "ADD": X + ROW, "SUB": X - ROW, "MUL": X * ROW, "DIV": X / ROW, "MAXIMUM": np.maximum(X, ROW),
    "MINIMUM": np.minimum(X, ROW), "SQUARED_DIFFERENCE": (X - ROW) ** 2, "FLOOR_DIV": np.floor(X / ROW),
    "FLOOR_MOD": np.mod(X, ROW), "ATAN2": np.arctan2(X, ROW), "EQUAL": X == ROW, "NOT_EQUAL": X != ROW,
    "LESS": X < ROW, "LESS_EQUAL": X <= ROW, "GREATER": X > ROW, "GREATER_EQUAL": X >= ROW,
}  # fmt: skip
A, C = RNG.integers(-9, 10, (3, 4), np.int32), np.array([[-3], [2], [5]], np.int32)

CASES: dict[str, tuple[str, Sequence[Any], Any, dict[str, Any], Sequence[int]]] = {
    **{name: (name, [x], y, {}, ()) for name, (x, y) in UNARY.items()},
    **{name: (name, [X, ROW], y, {}, ()) for name, y in BINARY.items()},
    "integers divided": ("DIV", [A, C], np.trunc(A / C).astype(np.int32), {}, ()),
    "integers divided, rounded down": ("FLOOR_DIV", [A, C], A // C, {}, ()),
    "integers, what is left": ("FLOOR_MOD", [A, C], np.mod(A, C), {}, ()),
    "powers": ("POW", [P, ROW], P**ROW, {}, ()),
    "bits": ("BITWISE_XOR", [A, C], A ^ C, {}, ()),
    "both": ("LOGICAL_AND", [B, ~B], B & ~B, {}, ()),
    "either": ("LOGICAL_OR", [B, ~B], B | ~B, {}, ()),
    "an activation fused": ("ADD", [X, Y], np.clip(X + Y, 0, 6), {"activation": 3}, ()),
    "another": ("MUL", [X, Y], np.clip(X * Y, -1, 1), {"activation": 2}, ()),
    "and a function": ("SUB", [X, Y], np.tanh(X - Y), {"activation": 4}, ()),
    "sums of several": ("ADD_N", [X, Y, X], X + Y + X, {}, ()),
    "LEAKY_RELU": ("LEAKY_RELU", [X], np.where(X > 0, X, 0.2 * X), {"alpha": 0.2}, ()),
    "PRELU": ("PRELU", [X, ROW], np.where(X > 0, X, ROW * X), {}, (1,)),
    "GELU": (
        "GELU", [X], X * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))), {"approximate": True}, (),
    ),
    "CAST": ("CAST", [X * 3], (X * 3).astype(np.int32), {}, ()),
    "BITCAST": ("BITCAST", [X], X.view(np.int32), {}, ()),
    "DEQUANTIZE of halves": ("DEQUANTIZE", [X.astype(np.float16)], X.astype(np.float16).astype(np.float32), {}, (0,)),
    "SELECT of slices": (
        "SELECT", [np.array([True, False]), X, Y], np.where(np.array([True, False])[:, None, None], X, Y), {}, (),
    ),
    "SELECT_V2": ("SELECT_V2", [B, X, ROW], np.where(B, X, ROW), {}, ()),
    "FAKE_QUANT": (
        "FAKE_QUANT", [X], np.clip(np.round(X / (4 / 255)), -128, 127) * (4 / 255),
        {"min": -128 * 4 / 255, "max": 127 * 4 / 255, "num_bits": 8}, (),
    ),
    # Shapes
    "RESHAPE": ("RESHAPE", [X, ints(4, -1)], X.reshape(4, 6), {}, (1,)),
    "RESHAPE by an option": ("RESHAPE", [X], X.reshape(6, 4), {"new_shape": [6, 4]}, ()),
    "SQUEEZE": ("SQUEEZE", [X[:, :1]], X[:, 0], {"squeeze_dims": [-2]}, ()),
    "SQUEEZE of all": ("SQUEEZE", [X[:1, :1]], X[0, 0], {}, ()),
    "EXPAND_DIMS": ("EXPAND_DIMS", [X, ints(-1)], X[..., None], {}, (1,)),
    "TRANSPOSE": ("TRANSPOSE", [X, ints(2, 0, 1)], X.transpose(2, 0, 1), {}, (1,)),
    "PACK": ("PACK", [X, Y], np.stack([X, Y], 1), {"axis": 1, "values_count": 2}, ()),
    "UNPACK": ("UNPACK", [X], [X[:, k] for k in range(3)], {"axis": -2, "num": 3}, ()),
    "CONCATENATION": ("CONCATENATION", [X, Y], np.concatenate([X, Y], -1), {"axis": -1}, ()),
    "SPLIT": ("SPLIT", [ints(2), X], [X[..., :2], X[..., 2:]], {"num_splits": 2}, (0,)),
    "SPLIT_V": ("SPLIT_V", [X, ints(1, -1), ints(2)], [X[..., :1], X[..., 1:]], {"num_splits": 2}, (1, 2)),
    "SLICE": ("SLICE", [X, ints(0, 1, 1), ints(-1, 2, 2)], X[:, 1:3, 1:3], {}, (1, 2)),
    "STRIDED_SLICE": (
        "STRIDED_SLICE", [X, ints(1, 0, 3), ints(2, -1, -9), ints(1, 2, -1)], X[1, 0:-1:2, 3::-1],
        {"shrink_axis_mask": 1, "end_mask": 4}, (1, 2, 3),
    ),
    "STRIDED_SLICE with dots and a new axis": (
        "STRIDED_SLICE", [X, ints(0, 0, 1), ints(0, 0, 3), ints(1, 1, 1)], X[..., None, 1:3],
        {"ellipsis_mask": 1, "new_axis_mask": 2}, (1, 2, 3),
    ),
    "REVERSE_V2": ("REVERSE_V2", [X, ints(-1)], X[..., ::-1], {}, (1,)),
    "PAD": ("PAD", [X, ints([0, 0], [1, 2], [0, 3])], np.pad(X, ((0, 0), (1, 2), (0, 3))), {}, (1,)),
    "PADV2": (
        "PADV2", [X, ints([0, 0], [1, 2], [0, 3]), np.float32(1.5)],
        np.pad(X, ((0, 0), (1, 2), (0, 3)), constant_values=1.5), {}, (1,),
    ),
    "MIRROR_PAD": (
        "MIRROR_PAD", [X, ints([1, 0], [2, 1], [0, 3])], np.pad(X, ((1, 0), (2, 1), (0, 3)), "reflect"), {}, (1,),
    ),
    "MIRROR_PAD with the border": (
        "MIRROR_PAD", [X, ints([2, 0], [2, 3], [0, 4])], np.pad(X, ((2, 0), (2, 3), (0, 4)), "symmetric"),
        {"mode": 1}, (1,),
    ),
    "TILE": ("TILE", [X, ints(1, 2, 3)], np.tile(X, (1, 2, 3)), {}, (1,)),
    "BROADCAST_TO": ("BROADCAST_TO", [ROW, ints(2, 3, 4)], np.broadcast_to(ROW, (2, 3, 4)), {}, (1,)),
    "BROADCAST_ARGS": ("BROADCAST_ARGS", [ints(3, 1), ints(4)], ints(3, 4), {}, (0, 1)),
    "FILL": ("FILL", [ints(2, 3), np.float32(7)], np.full((2, 3), 7.0), {}, (0,)),
    "RANGE": ("RANGE", [ints(9)[0], ints(0)[0], ints(-2)[0]], np.arange(9, 0, -2, dtype=np.int32), {}, (0, 1, 2)),
    "RANGE of floats": (
        "RANGE", [np.float32(0.5), np.float32(3), np.float32(0.5)], np.arange(0.5, 3, 0.5), {}, (0, 1, 2),
    ),
    "SHAPE": ("SHAPE", [X], ints(2, 3, 4), {"out_type": 2}, ()),
    "RANK": ("RANK", [X], np.array(3, np.int32), {}, ()),
    # Positions
    "GATHER": ("GATHER", [X, ints([2, 0], [1, 1])], X[:, [[2, 0], [1, 1]]], {"axis": 1}, ()),
    "GATHER in step": (
        "GATHER", [X, ints([2, 0, 3], [1, 1, 0])], np.stack([X[k][:, i] for k, i in ((0, [2, 0, 3]), (1, [1, 1, 0]))]),
        {"axis": 2, "batch_dims": 1}, (),
    ),
    "GATHER_ND": ("GATHER_ND", [X, ints([1, 2], [0, 0])], X[[1, 0], [2, 0]], {}, ()),
    "EMBEDDING_LOOKUP": ("EMBEDDING_LOOKUP", [ints(2, 0, 2), Y[0]], Y[0][[2, 0, 2]], {}, (1,)),
    "SCATTER_ND": (
        "SCATTER_ND", [ints([1], [3], [1]), Y[0], ints(5, 4)],
        np.stack([0 * ROW, Y[0, 0] + Y[0, 2], 0 * ROW, Y[0, 1], 0 * ROW]), {}, (2,),
    ),
    "DYNAMIC_UPDATE_SLICE": (
        "DYNAMIC_UPDATE_SLICE", [X, Y[:1, :2], ints(1, 7, 0)], np.concatenate([X[:1], np.stack([
            np.concatenate([X[1, :1], Y[0, :2]])])]), {}, (),
    ),
    "ONE_HOT": (
        "ONE_HOT", [ints(1, -1, 3, 9), np.int32(4), np.float32(5), np.float32(2)],
        np.where(np.arange(4)[:, None] == [1, -1, 3, 9], 5.0, 2.0), {"axis": 0}, (1, 2, 3),
    ),
    "TOPK_V2": (
        "TOPK_V2", [X, np.int32(2)], [-np.sort(-X)[..., :2], np.argsort(-X)[..., :2].astype(np.int32)], {}, (1,),
    ),
    "REVERSE_SEQUENCE": (
        "REVERSE_SEQUENCE", [X, ints(2, 3)], np.stack([X[0][[1, 0, 2]], X[1][::-1]]),
        {"seq_dim": 1, "batch_dim": 0}, (),
    ),
    "ARG_MAX": ("ARG_MAX", [X, ints(1)[0]], X.argmax(1), {"output_type": 4}, (1,)),
    "ARG_MIN": ("ARG_MIN", [X, ints(-1)], X.argmin(-1).astype(np.int32), {"output_type": 2}, (1,)),
    "WHERE of a constant": ("WHERE", [B], np.argwhere(B), {}, (0,)),
    # Reductions and norms
    "SUM": ("SUM", [X, ints(0, -1)], X.sum((0, 2)), {}, (1,)),
    "MEAN": ("MEAN", [X, ints(1)], X.mean(1, keepdims=True), {"keep_dims": True}, (1,)),
    "REDUCE_PROD": ("REDUCE_PROD", [X, ints(1)[0]], X.prod(1), {}, (1,)),
    "REDUCE_MAX": ("REDUCE_MAX", [X, ints(2)], X.max(2), {}, (1,)),
    "REDUCE_MIN": ("REDUCE_MIN", [X, ints(2)], X.min(2), {}, (1,)),
    "REDUCE_ANY": ("REDUCE_ANY", [B, ints(2)], B.any(2), {}, (1,)),
    "REDUCE_ALL": ("REDUCE_ALL", [B, ints(2)], B.all(2), {}, (1,)),
    "SOFTMAX": (
        "SOFTMAX", [X], np.exp(0.5 * X) / np.exp(0.5 * X).sum(-1, keepdims=True), {"beta": 0.5}, (),
    ),
    "LOG_SOFTMAX": ("LOG_SOFTMAX", [X], X - np.log(np.exp(X).sum(-1, keepdims=True)), {}, ()),
    "L2_NORMALIZATION": ("L2_NORMALIZATION", [X], X / np.sqrt((X * X).sum(-1, keepdims=True)), {}, ()),
    "CUMSUM": (
        "CUMSUM", [X, ints(1)[0]], np.cumsum(X[:, ::-1], 1)[:, ::-1] - X, {"exclusive": True, "reverse": True}, (1,),
    ),
    # Products
    "FULLY_CONNECTED": (
        "FULLY_CONNECTED", [X, normal(5, 4), normal(5)], None, {"activation": 1, "keep_num_dims": True}, (1, 2),
    ),
    "FULLY_CONNECTED of rows": ("FULLY_CONNECTED", [X, normal(5, 12), None], None, {}, (1,)),
    "BATCH_MATMUL": ("BATCH_MATMUL", [X, Y], X @ Y.transpose(0, 2, 1), {"adj_y": True}, ()),
    "RNN": ("RNN", [X[0], Y[1], normal(3, 3), normal(3), normal(3, 3)], None, {"activation": 4}, (1, 2, 3)),
}  # fmt: skip


def _wanted(kind: str, arrays: Sequence[Any], options: dict[str, Any]) -> np.ndarray:
    if kind == "RNN":
        x, w, r, b, h = arrays
        return np.tanh(x @ w.T + b + h @ r.T)
    x, w, b = arrays
    y = (x if options.get("keep_num_dims") else x.reshape(-1, w.shape[1])) @ w.T + (0 if b is None else b)
    return np.maximum(y, 0) if options.get("activation") == 1 else y


@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_what_numpy_gives(case: str) -> None:
    kind, arrays, wanted, options, known = CASES[case]
    wanted = _wanted(kind, arrays, options) if wanted is None else wanted
    check(kind, arrays, wanted, options, known)


# Images


def slid(x: np.ndarray, kernel: tuple[int, int], stride: int, dilation: int, same: bool, fill: float) -> np.ndarray:
    """Windows [n, rows, columns, kh, kw, c] of x [n, h, w, c], padded with `fill`."""
    reach = [(k - 1) * dilation + 1 for k in kernel]
    sizes = x.shape[1:3]
    counts = [-(-d // stride) if same else (d - r) // stride + 1 for d, r in zip(sizes, reach, strict=True)]
    totals = [max((c - 1) * stride + r - d, 0) for c, r, d in zip(counts, reach, sizes, strict=True)]
    pads = [(t // 2, t - t // 2) for t in totals] if same else [(0, 0)] * 2
    wide = np.pad(x.astype(np.float64), ((0, 0), *pads, (0, 0)), constant_values=fill)
    pairs = zip(counts, kernel, strict=True)
    rows, columns = (np.arange(c)[:, None] * stride + np.arange(k) * dilation for c, k in pairs)
    return wide[:, rows[:, None, :, None], columns[None, :, None, :]]


WINDOWS = [(1, 1, True), (2, 1, True), (1, 2, False), (2, 1, False)]


@pytest.mark.parametrize(("stride", "dilation", "same"), WINDOWS)
def test_convolutions(stride: int, dilation: int, same: bool) -> None:
    x, bias = normal(2, 7, 6, 4), normal(6)
    options = {"padding": 0 if same else 1, "stride_h": stride, "stride_w": stride, "dilation_h": dilation,
               "dilation_w": dilation}  # fmt: skip
    windows = slid(x, (3, 2), stride, dilation, same, 0)
    w = normal(6, 3, 2, 4)
    wanted = np.einsum("nrcijk,oijk->nrco", windows, w) + bias
    check("CONV_2D", [x, w, bias], np.maximum(wanted, 0), options | {"activation": 1}, (1, 2), atol=1e-4)
    w = normal(6, 3, 2, 2)
    halves = [np.einsum("nrcijk,oijk->nrco", windows[..., 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3]) for g in (0, 1)]
    check("CONV_2D", [x, w, bias], np.concatenate(halves, -1) + bias, options, (1, 2), atol=1e-4)
    w = normal(1, 3, 2, 8)
    wanted = np.einsum("nrcijk,ijkm->nrckm", windows, w[0].reshape(3, 2, 4, 2)).reshape(*windows.shape[:3], 8)
    check("DEPTHWISE_CONV_2D", [x, w, None], wanted, options | {"depth_multiplier": 2}, (1,), atol=1e-4)


@pytest.mark.parametrize("same", [True, False])
def test_transposed_convolutions(same: bool) -> None:
    """The gradient of a convolution: what each output adds to the windows of the input."""
    x, w, bias = normal(1, 3, 4, 2), normal(3, 3, 3, 2), normal(3)
    shape = (1, 6, 8, 3) if same else (1, 7, 9, 3)
    full = np.zeros((1, 7, 9, 3))
    for i in range(3):
        for j in range(4):
            full[0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("c,ohwc->hwo", x[0, i, j], w)
    wanted = (full[:, :6, :8] if same else full) + bias
    options = {"padding": 0 if same else 1, "stride_h": 2, "stride_w": 2}
    check("TRANSPOSE_CONV", [ints(*shape), w, x, bias], wanted, options, (0, 1, 3), atol=1e-4)


def test_convolutions_of_volumes() -> None:
    x, w = normal(1, 4, 5, 3, 2), normal(2, 2, 2, 2, 3)
    wanted = np.zeros((1, 3, 4, 2, 3))
    for d in range(2):
        for i in range(2):
            for j in range(2):
                wanted += x[:, d : d + 3, i : i + 4, j : j + 2] @ w[d, i, j]
    options = {"padding": 1, "stride_d": 1, "stride_h": 1, "stride_w": 1}
    check("CONV_3D", [x, w], wanted, options, (1,), atol=1e-4)


@pytest.mark.parametrize("same", [True, False])
def test_pools(same: bool) -> None:
    x = normal(2, 7, 6, 3)
    options = {"padding": 0 if same else 1, "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 2}
    greatest = slid(x, (3, 2), 2, 1, same, -np.inf).max((3, 4))
    means = np.nanmean(slid(x, (3, 2), 2, 1, same, np.nan), (3, 4))
    squares = np.nanmean(slid(x, (3, 2), 2, 1, same, np.nan) ** 2, (3, 4))
    check("MAX_POOL_2D", [x], greatest, options)
    check("AVERAGE_POOL_2D", [x], means, options)
    check("L2_POOL_2D", [x], np.sqrt(squares), options)


def _interpolated(x: np.ndarray, size: int, axis: int, corners: bool, half: bool) -> np.ndarray:
    old = x.shape[axis]
    at = np.arange(size) * ((old - 1) / (size - 1) if corners else old / size)
    if half:
        at = (np.arange(size) + 0.5) * old / size - 0.5
    low = np.clip(np.floor(at), 0, old - 1).astype(int)
    high = np.clip(np.floor(at) + 1, 0, old - 1).astype(int)
    share = (at - np.floor(at)).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    return x.take(low, axis) * (1 - share) + x.take(high, axis) * share


@pytest.mark.parametrize(("corners", "half"), [(False, False), (True, False), (False, True)])
def test_resizing(corners: bool, half: bool) -> None:
    x = normal(1, 4, 5, 2)
    options = {"align_corners": corners, "half_pixel_centers": half}
    wanted = _interpolated(_interpolated(x, 7, 1, corners, half), 3, 2, corners, half)
    check("RESIZE_BILINEAR", [x, ints(7, 3)], wanted, options, (1,), atol=1e-5)
    scales = [(old - 1) / (new - 1) if corners else old / new for old, new in ((4, 7), (5, 3))]
    rows, columns = (
        np.minimum(np.floor((np.arange(new) + (0.5 if half else 0)) * s + (0.5 if corners else 0)), old - 1).astype(int)
        for new, old, s in zip((7, 3), (4, 5), scales, strict=True)
    )
    check("RESIZE_NEAREST_NEIGHBOR", [x, ints(7, 3)], x[:, rows][:, :, columns], options, (1,))


def test_blocks_of_pixels() -> None:
    x = normal(2, 4, 6, 8)
    deep = x.reshape(2, 2, 2, 3, 2, 8).transpose(0, 1, 3, 2, 4, 5).reshape(2, 2, 3, 32)
    check("SPACE_TO_DEPTH", [x], deep, {"block_size": 2})
    check("DEPTH_TO_SPACE", [deep.astype(np.float32)], x, {"block_size": 2})
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    many = padded.reshape(2, 3, 2, 2, 3, 8).transpose(2, 4, 0, 1, 3, 5).reshape(12, 3, 2, 8)
    check("SPACE_TO_BATCH_ND", [x, ints(2, 3), ints([1, 1], [0, 0])], many, {}, (1, 2))
    check("BATCH_TO_SPACE_ND", [many.astype(np.float32), ints(2, 3), ints([1, 1], [0, 0])], x, {}, (1, 2))


def test_normalisation_of_near_channels() -> None:
    x = normal(1, 2, 2, 5)
    sums = np.stack([(x[..., max(k - 1, 0) : k + 2] ** 2).sum(-1) for k in range(5)], -1)
    options = {"radius": 1, "bias": 2.0, "alpha": 0.3, "beta": 0.75}
    check("LOCAL_RESPONSE_NORMALIZATION", [x], x / (2 + 0.3 * sums) ** 0.75, options)


# Recurrent layers


@pytest.mark.parametrize(("time_major", "clip"), [(False, 0.3), (True, 0.0)])
def test_lstm(time_major: bool, clip: float) -> None:
    """Gates are i f c o; states that are variables begin as zeros."""
    x, w, r, b, p = normal(2, 4, 3), normal(4, 5, 3), normal(4, 5, 5), normal(4, 5), normal(3, 5)
    h, c, wanted = np.zeros((2, 5)), np.zeros((2, 5)), []
    for t in range(4):
        i, f, g, o = (x[:, t] @ w[k].T + h @ r[k].T + b[k] for k in range(4))
        c = sigmoid(f + p[1] * c) * c + sigmoid(i + p[0] * c) * np.tanh(g)
        c = np.clip(c, -clip, clip) if clip else c
        h = sigmoid(o + p[2] * c) * np.tanh(c)
        wanted.append(h)
    states = [Tensor(name, (2, 5), variable=True) for name in ("h", "c")]
    constants = [constant(f"k{k}", v) for k, v in enumerate([*w, *r, *p, *b])]
    given = x.transpose(1, 0, 2) if time_major else x
    options = {"activation": 4, "cell_clip": clip, "time_major": time_major}
    data = node_model("UNIDIRECTIONAL_SEQUENCE_LSTM", [given, *constants, None, None, *states], options=options)
    (found,) = run(data, given)
    np.testing.assert_allclose(found, np.stack(wanted, 0 if time_major else 1), rtol=1e-5, atol=1e-5)


def test_rnn() -> None:
    x, w, r, b, h = normal(2, 4, 3), normal(5, 3), normal(5, 5), normal(5), np.zeros((2, 5))
    wanted = []
    for t in range(4):
        wanted.append(h := np.maximum(x[:, t] @ w.T + h @ r.T + b, 0))
    state = Tensor("h", (2, 5), variable=True)
    constants = [constant(f"k{k}", v) for k, v in enumerate((w, r, b))]
    data = node_model("UNIDIRECTIONAL_SEQUENCE_RNN", [x, *constants, state], options={"activation": 1})
    np.testing.assert_allclose(run(data, x)[0], np.stack(wanted, 1), rtol=1e-5, atol=1e-5)


ELSEWHERE = {
    "IF", "WHILE", "CALL", "STABLEHLO_COMPOSITE", "QUANTIZE", "DENSIFY", "CONV_3D_TRANSPOSE", "LSTM", "SVDF",
}  # fmt: skip
"""Tested in other files, or like another operator."""


def test_every_operator_is_tested() -> None:
    here = Path(__file__).read_text()
    assert [name for name in ADAPTERS if f'"{name}"' not in here] == []
    assert set(ADAPTERS) >= ELSEWHERE


def test_the_page_lists_every_operator() -> None:
    page = (Path(__file__).parents[3] / "docs" / "frontends.md").read_text()
    section = page.split("## TFLite")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")]
    listed = re.findall(r"\b[A-Z][A-Z0-9_]+\b", " ".join(rows))
    assert sorted(listed) == sorted([*ADAPTERS, *STATE_OPERATORS])
