"""Products of bytes, both of which are computed in the call: by groups, exactly, whatever their zero points."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.contract import matmul_widening

RNG = np.random.default_rng(23)
TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
Shape = tuple[int | str, ...]


def drawn(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Bytes of the whole range, both ends among them."""
    info = np.iinfo(dtype)
    array = RNG.integers(info.min, info.max + 1, shape).astype(dtype)
    array.reshape(-1)[:2] = [info.min, info.max][: array.size]
    return array


def compiled(
    a: np.ndarray, b: np.ndarray, zeros: tuple[np.ndarray, ...], shapes: tuple[Shape, Shape] | None = None,
    *, turned: bool = False, threads: int = 1,
) -> tilewright.Model:  # fmt: skip
    """MatMulInteger of two inputs, whose zero points are inputs, too."""
    given = shapes or (a.shape, b.shape)
    names = ("a", "b", "a_zero", "b_zero")[: 2 + len(zeros)]
    inputs = [
        helper.make_tensor_value_info(n, TYPES[v.dtype.type], s)
        for n, v, s in zip(names, (a, b, *zeros), (*given, *(z.shape for z in zeros)), strict=True)
    ]
    nodes = [helper.make_node("MatMulInteger", ["a", "bt" if turned else "b", *names[2:]], ["y"])]
    if turned:
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["bt"], perm=[1, 0]))
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return tilewright.compile(model, threads=threads, cache=False)


def wanted(a: np.ndarray, b: np.ndarray, zeros: tuple[np.ndarray, ...]) -> np.ndarray:
    """In 64 bits."""
    a_zero, b_zero = (z.astype(np.int64) for z in (*zeros, np.zeros(()), np.zeros(()))[:2])
    if a_zero.ndim:
        a_zero = a_zero[:, None]
    return (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)


def check(a: np.ndarray, b: np.ndarray, zeros: tuple[np.ndarray, ...] = (), *, threads: int = 1) -> None:
    (found,) = compiled(a, b, zeros, threads=threads)(a, b, *zeros)
    np.testing.assert_array_equal(found, wanted(a, b, zeros))


SHAPES = [
    ((1, 64), (64, 48)), ((3, 20), (20, 7)), ((4, 256), (256, 320)), ((40, 64), (64, 33)), ((9, 8), (8, 200)),
    ((70, 32), (32, 16)), ((5, 30), (30, 20)), ((2, 3, 16), (2, 16, 24)), ((1, 4), (4, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_any_shape(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(drawn(shapes[0], np.uint8), drawn(shapes[1], np.int8))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
def test_zero_points_of_the_call(left: type, right: type) -> None:
    a, b = drawn((20, 40), left), drawn((40, 36), right)
    for ends in ((0, -1), (-1, 0), (1, 1)):
        zeros = tuple(np.array(drawn((2,), t)[[k]][0]) for t, k in zip((left, right), ends, strict=True))
        check(a, b, zeros)
    check(a, b)


def test_zero_points_of_rows_and_columns() -> None:
    a, b = drawn((20, 40), np.uint8), drawn((40, 36), np.int8)
    check(a, b, (drawn((20,), np.uint8), drawn((36,), np.int8)))


def test_two_threads() -> None:
    check(drawn((60, 128), np.uint8), drawn((128, 256), np.int8), threads=2)


@pytest.mark.parametrize("shapes", [(("m", "k"), ("k", "n")), (("m", 32), (32, 40)), ((9, 32), (32, "n"))], ids=str)
def test_unknown_sizes(shapes: tuple[Shape, Shape]) -> None:
    a, b = drawn((9, 32), np.uint8), drawn((32, 40), np.int8)
    model = compiled(a, b, (), shapes)
    for rows in (0, 1, 5, 9, 50) if shapes[0][0] == "m" else (9,):
        for columns in (0, 1, 17, 40, 130) if shapes[1][1] == "n" else (40,):
            a, b = drawn((rows, 32), np.uint8), drawn((32, columns), np.int8)
            np.testing.assert_array_equal(model(a, b)[0], wanted(a, b, ()))


@pytest.mark.parametrize("shapes", [(("m", "k"), ("k", "n")), ((3, "k"), ("k", 40))], ids=str)
def test_unknown_depths(shapes: tuple[Shape, Shape]) -> None:
    """Whole groups and what they leave, none of either among them, with zero points that count the products."""
    zeros = (np.uint8(7), np.int8(-3))
    model = compiled(drawn((3, 8), np.uint8), drawn((8, 40), np.int8), tuple(map(np.array, zeros)), shapes)
    for depth in (0, 1, 3, 4, 5, 7, 8, 33, 64):
        for rows, columns in ((3, 40), *(((1, 70), (20, 9)) if shapes[0][0] == "m" else ())):
            a, b = drawn((rows, depth), np.uint8), drawn((depth, columns), np.int8)
            np.testing.assert_array_equal(model(a, b, *zeros)[0], wanted(a, b, zeros))


@pytest.mark.parametrize(("depth", "products"), [(3, 0), (4, 1), (30, 2), ("k", 2)])
def test_what_whole_groups_leave_is_a_product_of_its_own(depth: int | str, products: int) -> None:
    size = 8 if isinstance(depth, str) else depth
    a, b = drawn((9, size), np.uint8), drawn((size, 48), np.int8)
    report = compiled(a, b, (), ((9, depth), (depth, 48))).report().as_dict()
    names = [call["kernel"] for call in report["calls"]]
    assert sum("matmul_widening" in name for name in names) == products, names


def test_columns_that_lie_along_the_sum() -> None:
    for rows in (3, 50):
        a, b = drawn((rows, 64), np.uint8), drawn((48, 64), np.int8)
        (found,) = compiled(a, b, (), turned=True)(a, b)
        np.testing.assert_array_equal(found, wanted(a, b.T, ()))


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_columns_are_copied_for_the_instruction_that_adds_groups(rows: int) -> None:
    a, b = drawn((rows, 64), np.uint8), drawn((64, 128), np.int8)
    module, _ = oracle.agree(
        [tensor(dt.u8, a.shape), tensor(dt.i8, b.shape)],
        lambda x, y: matmul_widening(x, y, sums=dt.i32),
        [a, b],
        "zen4",
    )
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    steps = [step.split("(")[0] for step in kernel_info(kernel).schedule]
    assert "dot" in steps and "pack" in steps
