"""Convolutions whose windows mostly lie in the padding leave its lines out, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.graph.programs import find, ops, program, relu, run, weights
from tests.ops.samples_nn import convolution
from tilewright.graph.algorithms.padding_lines import PaddingLines
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.ir.core import Module
from tilewright.ir.sym import var
from tilewright.ops import contract as ct


def taken_apart(shape: tuple[Any, ...], kernel: tuple[int, ...], pads: int, **attrs: Any) -> Module:
    ends = (pads,) * len(kernel)
    channels = shape[1]

    def body(x):
        w = weights(64, channels // attrs.get("groups", 1), *kernel)
        return relu(ct.conv(x, w, pads_begin=ends, pads_end=ends, **attrs))

    module = program(body, shape)
    run(module, BlockChannels(), PaddingLines(), tolerance=1e-4, target="zen3")
    return module


def lines_read(module: Module) -> list[tuple[int, int]]:
    """Lines of the result and of the filters of each convolution."""
    found = [op for op in module.main.body.ops if op.name == "conv_blocked"]
    return [(op.result.type.shape[2].value, op.operands[1].type.shape[2].value) for op in found]


@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "attrs", "parts"),
    [
        ((1, 64, 33, 33), (3, 3), 18, {"dilations": (18, 18)}, [(15, 2), (3, 1), (15, 2)]),
        ((1, 64, 28, 28), (3, 3), 12, {"dilations": (12, 12)}, [(12, 2), (4, 3), (12, 2)]),
        ((2, 64, 33, 9), (3, 3), 18, {"dilations": (18, 1)}, [(15, 2), (3, 1), (15, 2)]),
        ((1, 64, 400), (3,), 300, {"dilations": (300,)}, [(100, 2), (200, 1), (100, 2)]),
        ((1, 64, 33, 33), (3, 3), 18, {"dilations": (18, 18), "strides": (2, 1)}, [(8, 2), (1, 1), (8, 2)]),
        ((1, 64, 33, 33), (3, 3), 18, {"dilations": (18, 18), "groups": 2}, [(15, 2), (3, 1), (15, 2)]),
    ],
)
def test_lines_of_padding_are_not_multiplied(shape, kernel, pads, attrs, parts) -> None:
    module = taken_apart(shape, kernel, pads, **attrs)
    assert lines_read(module) == parts
    assert find(module, "concat").attrs["axis"] == 2


@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "attrs"),
    [
        ((1, 64, 33, 33), (3, 3), 2, {"dilations": (2, 2)}),
        ((1, 64, 33, 33), (3, 3), 18, {"dilations": (1, 1)}),
        ((1, 16, 7, 1), (3, 3), 4, {"dilations": (4, 4)}),
        ((1, 64, var("h", 1), 33), (3, 3), 18, {"dilations": (18, 18)}),
    ],
    ids=["little padding", "results of padding alone", "little work", "any size"],
)
def test_others_stay_whole(shape, kernel, pads, attrs) -> None:
    assert ops(taken_apart(shape, kernel, pads, **attrs)).count("conv_blocked") == 1


def test_an_image_within_one_line_of_the_windows_reads_that_line() -> None:
    module = taken_apart((1, 64, 30, 33), (3, 3), 30, dilations=(30, 30))
    assert lines_read(module) == [(30, 1)]
    assert "concat" not in ops(module)


def test_native_code_computes_the_convolution() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((1, 64, 33, 33)), rng.standard_normal((64, 64, 3, 3)) * 0.1
    x, w = x.astype(np.float32), w.astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[18] * 4, dilations=[18, 18]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("y", None))]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [numpy_helper.from_array(w, "w")])
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    wanted = np.maximum(
        convolution(x, w, dilations=(18, 18), pads_begin=(18, 18), pads_end=(18, 18)), 0
    )
    for numerics in ("default", "strict"):
        (y,) = tilewright.compile(proto, cache=False, threads=2, numerics=numerics)(x)
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
