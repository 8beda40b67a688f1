"""What random models are made of: each family draws its sizes, and builds one operator or a small network.

The sizes are those of requests in the wild: batches of 1-32, images of 160-640, sequences of 1-512, and widths that
are mostly no multiples of 8. Images that lie deep inside of a network are smaller and have more channels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from bench.shapes import operators as ops
from bench.shapes.sketch import Sketch, Tensor

Family = Callable[[Sketch, random.Random], Sequence[Tensor]]


def width(rng: random.Random, low: int, high: int) -> int:
    """A number of channels or features, log-uniform; three of four multiples of 8 are made none."""
    size = log_uniform(rng, low, high)
    return size if size % 8 or rng.random() < 0.25 else size + rng.randint(1, 7)


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, max(low, round(math.exp(rng.uniform(math.log(low), math.log(high + 1))))))


def batch(rng: random.Random) -> int:
    return log_uniform(rng, 1, 32)


def length(rng: random.Random) -> int:
    return log_uniform(rng, 1, 512)


def image(rng: random.Random, channels: int = 3) -> tuple[int, int, int, int]:
    """The shape of a batch of images as they come in: height and width within 160-640, mostly not equal."""
    return batch(rng), channels, rng.randint(160, 640), rng.randint(160, 640)


def features(rng: random.Random) -> tuple[int, int, int, int]:
    """The shape of feature maps of an image after 1 to 5 halvings."""
    halvings = rng.randint(1, 5)
    n, _, height, columns = image(rng)
    channels = width(rng, 8 << halvings, 24 << halvings)
    return n, channels, -(-height >> halvings), -(-columns >> halvings)


def stem(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*image(rng, rng.choice((1, 3, 3, 4))))
    kernel = rng.choice((3, 5, 7))
    return [ops.relu(net, ops.conv(net, x, width(rng, 8, 72), (kernel, kernel), stride=rng.choice((1, 2))))]


def pointwise(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    y = ops.conv(net, x, width(rng, 16, 640), (1, 1), stride=rng.choice((1, 1, 2)))
    return [rng.choice(ops.ACTIVATIONS)(net, y)]


def convolution(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    kernel = rng.choice(((3, 3), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (1, 7)))
    y = ops.conv(
        net, x, width(rng, 16, 320), kernel, stride=rng.choice((1, 1, 2)), dilation=rng.choice((1, 1, 1, 2))
    )
    return [rng.choice(ops.ACTIVATIONS)(net, y)]


def depthwise(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    kernel = rng.choice((3, 3, 5, 7))
    y = ops.conv(net, x, x.shape[1], (kernel, kernel), stride=rng.choice((1, 1, 2)), groups=x.shape[1])
    return [rng.choice(ops.ACTIVATIONS)(net, y)]


def grouped(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    n, _, height, columns = features(rng)
    groups, each = rng.choice((2, 4, 8, 32)), rng.choice((4, 6, 8, 12, 16))
    x = net.input(n, groups * each, height, columns)
    return [ops.relu(net, ops.conv(net, x, groups * each, (3, 3), groups=groups))]


def pooling(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    kernel = rng.choice((2, 3))
    return [ops.pool(net, x, rng.choice(("MaxPool", "AveragePool")), kernel, rng.choice((1, 2)))]


def dense(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(batch(rng) * length(rng), width(rng, 32, 3000))
    return [rng.choice(ops.ACTIVATIONS)(net, ops.linear(net, x, width(rng, 16, 3000)))]


def matrices(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    """A product of two computed matrices, one for each head."""
    heads, rows, inner, columns = batch(rng), length(rng), width(rng, 16, 512), length(rng)
    return [ops.matmul(net, net.input(heads, rows, inner), net.input(heads, inner, columns))]


def row(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(batch(rng), length(rng), width(rng, 32, 2000))
    return [rng.choice((ops.softmax, ops.layer_norm))(net, x)]


def reduction(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    axes = rng.choice(((0,), (1,), (2, 3), (3,), (0, 2, 3), (1, 2)))
    return [ops.reduce(net, x, rng.choice(("ReduceMean", "ReduceMax")), axes)]


def elementwise(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(batch(rng), length(rng), width(rng, 32, 2000))
    y = ops.add(net, x, net.weight(x.shape[-1]))
    for activation in rng.sample(ops.ACTIVATIONS, 2):
        y = activation(net, y)
    return [ops.tanh(net, ops.mul(net, y, x))]


def permutation(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(*features(rng))
    order = rng.sample(range(4), 4)
    return [ops.transpose(net, x, order)]


def self_attention(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    heads, each = rng.randint(1, 12), rng.choice((16, 24, 32, 40, 64, 80))
    x = net.input(log_uniform(rng, 1, 8), length(rng), heads * each)
    return [ops.attention(net, x, heads, each)]


def encoder_layer(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    """A layer of a transformer, its normalisations first."""
    heads, each = rng.randint(2, 12), rng.choice((24, 32, 36, 64))
    x = net.input(log_uniform(rng, 1, 8), length(rng), heads * each)
    mixed = ops.add(net, x, ops.attention(net, ops.layer_norm(net, x), heads, each))
    inner = ops.gelu(net, ops.linear(net, ops.layer_norm(net, mixed), width(rng, 100, 2400)))
    return [ops.add(net, mixed, ops.linear(net, inner, heads * each))]


def perceptron(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    x = net.input(batch(rng), width(rng, 10, 1000))
    for _ in range(rng.randint(2, 5)):
        x = rng.choice(ops.ACTIVATIONS[:3])(net, ops.linear(net, x, width(rng, 16, 1500)))
    return [ops.softmax(net, ops.linear(net, x, rng.randint(2, 1000)))]


def recurrent(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    return [ops.lstm(net, net.input(length(rng), batch(rng), width(rng, 16, 300)), width(rng, 16, 400))]


def residual_network(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    """A stem, pooling, and some residual blocks of two 3x3 convolutions."""
    channels = width(rng, 16, 72)
    x = ops.relu(net, ops.conv(net, net.input(*image(rng)), channels, (7, 7), stride=2))
    x = ops.pool(net, x, "MaxPool", 2, 2)
    for _ in range(rng.randint(1, 3)):
        channels = round(channels * rng.uniform(1.0, 2.2))
        x = ops.relu(net, ops.conv(net, x, channels, (3, 3), stride=2))
        y = ops.relu(net, ops.conv(net, x, channels, (3, 3)))
        x = ops.relu(net, ops.add(net, x, ops.conv(net, y, channels, (3, 3))))
    return [_classes(net, rng, x)]


def mobile_network(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    """A stem and some inverted residual blocks, some with squeeze and excitation."""
    activation = rng.choice((ops.relu, ops.silu, ops.hard_swish))
    x = activation(net, ops.conv(net, net.input(*image(rng)), width(rng, 8, 40), (3, 3), stride=2))
    for _ in range(rng.randint(2, 4)):
        x = _inverted_residual(net, rng, x, activation)
    return [_classes(net, rng, x)]


def _inverted_residual(
    net: Sketch, rng: random.Random, x: Tensor, activation: Callable[[Sketch, Tensor], Tensor]
) -> Tensor:
    stride, kernel, wide = rng.choice((1, 2, 2)), rng.choice((3, 3, 5)), x.shape[1] * rng.choice((3, 4, 6))
    y = activation(net, ops.conv(net, x, wide, (1, 1)))
    y = activation(net, ops.conv(net, y, wide, (kernel, kernel), stride=stride, groups=wide))
    if rng.random() < 0.5:
        squeezed = ops.relu(net, ops.conv(net, ops.global_pool(net, y), max(4, wide // 12), (1, 1)))
        gates = ops.conv(net, squeezed, wide, (1, 1))
        y = ops.mul(net, y, net.node("Sigmoid", [gates], ops.sigmoid_of(gates.value)))
    channels = x.shape[1] if stride == 1 else width(rng, x.shape[1], 2 * x.shape[1])
    y = ops.conv(net, y, channels, (1, 1))
    return ops.add(net, x, y) if y.shape == x.shape else y


def pyramid(net: Sketch, rng: random.Random) -> Sequence[Tensor]:
    """Down and up again, with a concatenation over the gap, as networks for segmentation do."""
    n, _, height, columns = image(rng)
    low = width(rng, 8, 40)
    x = net.input(n, 3, height // 4 * 4, columns // 4 * 4)
    fine = ops.leaky_relu(net, ops.conv(net, x, low, (3, 3), stride=2))
    coarse = ops.leaky_relu(net, ops.conv(net, fine, width(rng, low, 3 * low), (3, 3), stride=2))
    joined = ops.concat(net, [ops.upsample(net, coarse), fine], 1)
    return [
        ops.conv(net, ops.leaky_relu(net, ops.conv(net, joined, low, (3, 3))), rng.randint(1, 21), (1, 1))
    ]


def _classes(net: Sketch, rng: random.Random, x: Tensor) -> Tensor:
    pooled = ops.global_pool(net, x)
    return ops.linear(net, ops.reshape(net, pooled, *pooled.shape[:2]), rng.randint(2, 1000))


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        stem, pointwise, convolution, depthwise, grouped, pooling, dense, matrices, row, reduction, elementwise,
        permutation, self_attention, encoder_layer, perceptron, recurrent, residual_network, mobile_network, pyramid,
    )
}  # fmt: skip
