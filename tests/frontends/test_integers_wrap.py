"""Powers and products of integers that overflow are those of NumPy: exact modulo the range of the type."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright
from tests.frontends.helpers import info

RNG = np.random.default_rng(11)


def computed(op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray] | None = None) -> np.ndarray:
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    constants = constants or {}
    graph = helper.make_graph(
        [helper.make_node(op, [*arrays, *constants], ["y"])], "integers",
        [info(name, array.shape, kinds[name]) for name, array in arrays.items()],
        [helper.make_tensor_value_info("y", kinds["x"], None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return tilewright.compile(model, threads=1, cache=False)(*arrays.values())[0]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_powers_wrap(dtype: type[np.integer]) -> None:
    x = RNG.integers(-50, 50, 100).astype(dtype)
    n = RNG.integers(0, 30, 100).astype(dtype)
    expected = [(pow(int(b), int(e), 1 << 64)) for b, e in zip(x, n, strict=True)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(computed("Pow", {"x": x, "n": n}), np.array(expected, np.uint64).astype(dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_powers_with_negative_exponents_are_rounded_towards_zero(dtype: type[np.integer]) -> None:
    x, n = np.array([1, -1, -1, 2, -3, 7], dtype), np.array([-4, -3, -2, -1, -1, 0], dtype)
    assert computed("Pow", {"x": x, "n": n}).tolist() == [1, -1, 1, 0, 0, 1]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_products_wrap_along_every_axis(dtype: type[np.integer], axis: int) -> None:
    x = RNG.integers(-12, 12, (25, 30)).astype(dtype)
    x[x == 0] = 3
    lines = np.moveaxis(x, axis, 1).tolist()
    products = [int(np.prod(np.array(line, object))) % (1 << 64) for line in lines]
    found = computed("ReduceProd", {"x": x}, {"axes": np.array([axis])})
    np.testing.assert_array_equal(found.ravel(), np.array(products, np.uint64).astype(dtype))
