"""Large models for measuring compile time: families of ONNX graphs that grow to any number of nodes.

Each family makes what exporters write: blocks that repeat, constants inline, shapes computed by nodes. Weights are
small and random; what the models compute does not matter, only what a compiler has to do for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_Dims = Sequence[int | str]


class _Graph:
    """A model while it is made: each method adds nodes and gives the name of the last one's result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._random = np.random.default_rng(0)

    def input(self, shape: _Dims, dtype: int = TensorProto.FLOAT) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def op(self, kind: str, *operands: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], name=f"{kind}_{name}", **attributes))
        return name

    def weight(self, *shape: int) -> str:
        values = self._random.standard_normal(shape).astype(np.float32) / np.sqrt(max(1, np.prod(shape[1:])))
        return self.constant(values.astype(np.float32))

    def constant(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value).reshape(()))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> str:
        pads = [kernel // 2] * 4
        w, b = self.weight(outputs, inputs // groups, kernel, kernel), self.weight(outputs)
        return self.op(
            "Conv", x, w, b, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups
        )  # fmt: skip

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.weight(outputs), self.op("MatMul", x, self.weight(inputs, outputs)))

    def layer_norm(self, x: str, width: int) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.number(2.0)), axes=[-1])
        scale = self.op("Sqrt", self.op("Add", variance, self.number(1e-5)))
        normal = self.op("Mul", self.op("Div", centred, scale), self.weight(width))
        return self.op("Add", normal, self.weight(width))

    def gelu(self, x: str) -> str:
        e = self.op("Erf", self.op("Div", x, self.number(2**0.5)))
        product = self.op("Mul", x, self.op("Add", e, self.number(1.0)))
        return self.op("Mul", product, self.number(0.5))

    def model(self, *results: str) -> onnx.ModelProto:
        outputs = [helper.make_tensor_value_info(r, TensorProto.FLOAT, None) for r in results]
        graph = helper.make_graph(self.nodes, "large", self.inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        inferred = onnx.shape_inference.infer_shapes(model)
        for output, known in zip(model.graph.output, inferred.graph.output, strict=True):
            output.CopyFrom(known)
        return model


def elementwise_chain(nodes: int) -> onnx.ModelProto:
    """One long chain of cheap operators on a small tensor."""
    g = _Graph()
    x = g.input([8, 64])
    while len(g.nodes) < nodes:
        k = len(g.nodes) % 5
        x = g.op(("Add", "Mul", "Tanh", "Sub", "Relu")[k], x, *([g.weight(64)] if k in (0, 1, 3) else []))
    return g.model(x)


def conv_blocks(nodes: int) -> onnx.ModelProto:
    """Inverted bottlenecks with squeeze-and-excitation in four stages (Tan & Le, "EfficientNet", 2019)."""
    g = _Graph()
    widths = (16, 24, 40, 80)
    x = g.silu(g.conv(g.input([1, 3, 64, 64]), 3, widths[0], 3, stride=2))
    width = widths[0]
    for stage, following in enumerate(widths):
        while True:
            stride = 2 if following != width else 1
            y = _inverted_bottleneck(g, x, width, following, stride)
            x, width = (g.op("Add", x, y) if stride == 1 else y), following
            if len(g.nodes) >= nodes * (stage + 1) // len(widths) - 8:
                break
    return g.model(g.op("GlobalAveragePool", x))


def _inverted_bottleneck(g: _Graph, x: str, width: int, following: int, stride: int) -> str:
    inner = 4 * width
    x = g.silu(g.conv(x, width, inner, 1))
    x = g.silu(g.conv(x, inner, inner, 3, stride=stride, groups=inner))
    squeezed = g.silu(g.conv(g.op("GlobalAveragePool", x), inner, inner // 16, 1))
    x = g.op("Mul", x, g.op("Sigmoid", g.conv(squeezed, inner // 16, inner, 1)))
    return g.conv(x, inner, following, 1)


def transformer(nodes: int) -> onnx.ModelProto:
    """Encoder layers with sizes that are known, exported operator by operator."""
    g = _Graph()
    x = g.input([1, 16, 64])
    while len(g.nodes) < nodes - 20:
        x = _encoder_layer(g, x, 64, 4, lambda _: g.integers(1, 16, 4, 16), lambda _: g.integers(1, 16, 64))
    return g.model(g.layer_norm(x, 64))


def symbolic_transformer(nodes: int) -> onnx.ModelProto:
    """Encoder layers with a batch and a length that are unknown: shapes are computed by nodes, as PyTorch exports."""
    g = _Graph()
    x = g.input(["batch", "length", 64])

    def size(y: str, axis: int) -> str:
        found = g.op("Gather", g.op("Shape", y), g.constant(np.array(axis, np.int64)), axis=0)
        return g.op("Unsqueeze", found, g.integers(0))

    def heads(y: str) -> str:
        return g.op("Concat", size(y, 0), size(y, 1), g.integers(4), g.integers(16), axis=0)

    def joined(y: str) -> str:
        return g.op("Concat", size(y, 0), size(y, 1), g.integers(64), axis=0)

    while len(g.nodes) < nodes - 40:
        x = _encoder_layer(g, x, 64, 4, heads, joined)
    return g.model(g.layer_norm(x, 64))


def _encoder_layer(
    g: _Graph, x: str, width: int, heads: int, split: Callable[[str], str], joined: Callable[[str], str]
) -> str:
    """Attention and a perceptron, each with its norm before; `split` and `joined` give shapes to reshape a value to."""
    y = g.layer_norm(x, width)
    q, k, v = (g.linear(y, width, width) for _ in range(3))
    q, k, v = (g.op("Reshape", t, split(t)) for t in (q, k, v))
    q, v = (g.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
    k = g.op("Transpose", k, perm=[0, 2, 3, 1])
    scores = g.op("Div", g.op("MatMul", q, k), g.number((width / heads) ** 0.5))
    y = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    x = g.op("Add", x, g.linear(g.op("Reshape", y, joined(y)), width, width))
    y = g.linear(g.gelu(g.linear(g.layer_norm(x, width), width, 2 * width)), 2 * width, width)
    return g.op("Add", x, y)


def branches(nodes: int) -> onnx.ModelProto:
    """Blocks of four branches that are concatenated (Szegedy et al., "Inception", 2015)."""
    g = _Graph()
    width = 32
    x = g.op("Relu", g.conv(g.input([1, 3, 32, 32]), 3, width, 3, stride=2))
    while len(g.nodes) < nodes - 8:
        a = g.op("Relu", g.conv(x, width, 8, 1))
        b = g.op("Relu", g.conv(g.op("Relu", g.conv(x, width, 8, 1)), 8, 8, 3))
        c = g.op("Relu", g.conv(g.op("Relu", g.conv(x, width, 8, 1)), 8, 8, 5))
        pooled = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        x = g.op("Concat", a, b, c, g.op("Relu", g.conv(pooled, width, 8, 1)), axis=1)
    return g.model(x)


def slices(nodes: int) -> onnx.ModelProto:
    """A value that is sliced into many parts, each computed on and concatenated again, several times."""
    g = _Graph()
    x = g.input([1, 512])
    parts = min(64, max(2, nodes // 8))
    width = 512 // parts
    while len(g.nodes) < nodes - parts:
        ends = [(k * width, (k + 1) * width) for k in range(parts)]
        pieces = [g.op("Slice", x, g.integers(a), g.integers(b), g.integers(1)) for a, b in ends]
        pieces = [g.op("Tanh", g.op("Mul", piece, g.weight(width))) for piece in pieces]
        x = g.op("Softmax", g.op("Concat", *pieces, axis=1), axis=-1)
    return g.model(x)


def distinct_products(nodes: int) -> onnx.ModelProto:
    """Perceptrons of which no two layers have the same sizes: every kernel is another."""
    g = _Graph()
    width, x = 16, g.input([4, 16])
    while len(g.nodes) < nodes:
        following = 17 + len(g.nodes) // 3 * 7 % 1009 % 240 + len(g.nodes) // 720
        x = g.op("Relu", g.linear(x, width, following))
        width = following
    return g.model(x)


FAMILIES: dict[str, Callable[[int], onnx.ModelProto]] = {
    f.__name__: f
    for f in (
        elementwise_chain, conv_blocks, transformer, symbolic_transformer, branches, slices, distinct_products,
    )
}  # fmt: skip
