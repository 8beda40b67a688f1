"""Windows on the vector unit of a simulated machine: pools, and the order of its runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.loops.interleave import run_interleaved
from tests.simulator.test_mutants import check
from tests.simulator.test_npu import TINY, session
from tilewright.loops.kernel_info import parse_kernel
from tilewright.options import Options
from tilewright.stages import programs

RNG = np.random.default_rng(11)


def pool(name: str, shape: tuple[int, ...], **attrs: Any) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], ["y"], **attrs)],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "strides": ("MaxPool", (2, 3, 13, 14), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "a stride and dilations": (
        "MaxPool",
        (1, 2, 17, 19),
        {"kernel_shape": [2, 3], "strides": [1, 3], "dilations": [3, 2], "pads": [0, 2, 1, 1]},
    ),
    "one axis": ("MaxPool", (1, 5, 40), {"kernel_shape": [5], "strides": [2], "ceil_mode": 1}),
    "means without padding": ("AveragePool", (1, 4, 9, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    "windows apart": ("MaxPool", (1, 2, 8, 9), {"kernel_shape": [1, 2], "strides": [3, 4]}),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", CASES)
def test_pools_run_on_the_vector_unit(case: str, tmp_path: Path) -> None:
    name, shape, attrs = CASES[case]
    data = pool(name, shape, **attrs)
    x = RNG.integers(-50, 50, shape).astype(np.float32)
    (right,) = ReferenceEvaluator(onnx.load_from_string(data)).run(None, {"x": x})
    made = tilewright.compile(data, target="tiny", session=session(tmp_path), verify=True)
    (found,) = made(x)
    assert found.shape == right.shape and np.allclose(found, right, rtol=1e-6, atol=0)
    assert {r.message for r in made.report().remarks if r.stage == "strategy"} == {"vector_unit"}


def test_values_behind_each_other_are_copied_one_after_the_other(tmp_path: Path) -> None:
    """Which one is read depends on the position; each takes several blocks of its own."""
    arrays = [RNG.normal(size=(2, n, 40)).astype(np.float32) for n in (30, 1, 27)]
    graph = helper.make_graph(
        [helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=1)],
        "concat",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in zip("abc", arrays, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 58, 40])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    made = tilewright.compile(data, target="tiny", session=session(tmp_path), verify=True)
    assert np.array_equal(made(*arrays)[0], np.concatenate(arrays, axis=1))
    assert [r.message for r in made.report().remarks if r.stage == "strategy"] == ["vector_unit"]


def test_windows_are_read_once_in_any_order_of_queues(tmp_path: Path) -> None:
    """Three taps of each column, of lines that come once."""
    data = pool("MaxPool", (1, 24, 14, 32), kernel_shape=[3, 1])
    (text,) = programs(data, "loops", options=Options(target="tiny"), session=session(tmp_path)).values()
    func = parse_kernel(text)
    x = RNG.integers(-50, 50, (1, 24, 14, 32)).astype(np.float32)
    right = np.maximum(np.maximum(x[:, :, :-2], x[:, :, 1:-1]), x[:, :, 2:])
    assert check(func, TINY, RNG) > 5
    for seed in range(3):
        y = np.zeros((1, 24, 12, 32), np.float32)
        run_interleaved(func, [x, y], {}, random.Random(seed))
        assert np.array_equal(y, right)
