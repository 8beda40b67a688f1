"""Blocks of networks by what they take and give: images [n, c, h, w], sequences [n, s, d] and series [n, c, l]."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import divisor, width

Block = Callable[[Draft, Value], Value]

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "Softplus", "Gelu", "Mish", "silu")


def activation(d: Draft, x: Value) -> Value:
    op = d.rng.choice(ACTIVATIONS)
    return d.node("Mul", x, d.node("Sigmoid", x)) if op == "silu" else d.node(op, x)


def convolution(d: Draft, x: Value, channels: int, kernel: Sequence[int], *, stride: int = 1, dilation: int = 1,
                group: int = 1) -> Value:  # fmt: skip
    """Of any rank, padded so that stride 1 keeps the sizes where kernels are odd."""
    pads = [dilation * (k - 1) // 2 for k in kernel]
    w, b = d.weight(channels, x.shape[1] // group, *kernel), d.weight(channels, scale=0.1)
    rank = len(kernel)
    return d.node(
        "Conv", x, w, b, pads=pads * 2, strides=[stride] * rank, dilations=[dilation] * rank, group=group
    )


def plain_conv(d: Draft, x: Value) -> Value:
    rank = len(x.shape) - 2
    kernel = [d.rng.choice((1, 3, 3, 3, 5, 7, 9))] * rank
    if d.rng.random() < 0.15:
        kernel[-1] = d.rng.choice((1, 3, 7))
    y = convolution(
        d,
        x,
        width(d.rng),
        kernel,
        stride=d.rng.choice((1, 1, 1, 2)),
        dilation=d.rng.choice((1, 1, 1, 1, 2, 4)),
    )
    return activation(d, y) if d.rng.random() < 0.7 else y


def depthwise(d: Draft, x: Value) -> Value:
    kernel = [d.rng.choice((3, 3, 5, 7, 11, 31) if len(x.shape) == 3 else (3, 3, 5, 7, 11))] * (
        len(x.shape) - 2
    )
    y = convolution(d, x, x.shape[1], kernel, stride=d.rng.choice((1, 1, 2)), group=x.shape[1],
                    dilation=d.rng.choice((1, 1, 1, 2)))  # fmt: skip
    return activation(d, y)


def grouped_conv(d: Draft, x: Value) -> Value:
    group = divisor(d.rng, x.shape[1], 2)
    y = convolution(d, x, group * d.rng.choice((1, 2, 4, 8, 12, 24)), [3] * (len(x.shape) - 2), group=group)
    return activation(d, y)


def inverted_bottleneck(d: Draft, x: Value) -> Value:
    """As MobileNet and RegNet have it, with squeeze-and-excite at times."""
    rank, inner = len(x.shape) - 2, x.shape[1] * d.rng.choice((1, 2, 4))
    y = activation(d, convolution(d, x, inner, [1] * rank))
    group = inner if d.rng.random() < 0.6 else divisor(d.rng, inner)
    y = activation(d, convolution(d, y, inner, [d.rng.choice((3, 5))] * rank, group=group))
    if d.rng.random() < 0.6:
        y = squeeze_and_excite(d, y)
    return d.node("Add", convolution(d, y, x.shape[1], [1] * rank), x)


def squeeze_and_excite(d: Draft, x: Value) -> Value:
    axes = d.integers(*range(2, len(x.shape)))
    mean = d.node("ReduceMean", x, axes) if d.rng.random() < 0.5 else d.node("GlobalAveragePool", x)
    ones = [1] * (len(x.shape) - 2)
    squeezed = activation(d, convolution(d, mean, max(1, x.shape[1] // 4), ones))
    return d.node("Mul", x, d.node("Sigmoid", convolution(d, squeezed, x.shape[1], ones)))


def transposed_conv(d: Draft, x: Value) -> Value:
    rank, stride = len(x.shape) - 2, d.rng.choice((1, 2, 2, 2, 3, 4))
    kernel, group = d.rng.choice((stride, stride + 1, 2 * stride, 3, 4)), 1
    if d.rng.random() < 0.4:
        group = x.shape[1] if d.rng.random() < 0.4 else divisor(d.rng, x.shape[1])
    each = 1 if group == x.shape[1] else max(1, width(d.rng, 8, 128) // group)
    pads = [min(kernel - 1, max(0, (kernel - stride) // 2))] * rank
    return d.node("ConvTranspose", x, d.weight(x.shape[1], each, *[kernel] * rank), strides=[stride] * rank,
                  pads=pads * 2, group=group)  # fmt: skip


def pooling(d: Draft, x: Value) -> Value:
    rank, kernel = len(x.shape) - 2, d.rng.choice((2, 3, 3, 5, 9, 13))
    stride, pad = d.rng.choice((1, 1, 2)), kernel // 2 if d.rng.random() < 0.8 else 0
    op = d.rng.choice(("MaxPool", "AveragePool"))
    return d.node(op, x, kernel_shape=[kernel] * rank, strides=[stride] * rank, pads=[pad] * (2 * rank))


def pyramid(d: Draft, x: Value) -> Value:
    """Poolings of one another, joined, as in YOLO."""
    kernel = d.rng.choice((5, 5, 9))
    rank, found = len(x.shape) - 2, [x]
    for _ in range(3):
        pooled = d.node("MaxPool", found[-1], kernel_shape=[kernel] * rank, pads=[kernel // 2] * (2 * rank))
        found.append(pooled)
    return convolution(d, d.node("Concat", *found, axis=1), x.shape[1], [1] * rank)


def norm_of_channels(d: Draft, x: Value) -> Value:
    """LayerNorm of the channels, the channels last for as long, or of groups of them."""
    c, rank = x.shape[1], len(x.shape)
    if d.rng.random() < 0.5:
        last = d.node("Transpose", x, perm=[0, *range(2, rank), 1])
        y = d.node("LayerNormalization", last, d.weight(c, scale=1.0), d.weight(c, scale=0.1), axis=-1)
        return d.node("Transpose", y, perm=[0, rank - 1, *range(1, rank - 1)])
    groups = divisor(d.rng, c)
    flat = d.node("Reshape", x, d.integers(0, groups, -1))
    normed = d.node(
        "InstanceNormalization", flat, *(d.constant(np.full(groups, v, np.float32)) for v in (1, 0))
    )
    d.has_sizes = True
    y = d.node("Reshape", normed, d.integers(*x.shape))
    ones = [1] * (rank - 2)
    return d.node("Add", d.node("Mul", y, d.weight(c, *ones, scale=1.0)), d.weight(c, *ones, scale=0.1))


def shuffle(d: Draft, x: Value) -> Value:
    """Channels mixed among groups, or moved into pixels."""
    group = divisor(d.rng, x.shape[1], 2)
    d.has_sizes = True
    y = d.node("Reshape", x, d.integers(x.shape[0], group, x.shape[1] // group, *x.shape[2:]))
    order = [0, 2, 1, *range(3, len(x.shape) + 1)]
    return d.node("Reshape", d.node("Transpose", y, perm=order), d.integers(*x.shape))


def resized(d: Draft, x: Value) -> Value:
    scale = d.rng.choice((2.0, 2.0, 0.5, 1.5))
    scales = d.constant(np.array([1, 1, *[scale] * (len(x.shape) - 2)], np.float32))
    mode = d.rng.choice(("nearest", "linear") if len(x.shape) == 4 else ("nearest",))
    return d.node("Resize", x, None, scales, mode=mode)


def branches(d: Draft, x: Value) -> Value:
    ones = [1] * (len(x.shape) - 2)
    parts = [
        convolution(d, x, width(d.rng, 8, 96), ones if k == 0 else [3] * len(ones))
        for k in range(d.rng.randint(2, 4))
    ]
    return activation(d, d.node("Concat", *parts, axis=1))


def linear(d: Draft, x: Value, features: int) -> Value:
    y = d.node("MatMul", x, d.weight(x.shape[-1], features, scale=1 / math.sqrt(x.shape[-1])))
    return d.node("Add", y, d.weight(features, scale=0.1)) if d.rng.random() < 0.7 else y


def norm(d: Draft, x: Value) -> Value:
    """Of the last axis: LayerNormalization, or the root of the mean square in single nodes."""
    features = x.shape[-1]
    if d.rng.random() < 0.6:
        return d.node("LayerNormalization", x, d.weight(features, scale=1.0), d.weight(features, scale=0.1))
    mean = d.node("ReduceMean", d.node("Mul", x, x), d.integers(-1))
    root = d.node("Sqrt", d.node("Add", mean, d.constant(np.float32(1e-5).reshape(()))))
    return d.node("Mul", d.node("Div", x, root), d.weight(features, scale=1.0))


def mlp(d: Draft, x: Value) -> Value:
    inner = width(d.rng, 32, 1024)
    y = norm(d, x) if d.rng.random() < 0.6 else x
    if d.rng.random() < 0.3:
        y = d.node("Mul", activation(d, linear(d, y, inner)), linear(d, y, inner))
    else:
        y = activation(d, linear(d, y, inner))
    return d.node("Add", x, linear(d, y, x.shape[-1]))


def attention(d: Draft, x: Value) -> Value:
    """Heads in any of the ways in which exporters lay them out, with masks, biases and mixed heads at times."""
    heads, features = d.rng.choice((1, 2, 3, 4, 6, 8, 12)), d.rng.choice((16, 24, 32, 48, 64, 80))
    inner = heads * features

    def split(y: Value, perm: Sequence[int]) -> Value:
        return d.node("Transpose", d.node("Reshape", y, d.integers(0, 0, heads, features)), perm=list(perm))

    if d.rng.random() < 0.5:
        q, k, v = (linear(d, x, inner) for _ in range(3))
    else:
        joined = linear(d, x, 3 * inner)
        q, k, v = d.node_of_several("Split", [joined], 3, axis=-1, num_outputs=3)
    kt = split(k, (0, 2, 3, 1))
    values = split(v, (0, 2, 1, 3))
    scores = d.node("MatMul", split(q, (0, 2, 1, 3)), kt)
    scores = d.node("Mul", scores, d.constant(np.float32(1 / math.sqrt(features)).reshape(())))
    kind = d.rng.choice(("plain", "plain", "bias", "mask", "talking"))
    if kind == "bias":
        d.has_sizes = True
        scores = d.node("Add", scores, d.weight(heads, x.shape[1], x.shape[1], scale=0.3))
    elif kind == "mask":
        d.has_sizes = True
        seen = np.where(
            d.numbers.random((1, 1, x.shape[1], x.shape[1])) < 0.2, np.float32(-1e4), np.float32(0)
        )
        seen[..., 0] = 0
        scores = d.node("Add", scores, d.constant(seen))
    elif kind == "talking":
        scores = mixed_heads(d, scores, heads)
    shares = d.node("Softmax", scores, axis=-1)
    if kind == "talking" and d.rng.random() < 0.5:
        shares = mixed_heads(d, shares, heads)
    if d.rng.random() < 0.3:  # the result transposed: [b, h, d, s]
        turned = d.node("Transpose", d.node("MatMul", shares, values), perm=[0, 1, 3, 2])
        mixed = d.node("Transpose", turned, perm=[0, 3, 1, 2])
    else:
        mixed = d.node("Transpose", d.node("MatMul", shares, values), perm=[0, 2, 1, 3])
    y = linear(d, d.node("Reshape", mixed, d.integers(0, 0, inner)), x.shape[-1])
    return d.node("Add", x, y) if d.rng.random() < 0.7 else y


def mixed_heads(d: Draft, scores: Value, heads: int) -> Value:
    last = d.node("Transpose", scores, perm=[0, 2, 3, 1])
    return d.node("Transpose", d.node("MatMul", last, d.weight(heads, heads)), perm=[0, 3, 1, 2])


def channel_attention(d: Draft, x: Value) -> Value:
    """Of features over features, as in XCiT."""
    scores = d.node(
        "MatMul", d.node("Transpose", linear(d, x, x.shape[-1]), perm=[0, 2, 1]), linear(d, x, x.shape[-1])
    )
    scaled = d.node("Mul", scores, d.constant(np.float32(0.05).reshape(())))
    shares = d.node("Softmax", scaled, axis=d.rng.choice((-1, -1, 1)))
    return d.node("MatMul", x, shares)


def recurrent(d: Draft, x: Value) -> Value:
    hidden, directions = width(d.rng, 16, 256), d.rng.choice((1, 1, 2))
    op, gates = d.rng.choice((("LSTM", 4), ("GRU", 3)))
    w, r = (
        d.weight(directions, gates * hidden, x.shape[-1], scale=0.1),
        d.weight(directions, gates * hidden, hidden, scale=0.1),
    )
    b = d.weight(directions, 2 * gates * hidden, scale=0.1)
    steps = d.node("Transpose", x, perm=[1, 0, 2])
    y = d.node(
        op, steps, w, r, b, hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward"
    )
    return d.node("Reshape", d.node("Transpose", y, perm=[2, 0, 1, 3]), d.integers(0, 0, directions * hidden))


def over_time(d: Draft, x: Value) -> Value:
    """Blocks of series within a sequence, as in Conformer."""
    y = d.node("Transpose", x, perm=[0, 2, 1])
    y = d.rng.choice((depthwise_same, plain_conv_same))(d, y)
    return d.node("Transpose", y, perm=[0, 2, 1])


def depthwise_same(d: Draft, x: Value) -> Value:
    kernel = [d.rng.choice((3, 7, 15, 31))]
    return activation(d, convolution(d, x, x.shape[1], kernel, group=x.shape[1]))


def plain_conv_same(d: Draft, x: Value) -> Value:
    return activation(d, convolution(d, x, x.shape[1], [d.rng.choice((1, 3, 5))]))


def image_attention(d: Draft, x: Value) -> Value:
    """Attention over the pixels of an image, which comes back."""
    flat = d.node("Transpose", d.node("Reshape", x, d.integers(0, 0, -1)), perm=[0, 2, 1])
    y = d.node("Transpose", d.rng.choice((attention, attention, channel_attention))(d, flat), perm=[0, 2, 1])
    d.has_sizes = True
    return d.node("Reshape", y, d.integers(*x.shape))


def windows(d: Draft, x: Value) -> Value:
    """Attention within windows of an image, at times shifted, as in Swin."""
    n, c, height, columns = x.shape
    window = d.rng.choice([w for w in (4, 5, 7, 8) if height % w == 0 and columns % w == 0] or [1])
    if window == 1:
        return image_attention(d, x)
    d.has_sizes = True
    y = d.node("Transpose", x, perm=[0, 2, 3, 1])
    shift = d.rng.choice((0, window // 2))
    if shift:
        y = rolled(d, rolled(d, y, 1, shift), 2, shift)
    parted = d.integers(n, height // window, window, columns // window, window, c)
    y = d.node("Transpose", d.node("Reshape", y, parted), perm=[0, 1, 3, 2, 4, 5])
    y = attention(d, d.node("Reshape", y, d.integers(-1, window * window, c)))
    back = d.integers(n, height // window, columns // window, window, window, c)
    y = d.node("Transpose", d.node("Reshape", y, back), perm=[0, 1, 3, 2, 4, 5])
    y = d.node("Reshape", y, d.integers(n, height, columns, c))
    if shift:
        y = rolled(d, rolled(d, y, 1, height - shift), 2, columns - shift)
    return d.node("Transpose", y, perm=[0, 3, 1, 2])


def rolled(d: Draft, x: Value, axis: int, by: int) -> Value:
    """As exporters write torch.roll: two slices joined."""

    def part(start: int, end: int) -> Value:
        return d.node("Slice", x, *(d.integers(v) for v in (start, end, axis)))

    return d.node("Concat", part(by, x.shape[axis]), part(0, by), axis=axis)


IMAGES: tuple[Block, ...] = (
    plain_conv, plain_conv, depthwise, grouped_conv, inverted_bottleneck, inverted_bottleneck, transposed_conv, pooling,
    pyramid, norm_of_channels, shuffle, resized, branches, image_attention, windows, squeeze_and_excite,
)  # fmt: skip
SERIES: tuple[Block, ...] = (
    plain_conv, plain_conv, depthwise, grouped_conv, transposed_conv, pooling, norm_of_channels, inverted_bottleneck,
    branches, squeeze_and_excite,
)  # fmt: skip
SEQUENCES: tuple[Block, ...] = (attention, attention, mlp, mlp, norm, recurrent, over_time, channel_attention)
