"""Layers in the forms that networks seldom have: products, poolings, norms, recurrences, transforms, branches."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from bench.cliffs import blocks
from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import batch, between, edges, width
from bench.cliffs.tensors import axis_of, image, tensor


def gemm(d: Draft) -> Value:
    rows, inner, columns = d.rng.choice((1, 1, 8, between(d.rng, 1, 300))), width(d.rng), between(d.rng, 1, 1024)
    turned = d.rng.randint(0, 1), d.rng.randint(0, 1)
    x = d.input(*((inner, rows) if turned[0] else (rows, inner)))
    w = d.weight(*((columns, inner) if turned[1] else (inner, columns)))
    bias = d.rng.choice(((columns,), (1,), (rows, 1), (rows, columns)))
    if rows > 1 and bias[0] == rows:
        d.has_sizes = True
    y = d.node("Gemm", x, w, d.weight(*bias), transA=turned[0], transB=turned[1], alpha=d.rng.choice((1.0, 0.5)),
               beta=d.rng.choice((1.0, 2.0)))  # fmt: skip
    return d.node("Relu", y) if d.rng.random() < 0.5 else y


def wide_product(d: Draft) -> Value:
    dtype = d.rng.choice(("float64", "float16", "int32"))
    x = d.input(between(d.rng, 1, 200), between(d.rng, 8, 300), dtype=dtype)
    return d.node("MatMul", x, d.weight(x.shape[-1], between(d.rng, 1, 300), dtype=dtype, scale=2.0))


def vector_product(d: Draft) -> Value:
    """A vector on either side, or many small matrices."""
    kind, size = d.rng.choice(("left", "right", "both", "small", "stretched")), between(d.rng, 8, 2000)
    if kind == "left":
        return d.node("MatMul", d.input(size), d.input(size, between(d.rng, 1, 500)))
    if kind == "right":
        return d.node("MatMul", d.input(between(d.rng, 1, 500), size), d.input(size))
    if kind == "both":
        return d.node("MatMul", d.input(size), d.input(size))
    many, (i, j, k) = between(d.rng, 8, 500), (between(d.rng, 2, 24) for _ in range(3))
    return d.node("MatMul", d.input(many, i, j), d.input(*([] if kind == "stretched" else [many]), j, k))


def small_mlp(d: Draft) -> Value:
    """As controllers and heads have it: a few rows, a few layers."""
    x = d.input(d.rng.choice((1, 1, 1, 4, 32)), between(d.rng, 1, 256))
    for _ in range(d.rng.randint(2, 5)):
        x = blocks.activation(d, blocks.linear(d, x, between(d.rng, 4, 256)))
    return d.node("Softmax", blocks.linear(d, x, between(d.rng, 1, 20)))


def odd_pooling(d: Draft) -> Value:
    """With padding counted, rounding up, dilations, positions of the largest, or other norms."""
    x = image(d)
    rank, kernel, stride = len(x.shape) - 2, d.rng.choice((2, 3, 5)), d.rng.choice((1, 2, 3))
    if min(x.shape[2:]) < 2 * kernel:
        raise ValueError("too small")
    window = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [kernel // 2] * (2 * rank)}
    kind = d.rng.choice(("counted", "ceil", "dilated", "norm", "indices"))
    if kind == "counted":
        return d.node("AveragePool", x, count_include_pad=1, **window)
    if kind == "ceil":
        return d.node(d.rng.choice(("MaxPool", "AveragePool")), x, ceil_mode=1, **window)
    if kind == "dilated":
        return d.node("MaxPool", x, dilations=[2] * rank, **window)
    if kind == "norm":
        return d.node("LpPool", x, p=2, **window)
    return d.node_of_several("MaxPool", [x], 2, **window)[1]


def global_norm(d: Draft) -> Value:
    return d.node("GlobalLpPool", image(d), p=2)


def odd_norm(d: Draft) -> Value:
    x = image(d)
    channels = x.shape[1]
    kind = d.rng.choice(("batch", "several", "variance", "rms"))
    if kind == "batch":
        each = [d.weight(channels, scale=1.0) for _ in range(3)]
        variance = d.constant(np.full(channels, 0.7, np.float32))
        return blocks.activation(d, d.node("BatchNormalization", x, *each, variance))
    if kind == "several":
        d.has_sizes = True
        shape = x.shape[2:]
        return d.node("LayerNormalization", x, d.weight(*shape, scale=1.0), d.weight(*shape), axis=2)
    if kind == "variance":
        return d.node("MeanVarianceNormalization", x, axes=list(range(len(x.shape))) if d.rng.random() < 0.3 else
                      [0, *range(2, len(x.shape))])  # fmt: skip
    root = d.node("Sqrt", d.node("ReduceMean", d.node("Mul", x, x), d.integers(1)))
    return d.node("Div", x, d.node("Add", root, d.constant(np.float32(1e-5).reshape(()))))


def layered_recurrence(d: Draft) -> Value:
    """One to three layers on one another, in both directions or backwards, with states and lengths at times."""
    many, length = d.rng.choice((1, 1, 2, 8, 16)), between(d.rng, 1, 64)
    x = d.input(length, many, width(d.rng, 8, 128))
    op, gates = d.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    direction = d.rng.choice(("forward", "reverse", "bidirectional"))
    ways, hidden = (2 if direction == "bidirectional" else 1), width(d.rng, 8, 128)
    options = {"linear_before_reset": d.rng.randint(0, 1)} if op == "GRU" else {}
    for _ in range(d.rng.randint(1, 3)):
        w, r = (d.weight(ways, gates * hidden, size, scale=0.1) for size in (x.shape[-1], hidden))
        lengths = None
        if d.rng.random() < 0.2:
            lengths = d.given(np.sort(d.numbers.integers(1, length + 1, many).astype(np.int32))[::-1].copy())
        state = d.input(ways, many, hidden) if d.rng.random() < 0.3 else None
        y = d.node(op, x, w, r, d.weight(ways, 2 * gates * hidden, scale=0.1), lengths, state, hidden_size=hidden,
                   direction=direction, **options)  # fmt: skip
        x = d.node("Reshape", d.node("Transpose", y, perm=[0, 2, 1, 3]), d.integers(0, 0, ways * hidden))
    return x


def cell(d: Draft) -> Value:
    """One step of a recurrence, in single nodes."""
    many, hidden = d.rng.choice((1, 1, 4, 32)), width(d.rng, 8, 256)
    x, h, c = d.input(many, width(d.rng, 8, 256)), d.input(many, hidden), d.input(many, hidden)
    gates = d.node("Add", blocks.linear(d, x, 4 * hidden), blocks.linear(d, h, 4 * hidden))
    i, f, g, o = d.node_of_several("Split", [gates], 4, axis=1, num_outputs=4)
    kept = d.node("Mul", d.node("Sigmoid", f), c)
    new = d.node("Add", kept, d.node("Mul", d.node("Sigmoid", i), d.node("Tanh", g)))
    return d.node("Mul", d.node("Sigmoid", o), d.node("Tanh", new))


def attention_of_call(d: Draft) -> Value:
    """Queries of one length on keys of another, all of the call, masked at times; keys shared by heads at times."""
    many, heads, features = batch(d.rng), d.rng.choice((1, 2, 8, 12)), d.rng.choice((16, 32, 64, 80, 128))
    rows, keys = d.rng.choice((1, 1, between(d.rng, 1, 400))), between(d.rng, 1, 800)
    shared = 1 if d.rng.random() < 0.2 else heads
    q, k, v = (
        d.input(many, h, n, features) for h, n in ((heads, rows), (shared, keys), (shared, keys))
    )
    scores = d.node("MatMul", q, d.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = d.node("Div", scores, d.constant(np.float32(math.sqrt(features)).reshape(())))
    if d.rng.random() < 0.4:
        d.has_sizes = True
        seen = np.where(d.numbers.random((many, 1, 1, keys)) < 0.1, -1e4, 0).astype(np.float32)
        scores = d.node("Add", scores, d.given(seen))
    y = d.node("MatMul", d.node("Softmax", scores, axis=-1), v)
    return d.node("Transpose", y, perm=[0, 2, 1, 3]) if d.rng.random() < 0.5 else y


def spectrum(d: Draft) -> Value:
    """Fourier transforms of lines, or of frames of a signal."""
    if d.rng.random() < 0.5:
        x = d.input(batch(d.rng), between(d.rng, 4, 400), 1)
        return d.node("DFT", x, None, d.constant(np.array(1)), onesided=d.rng.randint(0, 1))
    frame = d.rng.choice((64, 128, 256))
    x = d.input(1, frame * between(d.rng, 2, 20))
    window = d.constant(np.hanning(frame).astype(np.float32))
    d.has_sizes = True
    return d.node("STFT", x, d.constant(np.array(frame // 2)), window, d.constant(np.array(frame)))


def affine_grid(d: Draft) -> Value:
    theta = d.input(batch(d.rng), 2, 3)
    d.has_sizes = True
    size = d.integers(theta.shape[0], 3, *edges(d.rng, 2, 64))
    return d.node("AffineGrid", theta, size, align_corners=d.rng.randint(0, 1))


def loss(d: Draft) -> Value:
    many, classes = between(d.rng, 1, 300), between(d.rng, 2, 1000)
    scores, labels = d.input(many, classes), d.input(many, dtype="int64", below=classes)
    return d.node("SoftmaxCrossEntropyLoss", scores, labels, reduction=d.rng.choice(("none", "mean", "sum")))


def resized_to(d: Draft) -> Value:
    """To sizes, of images, series or volumes, channels last at times, with antialiasing at times."""
    x = image(d, d.rng.choice((1, 2, 2, 3)), 96)
    rank = len(x.shape) - 2
    sizes = d.integers(*x.shape[:2], *(between(d.rng, 2, 200 if rank < 3 else 30) for _ in range(rank)))
    d.has_sizes = True
    options = {"antialias": 1} if rank == 2 and d.rng.random() < 0.2 else {}
    mode = d.rng.choice(("nearest", "linear", "linear") if rank != 2 else ("nearest", "linear", "cubic"))
    return d.node("Resize", x, None, None, sizes, mode=mode,
                  coordinate_transformation_mode=d.rng.choice(("half_pixel", "align_corners", "asymmetric")),
                  **options)  # fmt: skip


def chosen_branch(d: Draft) -> Value:
    """An If on an input, with a small computation in either branch."""
    x = tensor(d, 2, 3)
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, list(x.shape))

    def branch(op: str) -> object:
        return helper.make_graph([helper.make_node(op, [x.name], ["inner"])], op, [], [info])

    return d.node_of_shape("If", [d.given(np.array(d.rng.random() < 0.5))], x.shape, x.dtype,
                           then_branch=branch("Tanh"), else_branch=branch("Relu"))  # fmt: skip


def repeated(d: Draft) -> Value:
    """A Loop of some trips over a state."""
    x = tensor(d, 2, 3)
    shape = list(x.shape)
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["before"], ["bent"]),
            helper.make_node("Add", ["bent", x.name], ["after"]),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", TensorProto.FLOAT, shape),
        ],
    )
    trips = d.constant(np.array(d.rng.randint(2, 6)))
    return d.node_of_shape("Loop", [trips, d.constant(np.array(True)), x], x.shape, x.dtype, body=body)


def classes_of_image(d: Draft) -> Value:
    """The end of a segmentation network: a resize, and the largest channel of each position."""
    x = image(d, 2, 48)
    scales = d.constant(np.array([1, 1, 4, 4], np.float32))
    return d.node("ArgMax", d.node("Resize", x, None, scales, mode="linear"), axis=1, keepdims=0)


def distances(d: Draft) -> Value:
    """Of all rows to all others."""
    x = d.input(between(d.rng, 2, 300), 1, width(d.rng, 2, 64))
    y = d.input(1, between(d.rng, 2, 300), x.shape[-1])
    gap = d.node("Sub", x, y)
    return d.node("Sqrt", d.node("ReduceSum", d.node("Mul", gap, gap), d.integers(-1), keepdims=0))


def standardized(d: Draft) -> Value:
    """By mean and variance of any axes, in single nodes."""
    x = tensor(d, 2, 4)
    axes = d.integers(*sorted(d.rng.sample(range(len(x.shape)), d.rng.randint(1, len(x.shape)))))
    gap = d.node("Sub", x, d.node("ReduceMean", x, axes))
    variance = d.node("ReduceMean", d.node("Mul", gap, gap), axes)
    return d.node("Div", gap, d.node("Sqrt", d.node("Add", variance, d.constant(np.float32(1e-5).reshape(())))))


def axis_extremes(d: Draft) -> Value:
    """The largest and the smallest along an axis, and what lies between."""
    x = tensor(d, 2, 4)
    axes = d.integers(axis_of(d, x))
    low, high = d.node("ReduceMin", x, axes), d.node("ReduceMax", x, axes)
    span = d.node("Add", d.node("Sub", high, low), d.constant(np.float32(1e-3).reshape(())))
    return d.node("Div", d.node("Sub", x, low), span)


LAYERS = (
    gemm, gemm, wide_product, vector_product, small_mlp, small_mlp, odd_pooling, odd_pooling, global_norm, odd_norm,
    odd_norm, layered_recurrence, layered_recurrence, cell, attention_of_call, attention_of_call, spectrum, affine_grid,
    loss, resized_to, resized_to, chosen_branch, repeated, classes_of_image, distances, standardized, axis_extremes,
)  # fmt: skip
