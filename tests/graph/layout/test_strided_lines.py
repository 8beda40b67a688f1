"""Convolutions of plain values with strides along lines: lines of what the same taps read, and stride 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.graph.programs import find, ops, program, run
from tilewright.graph.layout.strided_lines import StridedLines
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops.contract import conv
from tilewright.ops.define import constant

Shape = tuple[Any, ...]
HEIGHT, WIDTH, BATCH = (var(name, 1) for name in ("h", "w", "n"))

LAYERS: tuple[tuple[str, Shape, tuple[int, ...], dict[str, Any]], ...] = (
    ("few filters", (1, 3, 9, 12), (2, 3, 3, 3), {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}),
    ("a stride beyond the taps", (1, 3, 9, 12), (2, 3, 3, 2), {"strides": (1, 3)}),
    ("taps of a line alone", (2, 3, 30), (4, 3, 7), {"strides": (3,), "pads_begin": (2,), "pads_end": (4,)}),
    ("one tap of a line", (1, 3, 9, 12), (2, 3, 5, 1), {"strides": (2, 2), "pads_begin": (2, 0), "pads_end": (2, 3)}),
    ("dilated by the stride", (1, 3, 9, 20), (2, 3, 3, 3), {"strides": (2, 2), "dilations": (2, 2)}),
    ("dilated beside the stride", (1, 3, 9, 20), (2, 3, 2, 4), {"strides": (1, 2), "dilations": (1, 3)}),
    ("dilated by a part of the stride", (1, 3, 9, 30), (2, 3, 2, 4), {"strides": (1, 4), "dilations": (1, 6)}),
    ("groups", (1, 6, 9, 12), (4, 3, 3, 3), {"strides": (2, 2), "groups": 2, "pads_begin": (1, 1)}),
    ("each channel alone", (1, 6, 9, 12), (12, 1, 3, 3), {"strides": (1, 3), "groups": 6, "pads_end": (1, 1)}),
    ("a volume", (1, 2, 5, 5, 9), (3, 2, 2, 3, 3), {"strides": (2, 1, 2), "dilations": (1, 2, 2)}),
    ("any size", (BATCH, 3, HEIGHT, WIDTH), (2, 3, 3, 3),
     {"strides": (2, 3), "pads_begin": (2, 2), "pads_end": (2, 1)}),
    ("any size, dilated", (1, 3, HEIGHT, WIDTH), (2, 3, 2, 3),
     {"strides": (1, 2), "dilations": (1, 3), "pads_begin": (2, 6), "pads_end": (2, 6)}),
)  # fmt: skip
IDS = [layer[0] for layer in LAYERS]


def filters(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def made(x: Any, w: np.ndarray, **attrs: Any) -> Module:
    found: Module = program(lambda x: conv(x, constant(w, "w"), **attrs), x)
    return found


@pytest.mark.parametrize(("name", "shape", "kernel", "attrs"), LAYERS, ids=IDS)
def test_lines_have_no_strides(name: str, shape: Shape, kernel: tuple[int, ...], attrs: dict[str, Any]) -> None:
    module = made(shape, filters(kernel), **attrs)
    run(module, StridedLines(), Canonicalize())
    found = find(module, "conv")
    assert found.attrs["strides"] == (*attrs["strides"][:-1], 1)
    assert not any(p != 0 for p in (*found.attrs["pads_begin"], *found.attrs["pads_end"]))


def test_filters_get_zeros_where_phases_have_fewer_taps() -> None:
    module = made((1, 3, 9, 12), filters((2, 3, 3, 3)), strides=(2, 2))
    run(module, StridedLines())
    assert [d.value for d in find(module, "conv").operands[1].type.shape] == [2, 6, 3, 2]  # type: ignore[attr-defined]


def test_lines_without_strides_stay() -> None:
    module = made((1, 3, 9, 12), filters((2, 3, 3, 3)), strides=(2, 1), dilations=(1, 2))
    run(module, StridedLines())
    assert ops(module) == ["conv"]


def test_sums_of_narrow_numbers_keep_their_dtype() -> None:
    w = np.random.default_rng(2).integers(-9, 9, (2, 3, 3, 3)).astype(np.int8)
    module = made(tensor(dt.u8, (1, 3, 9, 12)), w, strides=(2, 2), pads_begin=(1, 1), sums=dt.i32)
    run(module, StridedLines())
    assert find(module, "conv").result.type.dtype is dt.i32  # type: ignore[attr-defined]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (7, 40), (12, 33)])
def test_native_convolutions_of_images_of_any_size(sizes: tuple[int, int]) -> None:
    w = filters((3, 2, 3, 3))
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 3], dilations=[1, 2], pads=[2, 3, 2, 4])
    shapes = (("x", ("n", 2, "h", "w")), ("y", None))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [numpy_helper.from_array(w, "w")])
    model = tilewright.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9),
                               threads=2, cache=False)  # fmt: skip
    x = np.random.default_rng(3).standard_normal((2, 2, *sizes)).astype(np.float32)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (2, 2), (3, 4)])
    lines, columns = (padded.shape[2] - 3) // 2 + 1, (padded.shape[3] - 5) // 3 + 1
    wanted = np.zeros((2, 3, lines, columns))
    for ky, kx in np.ndindex(3, 3):
        read = padded[:, :, ky : ky + 2 * lines - 1 : 2, 2 * kx : 2 * kx + 3 * columns - 2 : 3]
        wanted += np.einsum("nchw,oc->nohw", read, w[:, :, ky, kx])
    np.testing.assert_allclose(model(x)[0], wanted, rtol=1e-4, atol=1e-4)
