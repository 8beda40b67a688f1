"""Tensors without elements: there is nothing to schedule, and a reduction over none still gives its neutral element."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

import tilewright


def compute(op: str, inputs: list[np.ndarray], constants: list[np.ndarray], **attrs: object) -> np.ndarray:
    """The first result of one node with static shapes."""
    names = [f"i{k}" for k in range(len(inputs))]
    fixed = [numpy_helper.from_array(array, f"c{k}") for k, array in enumerate(constants)]
    node = helper.make_node(op, names + [c.name for c in fixed], ["y"], **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "g", infos, [ValueInfoProto(name="y")], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (y,) = tilewright.compile(model, cache=False)(*inputs)
    return y


def floats(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def integer_product() -> list[np.ndarray]:
    one, zero = np.float32(1), np.uint8(0)
    return [one, zero, np.ones((8, 4), np.uint8), one, zero, one, zero]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "attrs", "shape"),
    [
        ("MaxPool", [floats(0, 1, 4)], [], {"kernel_shape": [2]}, (0, 1, 3)),
        ("MaxPool", [floats(2, 0, 8, 8)], [], {"kernel_shape": [2, 2]}, (2, 0, 7, 7)),
        ("QLinearMatMul", [np.ones((0, 8), np.uint8)], integer_product(), {}, (0, 4)),
        ("MatMul", [floats(0, 8), floats(8, 4)], [], {}, (0, 4)),
        ("Conv", [floats(0, 3, 8, 8)], [floats(4, 3, 3, 3)], {}, (0, 4, 6, 6)),
        ("Softmax", [floats(3, 0)], [], {}, (3, 0)),
    ],
)
def test_a_tensor_without_elements_is_compiled(
    op: str,
    inputs: list[np.ndarray],
    constants: list[np.ndarray],
    attrs: dict[str, object],
    shape: tuple[int, ...],
) -> None:
    assert compute(op, inputs, constants, **attrs).shape == shape


@pytest.mark.parametrize(
    ("op", "expected"),
    [("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceProd", 1.0), ("ReduceMean", 0.0)],
)
def test_reductions_over_nothing_give_their_neutral_element(op: str, expected: float) -> None:
    np.testing.assert_array_equal(
        compute(op, [floats(3, 0)], [], axes=[1]), np.full((3, 1), expected, np.float32)
    )
