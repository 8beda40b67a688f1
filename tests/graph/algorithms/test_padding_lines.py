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
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.algorithms.padding_lines import PaddingLines
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.ir.core import Module
from tilewright.ir.sym import var
from tilewright.loops.edit import kind_of
from tilewright.ops import contract as ct
from tilewright.options import Options
from tilewright.target.named import parse_target


def taken_apart(
    shape: tuple[Any, ...], kernel: tuple[int, ...], pads: int, lines: int | None = None, **attrs: Any
) -> Module:
    ends = (pads if lines is None else lines, *(pads for _ in kernel[1:]))
    channels = shape[1]

    def body(x):
        w = weights(64, channels // attrs.get("groups", 1), *kernel)
        return relu(ct.conv(x, w, pads_begin=ends, pads_end=ends, **attrs))

    module = program(body, shape)
    run(module, BlockChannels(), PaddingLines(), tolerance=1e-4, target="zen3")
    return module


def conv_and_relu(shape: tuple[int, ...], size: int, dilation: int) -> onnx.ModelProto:
    w = (np.random.default_rng(3).standard_normal((64, shape[1], size, size)) * 0.1).astype(np.float32)
    pads = [dilation * (size // 2)] * 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=pads, dilations=[dilation, dilation]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


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


@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "attrs"),
    [
        ((1, 64, 19, 9), (9, 9), 16, {"dilations": (4, 4)}),
        ((2, 64, 12, 12), (7, 7), 9, {"dilations": (3, 3), "strides": (2, 1)}),
        ((1, 64, 12, 12), (7, 7), 9, {"dilations": (3, 3), "groups": 2}),
        ((1, 64, 9, 3, 4), (5, 3, 3), 4, {"dilations": (2, 4, 4)}),
        ((1, 64, 9, 9), (7, 7), 20, {"dilations": (2, 2)}),
    ],
    ids=["plain", "strides", "groups", "volume", "results of padding alone"],
)
def test_many_parts_are_conditions_on_lines(shape, kernel, pads, attrs) -> None:
    module = taken_apart(shape, kernel, pads, **attrs)
    conv = find(module, "conv_blocked")
    assert "concat" not in ops(module)
    lines = (pads, *(0 for _ in kernel[1:]))
    assert (conv.attrs["pads_begin"], conv.attrs["pads_end"]) == (lines, lines)


def test_lines_of_one_position_stay_padded() -> None:
    conv = find(taken_apart((1, 64, 40, 1), (9, 1), 0, lines=16, dilations=(4, 1)), "conv_blocked")
    assert not any(conv.attrs["pads_begin"])


def test_a_condition_on_lines_is_around_the_lines_of_the_window() -> None:
    """And not around single products."""
    module = load_onnx(conv_and_relu((1, 64, 19, 9), 9, dilation=4).SerializeToString())
    compiled = Compilation(module, Setting.of(Options(), parse_target("zen3"))).run("scheduled").module
    (kernel,) = (func for name, func in compiled.funcs.items() if "conv_blocked" in name)
    conditions = [op for op in kernel.body.walk() if op.name == "if" and len(op.attrs["guard"]) == 2]
    assert conditions
    for condition in conditions:
        loops = [op for op in condition.walk() if op.name == "for" and kind_of(op) == "serial"]
        assert len(loops) == 2, "columns of the window, and channels of a block"
    assert not any(op.name == "load" and "guard" in op.attrs for op in kernel.body.walk())


@pytest.mark.parametrize(("shape", "size", "dilation"), [((1, 64, 33, 33), 3, 18), ((2, 64, 12, 9), 7, 3)])
def test_native_code_computes_the_convolution(shape, size, dilation) -> None:
    rng = np.random.default_rng(4)
    proto, pads = conv_and_relu(shape, size, dilation), (dilation * (size // 2),) * 2
    x = rng.standard_normal(shape).astype(np.float32)
    w = numpy_helper.to_array(proto.graph.initializer[0])
    wanted = np.maximum(
        convolution(x, w, dilations=(dilation,) * 2, pads_begin=pads, pads_end=pads), 0
    )
    for numerics in ("default", "strict"):
        (y,) = tilewright.compile(proto, cache=False, threads=2, numerics=numerics)(x)
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)
