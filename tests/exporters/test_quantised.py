"""Quantised values: scales for tensors, axes and blocks, whatever form the graph has them in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.exporters.round_trip import agree, operators, parsed

RNG = np.random.default_rng(0)

QDQ = """
g (float[2, 4, 6, 6] x) => (float[2, 8, 6, 6] y) {
    [qx] xq = QuantizeLinear (x, xs, xz)
    [dx] xd = DequantizeLinear (xq, xs, xz)
    [dw] wd = DequantizeLinear <axis = 0> (w, ws, wz)
    [db] bd = DequantizeLinear (b, bs)
    [layer] c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xd, wd, bd)
    [qy] q = QuantizeLinear (c, ys, yz)
    [dy] y = DequantizeLinear (q, ys, yz)
}
"""


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_quantised_convolution(dtype: type, zero: int) -> None:
    proto = parsed(
        QDQ,
        xs=np.float32(0.05), xz=np.asarray(zero, dtype), ws=np.linspace(0.01, 0.1, 8).astype(np.float32),
        wz=np.zeros(8, np.int8), w=RNG.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        b=RNG.integers(-99, 99, 8).astype(np.int32), bs=np.float32(0.01), ys=np.float32(0.1),
        yz=np.asarray(zero, dtype),
    )  # fmt: skip
    written = agree(proto, {"x": RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)})
    kinds = operators(written)
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear"), kinds.count("Conv")) == (2, 4, 1)
    assert set(kinds) == {"QuantizeLinear", "DequantizeLinear", "Conv"}
    held = {t.name: t for t in written.graph.initializer}
    assert held["w"].data_type == onnx.TensorProto.INT8
    per_axis = next(node for node in written.graph.node if node.input[0] == "w")
    assert onnx.helper.get_node_attr_value(per_axis, "axis") == 0 and list(held[per_axis.input[1]].dims) == [8]


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_weights_of_4_bits_in_blocks(kind: str) -> None:
    code = onnx.TensorProto.INT4 if kind == "int4" else onnx.TensorProto.UINT4
    scales = RNG.uniform(0.01, 0.1, (32 // 16, 8)).astype(np.float32)
    proto = parsed(
        "g (float[n, 32] x) => (float[n, 8] y) "
        "{ wd = DequantizeLinear <axis = 0, block_size = 16> (w, s, z) y = MatMul (x, wd) }",
        s=scales,
    )
    low = -8 if kind == "int4" else 0
    for name, shape in (("w", (32, 8)), ("z", (2, 8))):
        values = RNG.integers(low, low + 16, shape)
        proto.graph.initializer.append(onnx.helper.make_tensor(name, code, shape, values.reshape(-1)))
    written = agree(proto, {"x": RNG.standard_normal((3, 32)).astype(np.float32)})
    assert operators(written) == ["DequantizeLinear", "MatMul"] and written.opset_import[0].version == 21
    assert onnx.helper.get_node_attr_value(written.graph.node[0], "block_size") == 16
    held = {t.name: t for t in written.graph.initializer}
    assert held["w"].data_type == code and len(held["w"].raw_data) == 32 * 8 // 2


@pytest.mark.parametrize("opset", [14, 17, 20, 21, 24])
def test_products_of_integers(opset: int) -> None:
    proto = parsed(
        "g (uint8[2, 3, 6] x, int8[6, 5] w, uint8 xz, int8[5] wz) => (int32[2, 3, 5] y) "
        "{ y = MatMulInteger (x, w, xz, wz) }"
    )
    feeds = {
        "x": RNG.integers(0, 256, (2, 3, 6)).astype(np.uint8), "w": RNG.integers(-128, 128, (6, 5)).astype(np.int8),
        "xz": np.uint8(7), "wz": np.arange(-2, 3).astype(np.int8),
    }  # fmt: skip
    assert "MatMulInteger" in operators(agree(proto, feeds, opset=opset))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales_of_short_floats(dtype: str) -> None:
    code = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}[dtype]
    proto = parsed(f"g (int8[2, 3] x) => ({dtype}[2, 3] y) {{ y = DequantizeLinear (x, s, z) }}", z=np.int8(3))
    proto.graph.initializer.append(onnx.helper.make_tensor("s", code, (), [0.25]))
    written = agree(proto)
    assert operators(written) == ["DequantizeLinear"]
    assert {t.data_type for t in written.graph.initializer} == {code, onnx.TensorProto.INT8}
