"""Networks that are read and written again: the same answers, names and dims."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.exporters.round_trip import agree, operators, parsed

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


CNN = """
network (float[batch, 3, 17, "height"] image) => (float[batch, 10] scores) {
    [first] a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, w1, b1)
    [norm] n = BatchNormalization (a, scale, shift, mean, variance)
    [act] r = Relu (n)
    [pool] p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (r)
    [deep] d = Conv <group = 8, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p, w2)
    [sum] s = Add (d, p)
    [mean_of_all] g = GlobalAveragePool (s)
    [flat] f = Flatten (g)
    [head] scores = Gemm <transB = 1> (f, w3, b3)
}
"""

TRANSFORMER = """
network (float[batch, time, 32] x, bool[batch, time] mask) => (float[batch, time, 32] y) {
    [norm1] n = LayerNormalization <axis = -1> (x, scale, shift)
    [query] q = MatMul (n, wq)
    [key] k = MatMul (n, wk)
    [value] v = MatMul (n, wv)
    [heads] heads = Constant <value_ints = [0, 0, 4, 8]> ()
    q4 = Reshape (q, heads)
    k4 = Reshape (k, heads)
    v4 = Reshape (v, heads)
    qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    kt = Transpose <perm = [0, 2, 3, 1]> (k4)
    vt = Transpose <perm = [0, 2, 1, 3]> (v4)
    [products] scores = MatMul (qt, kt)
    eight = Constant <value_float = 0.35> ()
    scaled = Mul (scores, eight)
    places = Constant <value_ints = [1, 2]> ()
    wide = Unsqueeze (mask, places)
    never = Constant <value_float = -10000.0> ()
    masked = Where (wide, scaled, never)
    [shares] shares = Softmax <axis = -1> (masked)
    mixed = MatMul (shares, vt)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    merged = Constant <value_ints = [0, 0, 32]> ()
    flat = Reshape (back, merged)
    [out] o = MatMul (flat, wo)
    [residual] r = Add (x, o)
    [norm2] m = LayerNormalization <axis = -1> (r, scale, shift)
    [up] u = MatMul (m, w1)
    [gelu] g = Gelu (u)
    [down] d = MatMul (g, w2)
    [sum] y = Add (r, d)
}
"""


@pytest.fixture(scope="module")
def cnn() -> onnx.ModelProto:
    vectors = {name: np.abs(normal(8)) + 0.5 for name in ("scale", "variance")} | {
        name: normal(8) for name in ("shift", "mean", "b1")
    }
    weights = {"w1": normal(8, 3, 3, 3), "w2": normal(8, 1, 3, 3), "w3": normal(10, 8), "b3": normal(10)}
    return parsed(CNN, **vectors, **weights)


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    weights = {name: normal(32, 32) / 6 for name in ("wq", "wk", "wv", "wo")}
    weights |= {"w1": normal(32, 64) / 6, "w2": normal(64, 32) / 6, "scale": normal(32), "shift": normal(32)}
    return parsed(TRANSFORMER, **weights)


@pytest.mark.parametrize("opset", [14, 17, 21, 23, 25])
def test_a_network_of_convolutions(cnn: onnx.ModelProto, opset: int) -> None:
    written = agree(cnn, {"image": normal(2, 3, 17, 21)}, {"image": normal(1, 3, 17, 8)}, opset=opset)
    assert written.opset_import[0].version == opset
    kinds = operators(written)
    assert {"Conv", "BatchNormalization", "Relu", "MaxPool", "Flatten", "Gemm"} <= set(kinds)


@pytest.mark.parametrize("opset", [14, 17, 20, 23])
def test_a_transformer(transformer: onnx.ModelProto, opset: int) -> None:
    feeds = [
        {"x": normal(b, t, 32), "mask": RNG.random((b, t)) < 0.8} for b, t in ((2, 5), (1, 1), (3, 0))
    ]
    written = agree(transformer, *feeds, opset=opset)
    kinds = set(operators(written))
    assert ("LayerNormalization" in kinds) == (opset >= 17)
    assert ("Gelu" in kinds) == (opset >= 20)
    assert "Shape" not in kinds  # heads are merged and split without a size that is computed


def test_names_are_kept(cnn: onnx.ModelProto) -> None:
    written = agree(cnn)
    graph = written.graph
    assert [i.name for i in graph.input] == ["image"] and [o.name for o in graph.output] == ["scores"]
    names = {node.name for node in graph.node}
    assert {"first", "norm", "act", "pool", "deep", "sum", "head"} <= names
    assert {"a", "n", "r", "p", "d", "s"} <= {name for node in graph.node for name in node.output}
    assert {"w1", "w2", "w3", "scale", "shift"} <= {t.name for t in graph.initializer}
    dims = [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["batch", 3, 17, "height"]
    assert graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_constants_are_kept_once(transformer: onnx.ModelProto) -> None:
    written = agree(transformer)
    names = [t.name for t in written.graph.initializer]
    assert len(names) == len(set(names))
    arrays = [onnx.numpy_helper.to_array(t).tobytes() for t in written.graph.initializer]
    assert len(arrays) == len(set(arrays))


def test_a_convolution_keeps_its_bias_and_an_activation_its_limits(cnn: onnx.ModelProto) -> None:
    kinds = operators(agree(cnn))
    assert kinds.count("Conv") == 2 and kinds.count("Add") == 2 and "Max" not in kinds
