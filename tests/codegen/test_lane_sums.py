"""Integers combined over the lanes of vectors, for numbers of lanes from one to several registers: machine code against
int64.

Rows are several and odd in number, so that LLVM sees loads, products and sums in one block, as it has to for its
patterns of such sums.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright

RNG = np.random.default_rng(11)
ROWS = 85
LENGTHS = (4, 8, 15, 16, 32, 48, 64, 128)
TYPES = {
    np.int8: TensorProto.INT8,
    np.uint8: TensorProto.UINT8,
    np.int32: TensorProto.INT32,
    np.int64: TensorProto.INT64,
}
SUMS = {"ReduceSum": np.sum, "ReduceProd": np.prod}  # in the standard not of bytes
EXTREMA = {"ReduceMax": np.max, "ReduceMin": np.min}
CASES = [
    *((name, dtype) for name in SUMS for dtype in (np.int32, np.int64)),
    *((name, dtype) for name in EXTREMA for dtype in TYPES),
]


def integers(dtype: type, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def run(nodes: list, x: np.ndarray, constants: dict[str, np.ndarray], kind: int) -> np.ndarray:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TYPES[x.dtype.type], x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (y,) = tilewright.compile(model.SerializeToString(), threads=1, cache=False)(x)
    return y


@pytest.mark.sweep
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("right", [np.int8, np.uint8])
@pytest.mark.parametrize("left", [np.int8, np.uint8])
def test_products_of_bytes_with_one_column(left: type, right: type, length: int) -> None:
    x, w = integers(left, ROWS, length), integers(right, length, 1)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    assert np.array_equal(run([node], x, {"w": w}, TensorProto.INT32), x.astype(int) @ w.astype(int))


@pytest.mark.sweep
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("right", [np.int8, np.uint8])
@pytest.mark.parametrize("left", [np.int8, np.uint8])
def test_sums_of_products_that_are_written_out(left: type, right: type, length: int) -> None:
    x, w = integers(left, ROWS, length), integers(right, ROWS, length)
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT32),
        helper.make_node("Cast", ["w"], ["b"], to=TensorProto.INT32),
        helper.make_node("Mul", ["a", "b"], ["ab"]),
        helper.make_node("ReduceSum", ["ab", "axes"], ["y"], keepdims=0),
    ]
    found = run(nodes, x, {"w": w, "axes": np.array([1])}, TensorProto.INT32)
    assert np.array_equal(found, (x.astype(int) * w.astype(int)).sum(1))


@pytest.mark.sweep
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_rows(name: str, dtype: type, length: int) -> None:
    x = integers(dtype, ROWS, length)
    node = helper.make_node(name, ["x", "axes"], ["y"], keepdims=0)
    wraps = {"dtype": dtype} if name in SUMS else {}
    expected = (SUMS | EXTREMA)[name](x, axis=1, **wraps)
    assert np.array_equal(run([node], x, {"axes": np.array([1])}, TYPES[dtype]), expected)
