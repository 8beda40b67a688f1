"""Kernels store the bytes of a quantised network and not what these stand for."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compilation import Compilation, Setting
from tilewright.fitting import Fit
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.cascades.choose import FusedProgram
from tilewright.graph.cascades.narrow import NarrowStores
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.target.named import parse_target

SHAPE = (1, 8, 6, 6)


def network() -> onnx.ModelProto:
    """A quantised convolution, whose result is read by a mean and by an addition."""
    w = np.random.default_rng(0).integers(-9, 9, (8, 8, 3, 3)).astype(np.int8)
    scales = {"s": np.float32(0.3), "u": np.float32(0.02), "z": np.uint8(3), "z8": np.int8(0)}
    constants = {"w8": w, "v8": w[::-1].copy(), **scales}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "u", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "u", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w8", "u", "z8"], ["w"]),
        helper.make_node("Conv", ["d", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["cd"]),
        helper.make_node("GlobalAveragePool", ["cd"], ["mean"]),
        helper.make_node("DequantizeLinear", ["v8", "u", "z8"], ["v"]),
        helper.make_node("Conv", ["d", "v"], ["e"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["e", "cd"], ["sum"]),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
             for n, s in (("x", SHAPE), ("mean", (1, 8, 1, 1)), ("sum", SHAPE))]  # fmt: skip
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def widths(module: Module) -> list[int]:
    return sorted(v.tensor.dtype.bytes for v in FusedProgram(module.main).first)


def test_bytes_are_stored_and_results_are_the_same() -> None:
    compilation = Compilation(load_onnx(network()), Setting.of(Options(), parse_target("zen4"))).run("fused")
    module = compilation.module
    before, x = widths(module), np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    wanted = evaluate_func(module.main, module, [x])
    compilation.apply([NarrowStores()])
    found = evaluate_func(module.main, module, [x])
    assert 4 in before and widths(module) != before and sum(widths(module)) < sum(before)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)
    compilation.run("planned")


def test_products_are_rounded_as_they_were_where_they_were_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that reads them does not become one with them in native code."""
    model = network().SerializeToString()
    xs = np.random.default_rng(1).standard_normal((8, *SHAPE)).astype(np.float32)
    whole = tilewright.compile(model, threads=1, cache=False)
    monkeypatch.setattr("tilewright.compilation.fit", lambda *_: Fit(passes=(NarrowStores(),)))
    small = tilewright.compile(model, threads=1, cache=False)
    for x in xs:
        for a, b in zip(whole(x), small(x), strict=True):
            np.testing.assert_array_equal(a, b)
