"""Whose time a kernel's is, where it computes a layer together with what reads it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.quantization.decision.timing import unit_times
from tilewright.quantization.network import Network, read_graph
from tilewright.runtime import Model
from tilewright.runtime.profile import KernelTime


def _residual(skip_first: bool) -> onnx.ModelProto:
    """relu(first(x)), and to it the same of a second convolution of it."""
    weights = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w"], ["b"], name="second", pads=[1] * 4),
        helper.make_node("Relu", ["b"], ["s"], name="relu2"),
        helper.make_node("Add", ["r", "s"] if skip_first else ["s", "r"], ["y"], name="sum"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8, 8]) for n in "xy")
    graph = helper.make_graph(nodes, "residual", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class _Profiled:
    """A model with a kernel of 2 s named after the first ReLU, and one of 3 s named after the sum."""

    def profile(self, feed: object, runs: int) -> list[KernelTime]:
        return [KernelTime("k0_conv_max", "relu", 2.0), KernelTime("k1_add_winograd_product", "sum", 3.0)]


@pytest.mark.parametrize("skip_first", [True, False])
def test_a_sum_with_a_skip_belongs_to_the_layer_that_is_skipped(skip_first: bool) -> None:
    module = read_graph(_residual(skip_first))
    compiled = cast(Model, cast(Any, _Profiled()))
    times = unit_times(compiled, module, Network.of(module), [{"x": np.zeros((1, 4, 8, 8), np.float32)}])
    assert times.units == {"first": 2.0, "second": 3.0} and times.others == 0
