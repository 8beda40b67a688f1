"""Networks of the usual kinds with few channels and random weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Types = Mapping[str, tuple[int, Sequence[int | str]]]
"""The element type and dims of tensors by name."""

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Of MobileNetV2 (Sandler et al., 2018): factor, channels, repetitions and stride of its stages."""
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Of ResNet-50 (He et al., 2016): channels, repetitions and stride."""


class Network:
    """A graph that grows node by node."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def weight(self, *shape: int) -> str:
        """Random weights, with a deviation that keeps the size of what they multiply."""
        scale = np.sqrt(2 / max(1, np.prod(shape[1:])))
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def node(self, kind: str, *inputs: str, out: Sequence[str] = (), **attrs: Any) -> str:
        """The first output of a node of this operator."""
        outputs = out or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, [*inputs], [*outputs], **attrs))
        return outputs[0]

    def model(self, name: str, inputs: Types, outputs: Types) -> bytes:
        infos = ([helper.make_tensor_value_info(n, *type) for n, type in side.items()] for side in (inputs, outputs))
        graph = helper.make_graph(self.nodes, name, *infos, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return bytes(made.SerializeToString())


class MobileNet(Network):
    """MobileNetV2 with an eighth of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = self.constant(np.float32(0)), self.constant(np.float32(6))  # type: ignore[arg-type]

    def conv(self, x: str, c: int, o: int, k: int, stride: int, groups: int = 1, *, is_linear: bool = False) -> str:
        weights = self.weight(o, c // groups, k, k), self.weight(o)
        y = self.node("Conv", x, *weights, group=groups, strides=[stride] * 2, pads=[k // 2] * 4)
        return y if is_linear else self.node("Clip", y, *self.limits)

    def block(self, x: str, c: int, o: int, factor: int, stride: int) -> str:
        wide = c * factor
        y = x if factor == 1 else self.conv(x, c, wide, 1, 1)
        y = self.conv(y, wide, wide, 3, stride, wide)
        y = self.conv(y, wide, o, 1, 1, is_linear=True)
        return self.node("Add", x, y) if stride == 1 and c == o else y


def mobilenet(pixels: int, classes: int) -> bytes:
    net = MobileNet()
    y, channels = net.conv("x", 3, 8, 3, 2), 8
    for factor, wide, count, stride in BLOCKS:
        for k in range(count):
            y, channels = net.block(y, channels, wide // 8, factor, stride if k == 0 else 1), wide // 8
    y = net.node("GlobalAveragePool", net.conv(y, channels, 160, 1, 1))
    y = net.node("Flatten", y)
    net.node("Gemm", y, net.weight(classes, 160), net.weight(classes), transB=1, out=["y"])
    types = {"x": (TensorProto.FLOAT, [1, 3, pixels, pixels])}, {"y": (TensorProto.FLOAT, [1, classes])}
    return net.model("mobilenet", *types)


class ResNet(Network):
    """ResNet-50 with a part of the channels, and its norms as nodes of their own."""

    def conv(self, x: str, c: int, o: int, k: int, stride: int = 1) -> str:
        y = self.node("Conv", x, self.weight(o, c, k, k), strides=[stride] * 2, pads=[k // 2] * 4)
        draw = self.rng.uniform
        statistics = [draw(0.5, 1, o), draw(-0.5, 0.5, o), draw(-0.5, 0.5, o), draw(0.5, 1.5, o)]
        return self.node("BatchNormalization", y, *(self.constant(s.astype(np.float32)) for s in statistics))

    def block(self, x: str, c: int, inner: int, stride: int) -> str:
        o = 4 * inner
        y = self.node("Relu", self.conv(x, c, inner, 1))
        y = self.node("Relu", self.conv(y, inner, inner, 3, stride))
        y = self.conv(y, inner, o, 1)
        return self.node("Relu", self.node("Add", y, x if c == o else self.conv(x, c, o, 1, stride)))


def resnet(pixels: int, classes: int, part: int) -> bytes:
    """With a channel of `part`."""
    net = ResNet()
    channels = 64 // part
    y = net.node("Relu", net.conv("x", 3, channels, 7, 2))
    y = net.node("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for wide, count, stride in STAGES:
        for k in range(count):
            y, channels = net.block(y, channels, wide // part, stride if k == 0 else 1), 4 * wide // part
    y = net.node("Flatten", net.node("GlobalAveragePool", y))
    net.node("Gemm", y, net.weight(classes, channels), net.weight(classes), transB=1, out=["y"])
    types = {"x": (TensorProto.FLOAT, [1, 3, pixels, pixels])}, {"y": (TensorProto.FLOAT, [1, classes])}
    return net.model("resnet", *types)


class Transformer(Network):
    """Layers of attention and two products with GELU between; tokens are [batch, tokens]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.split = self.constant(np.array([0, 0, heads, width // heads]))
        self.joined = self.constant(np.array([0, 0, width]))

    def embedded(self, ids: str, vocabulary: int) -> str:
        return self.node("Gather", self.weight(vocabulary, self.width), ids)

    def norm(self, x: str) -> str:
        one, zero = (self.constant(np.full(self.width, n, np.float32)) for n in (1, 0))
        mean = self.node("ReduceMean", x, axes=[-1])
        off = self.node("Sub", x, mean)
        squares = self.node("Mul", off, off)
        size = self.node("Add", self.node("ReduceMean", squares, axes=[-1]), self.constant(np.array(1e-5, np.float32)))
        return self.node("Add", self.node("Mul", self.node("Div", off, self.node("Sqrt", size)), one), zero)

    def linear(self, x: str, rows: int, columns: int) -> str:
        w = (self.rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        bias = self.constant((self.rng.standard_normal(columns) / 8).astype(np.float32))
        return self.node("Add", self.node("MatMul", x, self.constant(w)), bias)

    def heads_of(self, x: str) -> str:
        parts = self.node("Reshape", self.linear(x, self.width, self.width), self.split)
        return self.node("Transpose", parts, perm=[0, 2, 1, 3])

    def attended(self, q: str, k: str, v: str, seen: str) -> str:
        """softmax(q k^T / sqrt(d)) v, where `seen` says which keys a query sees."""
        scores = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2]))
        scale = self.constant(np.array(np.sqrt(self.heads / self.width), np.float32))
        never = self.constant(np.array(-1e4, np.float32))
        scores = self.node("Where", seen, self.node("Mul", scores, scale), never)
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        return self.node("Reshape", self.node("Transpose", mixed, perm=[0, 2, 1, 3]), self.joined)

    def gelu(self, x: str) -> str:
        half, one, root = (self.constant(np.array(n, np.float32)) for n in (0.5, 1, np.sqrt(0.5)))
        risen = self.node("Add", self.node("Erf", self.node("Mul", x, root)), one)
        return self.node("Mul", self.node("Mul", x, half), risen)

    def inner(self, x: str) -> str:
        y = self.gelu(self.linear(self.norm(x), self.width, 4 * self.width))
        return self.node("Add", x, self.linear(y, 4 * self.width, self.width))


def encoder(layers: int, width: int, heads: int) -> bytes:
    """Of tokens with a mask."""
    net = Transformer(width, heads)
    x = net.embedded("ids", 50)
    seen = net.node("Unsqueeze", "mask", net.constant(np.array([1, 2])))
    for _ in range(layers):
        y = net.norm(x)
        mixed = net.attended(net.heads_of(y), net.heads_of(y), net.heads_of(y), seen)
        x = net.inner(net.node("Add", x, net.linear(mixed, width, width)))
    net.node("Tanh", x, out=["y"])
    dims = ["batch", "tokens"]
    inputs: Types = {"ids": (TensorProto.INT64, dims), "mask": (TensorProto.BOOL, dims)}
    return net.model("encoder", inputs, {"y": (TensorProto.FLOAT, [*dims, width])})


def decoder(layers: int, width: int, heads: int) -> bytes:
    """With caches that go in and come out with the new rows behind, as it is exported."""
    net = Transformer(width, heads)
    x = net.embedded("ids", 50)
    before = net.node("Shape", "past.0.key", start=2, end=3)
    zero, one = (net.constant(np.array(n)) for n in (0, 1))
    past = net.node("Squeeze", before)
    total = net.node("Add", past, net.node("Squeeze", net.node("Shape", "ids", start=1, end=2)))
    keys = net.node("Range", zero, total, one)
    queries = net.node("Unsqueeze", net.node("Range", past, total, one), net.constant(np.array([1])))
    seen = net.node("LessOrEqual", keys, queries)
    inputs: dict[str, Any] = {"ids": (TensorProto.INT64, [1, "tokens"])}
    outputs: dict[str, Any] = {"y": (TensorProto.FLOAT, [1, "tokens", 50])}
    for k in range(layers):
        y = net.norm(x)
        rows = []
        for name in ("key", "value"):
            inputs[f"past.{k}.{name}"] = TensorProto.FLOAT, [1, heads, "past", width // heads]
            outputs[f"present.{k}.{name}"] = TensorProto.FLOAT, [1, heads, "total", width // heads]
            rows.append(net.node("Concat", f"past.{k}.{name}", net.heads_of(y), axis=2, out=[f"present.{k}.{name}"]))
        mixed = net.attended(net.heads_of(y), *rows, seen)
        x = net.inner(net.node("Add", x, net.linear(mixed, width, width)))
    net.node("Add", net.linear(net.norm(x), width, 50), net.constant(np.zeros(50, np.float32)), out=["y"])
    return net.model("decoder", inputs, outputs)
