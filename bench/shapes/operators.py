"""Operators of sketches: each adds its nodes and computes its value in float64, plainly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from bench.shapes.sketch import Sketch, Tensor


def conv(
    net: Sketch,
    x: Tensor,
    channels: int,
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """A two-dimensional convolution with bias, padded so that stride 1 keeps the size."""
    fan_in = x.shape[1] // groups * kernel[0] * kernel[1]
    w = net.weight(channels, x.shape[1] // groups, *kernel, scale=math.sqrt(2 / fan_in))
    b = net.weight(channels, scale=0.1)
    pads = [dilation * (k - 1) // 2 for k in kernel]
    sizes = [(s - 1) // stride + 1 for s in x.shape[2:]]
    elements = x.shape[0] * channels * math.prod(sizes)
    net.spend(elements=elements, flops=2.0 * elements * fan_in)
    value = _conv(x.value, w.value, pads, stride, dilation, groups) + b.value[:, None, None]
    return net.node(
        "Conv",
        [x, w, b],
        value,
        kernel_shape=list(kernel),
        pads=[*pads, *pads],
        strides=[stride] * 2,
        dilations=[dilation] * 2,
        group=groups,
    )


def _conv(
    x: np.ndarray, w: np.ndarray, pads: Sequence[int], stride: int, dilation: int, groups: int
) -> np.ndarray:
    """A sum over the rows of the kernel, each a matrix product of its channels and taps."""
    batch, each = x.shape[0], w.shape[1]
    (taps_h, taps_w), padded = w.shape[2:], np.pad(x, [(0, 0), (0, 0), (pads[0],) * 2, (pads[1],) * 2])
    height = (padded.shape[2] - dilation * (taps_h - 1) - 1) // stride + 1
    width = (padded.shape[3] - dilation * (taps_w - 1) - 1) // stride + 1
    weights = w.reshape(groups, w.shape[0] // groups, each, taps_h, taps_w).transpose(3, 0, 1, 4, 2)
    total = np.zeros((batch, groups, w.shape[0] // groups, height * width))
    for i in range(taps_h):
        rows = slice(i * dilation, i * dilation + stride * (height - 1) + 1, stride)
        taps = [
            padded[:, :, rows, left : left + stride * (width - 1) + 1 : stride]
            for left in range(0, taps_w * dilation, dilation)
        ]
        pixels = np.stack(taps, 1).reshape(batch, taps_w, groups, each, height * width).swapaxes(1, 2)
        pixels = pixels.reshape(batch, groups, taps_w * each, height * width)
        total += weights[i].reshape(groups, -1, taps_w * each) @ pixels
    return total.reshape(batch, w.shape[0], height, width)


def pool(net: Sketch, x: Tensor, kind: str, kernel: int, stride: int) -> Tensor:
    """Max or average pooling without padding; `kind` is "MaxPool" or "AveragePool"."""
    windows = np.lib.stride_tricks.sliding_window_view(x.value, (kernel, kernel), (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    value = windows.max((-1, -2)) if kind == "MaxPool" else windows.mean((-1, -2))
    return net.node(kind, [x], value, kernel_shape=[kernel] * 2, strides=[stride] * 2)


def global_pool(net: Sketch, x: Tensor) -> Tensor:
    return net.node("GlobalAveragePool", [x], x.value.mean((2, 3), keepdims=True))


def upsample(net: Sketch, x: Tensor) -> Tensor:
    """Each pixel twice in both directions."""
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    net.spend(elements=4 * x.value.size)
    value = x.value.repeat(2, 2).repeat(2, 3)
    return net.node(
        "Resize", [x, None, scales], value, mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


@cache
def erf() -> Callable[[np.ndarray], np.ndarray]:
    return np.vectorize(math.erf, otypes=[np.float64])


def sigmoid_of(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def relu(net: Sketch, x: Tensor) -> Tensor:
    return net.node("Relu", [x], np.maximum(x.value, 0.0))


def leaky_relu(net: Sketch, x: Tensor) -> Tensor:
    alpha = float(np.float32(0.1))
    return net.node("LeakyRelu", [x], np.where(x.value < 0, alpha * x.value, x.value), alpha=alpha)


def silu(net: Sketch, x: Tensor) -> Tensor:
    gate = net.node("Sigmoid", [x], sigmoid_of(x.value))
    return mul(net, x, gate)


def hard_swish(net: Sketch, x: Tensor) -> Tensor:
    return net.node("HardSwish", [x], x.value * np.clip(x.value / 6 + 0.5, 0.0, 1.0))


def gelu(net: Sketch, x: Tensor) -> Tensor:
    """With erf, in the nodes that exporters write."""
    root = net.constant(np.float32(math.sqrt(2.0)))
    scaled = net.node("Div", [x, root], x.value / float(root.value))
    curve = net.node("Erf", [scaled], erf()(scaled.value))
    one, half = net.constant(np.float32(1.0)), net.constant(np.float32(0.5))
    shifted = net.node("Add", [curve, one], curve.value + 1.0)
    product = net.node("Mul", [x, shifted], x.value * shifted.value)
    return net.node("Mul", [product, half], product.value * 0.5)


ACTIVATIONS = (relu, leaky_relu, silu, hard_swish, gelu)


def add(net: Sketch, a: Tensor, b: Tensor) -> Tensor:
    return net.node("Add", [a, b], a.value + b.value)


def mul(net: Sketch, a: Tensor, b: Tensor) -> Tensor:
    return net.node("Mul", [a, b], a.value * b.value)


def tanh(net: Sketch, x: Tensor) -> Tensor:
    return net.node("Tanh", [x], np.tanh(x.value))


def matmul(net: Sketch, a: Tensor, b: Tensor) -> Tensor:
    elements = math.prod(a.shape[:-1]) * b.shape[-1]
    net.spend(elements=elements, flops=2.0 * elements * a.shape[-1])
    value = a.value @ b.value
    return net.node("MatMul", [a, b], value)


def linear(net: Sketch, x: Tensor, width: int, *, bias: bool = True) -> Tensor:
    """Product with a constant matrix, and a bias."""
    w = net.weight(x.shape[-1], width, scale=1 / math.sqrt(x.shape[-1]))
    product = matmul(net, x, w)
    return add(net, product, net.weight(width, scale=0.1)) if bias else product


def softmax(net: Sketch, x: Tensor) -> Tensor:
    powers = np.exp(x.value - x.value.max(-1, keepdims=True))
    return net.node("Softmax", [x], powers / powers.sum(-1, keepdims=True), axis=-1)


def layer_norm(net: Sketch, x: Tensor) -> Tensor:
    """Over the last axis, as one node."""
    scale, bias = net.weight(x.shape[-1], scale=0.1, around=1.0), net.weight(x.shape[-1], scale=0.1)
    centred = x.value - x.value.mean(-1, keepdims=True)
    epsilon = float(np.float32(1e-5))
    value = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale.value + bias.value
    return net.node("LayerNormalization", [x, scale, bias], value, axis=-1, epsilon=epsilon)


def reduce(net: Sketch, x: Tensor, kind: str, axes: Sequence[int]) -> Tensor:
    """ "ReduceMean" or "ReduceMax"."""
    along = tuple(axes)
    value = x.value.mean(along, keepdims=True) if kind == "ReduceMean" else x.value.max(along, keepdims=True)
    return net.node(kind, [x], value, axes=list(axes), keepdims=1)


def transpose(net: Sketch, x: Tensor, order: Sequence[int]) -> Tensor:
    return net.node("Transpose", [x], x.value.transpose(order), perm=list(order))


def reshape(net: Sketch, x: Tensor, *shape: int) -> Tensor:
    return net.node("Reshape", [x, net.constant(np.array(shape, np.int64))], x.value.reshape(shape))


def concat(net: Sketch, tensors: Sequence[Tensor], axis: int) -> Tensor:
    return net.node("Concat", tensors, np.concatenate([t.value for t in tensors], axis), axis=axis)


def attention(net: Sketch, x: Tensor, heads: int, width: int) -> Tensor:
    """Self-attention of [batch, sequence, features] with heads of this width."""
    batch, length = x.shape[:2]

    def split(order: Sequence[int]) -> Tensor:
        projected = linear(net, x, heads * width)
        return transpose(net, reshape(net, projected, batch, length, heads, width), order)

    queries, keys, values = split((0, 2, 1, 3)), split((0, 2, 3, 1)), split((0, 2, 1, 3))
    scale = net.constant(np.float32(1 / math.sqrt(width)))
    weights = softmax(net, mul(net, matmul(net, queries, keys), scale))
    mixed = transpose(net, matmul(net, weights, values), (0, 2, 1, 3))
    return linear(net, reshape(net, mixed, batch, length, heads * width), x.shape[-1])


def lstm(net: Sketch, x: Tensor, hidden: int) -> Tensor:
    """Of [sequence, batch, features]; all hidden states as [sequence, 1, batch, hidden]."""
    length, batch, features = x.shape
    net.spend(flops=8.0 * length * batch * hidden * (features + hidden))
    scale = 1 / math.sqrt(hidden)
    w = net.weight(1, 4 * hidden, features, scale=scale)
    r = net.weight(1, 4 * hidden, hidden, scale=scale)
    b = net.weight(1, 8 * hidden, scale=0.1)
    offsets = b.value[0, : 4 * hidden] + b.value[0, 4 * hidden :]
    state, cell, states = np.zeros((batch, hidden)), np.zeros((batch, hidden)), []
    for step in x.value:
        gates = step @ w.value[0].T + state @ r.value[0].T + offsets
        i, o, f, c = np.split(gates, 4, axis=1)
        cell = sigmoid_of(f) * cell + sigmoid_of(i) * np.tanh(c)
        state = sigmoid_of(o) * np.tanh(cell)
        states.append(state)
    return net.node("LSTM", [x, w, r, b], np.stack(states)[:, None], hidden_size=hidden)
