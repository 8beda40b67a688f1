"""Ops with bodies: reductions, windows, sorting, scatters; and gathers, which scatters reverse."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tests.frontends.stablehlo.helpers import compiled, evaluated, ops_of, program
from tilewright.frontends.stablehlo.load import load_stablehlo

X = np.array([[3.0, -1.0, 7.0, 7.0, 2.0], [0.5, np.nan, 9.0, -4.0, 0.0]], np.float32)
T, S = "tensor<2x5xf32>", "tensor<f32>"


def reduced(*body: str, init: str = "0.0") -> bytes:
    lines = "\n".join(body)
    return program(
        f"%x: {T}", "tensor<2xf32>", f"%i = stablehlo.constant dense<{init}> : {S}",
        f'%r = "stablehlo.reduce"(%x, %i) ({{\n^bb0(%a: {S}, %b: {S}):\n{lines}\n}}) '
        f"{{dimensions = array<i64: 1>}} : ({T}, {S}) -> tensor<2xf32>",
        "return %r : tensor<2xf32>",
    )  # fmt: skip


def test_bodies_of_one_op_are_our_reductions() -> None:
    source = reduced(f"%c = stablehlo.maximum %a, %b : {S}", f"stablehlo.return %c : {S}", init="0xFF800000")
    assert "reduce_max" in ops_of(load_stablehlo(source)) and "max" not in ops_of(load_stablehlo(source))
    np.testing.assert_array_equal(evaluated(source, X)[0], [7, np.nan])


def test_the_first_value_takes_part() -> None:
    source = reduced(f"%c = stablehlo.add %a, %b : {S}", f"stablehlo.return %c : {S}", init="10.0")
    np.testing.assert_allclose(evaluated(source, X[:1].repeat(2, 0))[0], [28, 28])


def test_other_bodies_are_computed_pair_by_pair_in_order() -> None:
    # the last that is not 0: associative, and of no use in another order
    zero = f"%z = stablehlo.constant dense<0.0> : {S}"
    test = f"%p = stablehlo.compare NE, %b, %z : ({S}, {S}) -> tensor<i1>"
    source = reduced(zero, test, f"%c = stablehlo.select %p, %b, %a : tensor<i1>, {S}", f"stablehlo.return %c : {S}")
    np.testing.assert_array_equal(evaluated(source, X)[0], [2, -4])


def arg_extreme(direction: str) -> bytes:
    body = [
        f"%1 = stablehlo.compare {direction}, %a, %b, FLOAT : ({S}, {S}) -> tensor<i1>",
        f"%2 = stablehlo.compare NE, %a, %a, FLOAT : ({S}, {S}) -> tensor<i1>", "%3 = stablehlo.or %1, %2 : tensor<i1>",
        f"%4 = stablehlo.compare EQ, %a, %b, FLOAT : ({S}, {S}) -> tensor<i1>",
        "%5 = stablehlo.compare LT, %i, %j, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        "%6 = stablehlo.and %4, %5 : tensor<i1>", "%7 = stablehlo.or %3, %6 : tensor<i1>",
        f"%8 = stablehlo.select %3, %a, %b : tensor<i1>, {S}",
        "%9 = stablehlo.select %7, %i, %j : tensor<i1>, tensor<i32>",
        f"stablehlo.return %8, %9 : {S}, tensor<i32>",
    ]  # fmt: skip
    lines = "\n".join(body)
    return program(
        f"%x: {T}", "tensor<2xi32>", f"%f = stablehlo.constant dense<0xFF800000> : {S}",
        "%z = stablehlo.constant dense<0> : tensor<i32>", "%p = stablehlo.iota dim = 1 : tensor<2x5xi32>",
        f'%r:2 = "stablehlo.reduce"(%x, %p, %f, %z) ({{\n^bb0(%a: {S}, %i: tensor<i32>, %b: {S}, %j: tensor<i32>):\n'
        f"{lines}\n}}) {{dimensions = array<i64: 1>}} : "
        f"({T}, tensor<2x5xi32>, {S}, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)",
        "return %r#1 : tensor<2xi32>",
    )  # fmt: skip


@pytest.mark.parametrize(("direction", "op", "expected"), [("GT", "argmax", [2, 1]), ("LT", "argmin", [1, 1])])
def test_the_place_of_the_greatest_is_recognised(direction: str, op: str, expected: list[int]) -> None:
    source = arg_extreme(direction)
    assert op in ops_of(load_stablehlo(source))
    np.testing.assert_array_equal(evaluated(source, X)[0], expected)


@pytest.mark.parametrize(
    ("op", "attributes", "result", "expected"),
    [
        ("add", "window_dimensions = array<i64: 1, 5>, padding = dense<[[0, 0], [4, 0]]> : tensor<2x2xi64>", "2x5",
         np.cumsum(X, 1)),
        ("maximum", "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>", "2x2",
         np.stack([X[:, :2].max(1), X[:, 2:4].max(1)], 1)),
        ("multiply", "window_dimensions = array<i64: 2, 2>", "1x4", (X[:1, :-1] * X[:1, 1:] * X[1:, :-1] * X[1:, 1:])),
    ],
)  # fmt: skip
def test_windows(op: str, attributes: str, result: str, expected: np.ndarray) -> None:
    first = {"add": "0.0", "maximum": "0xFF800000", "multiply": "1.0"}[op]
    type = f"tensor<{result}xf32>"
    source = program(
        f"%x: {T}", type, f"%i = stablehlo.constant dense<{first}> : {S}",
        f'%r = "stablehlo.reduce_window"(%x, %i) ({{\n^bb0(%a: {S}, %b: {S}):\n%c = stablehlo.{op} %a, %b : {S}\n'
        f"stablehlo.return %c : {S}\n}}) {{{attributes}}} : ({T}, {S}) -> {type}",
        f"return %r : {type}",
    )  # fmt: skip
    np.testing.assert_allclose(evaluated(source, X)[0], expected, rtol=1e-5)


def sorted_by(*comparator: str) -> bytes:
    lines = "\n".join(comparator)
    return program(
        "%x: tensor<6xi32>, %y: tensor<6xi32>", "tensor<6xi32>, tensor<6xi32>",
        '%r:2 = "stablehlo.sort"(%x, %y) ({\n^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):'
        f"\n{lines}\n}}) {{dimension = 0 : i64, is_stable = true}} : (tensor<6xi32>, tensor<6xi32>) "
        "-> (tensor<6xi32>, tensor<6xi32>)",
        "return %r#0, %r#1 : tensor<6xi32>, tensor<6xi32>",
    )  # fmt: skip


A, B = np.array([3, 1, 3, 2, 1, 3], np.int32), np.array([0, 5, -2, 4, 3, -1], np.int32)
SCALARS = "(tensor<i32>, tensor<i32>) -> tensor<i1>"


def test_sorting_by_one_key_and_by_two() -> None:
    descending = sorted_by(f"%1 = stablehlo.compare GT, %a, %b : {SCALARS}", "stablehlo.return %1 : tensor<i1>")
    assert "topk" in ops_of(load_stablehlo(descending))
    order = np.argsort(-A, kind="stable")
    for found, expected in zip(compiled(descending, A, B), (A[order], B[order]), strict=True):
        np.testing.assert_array_equal(found, expected)
    both = sorted_by(
        f"%1 = stablehlo.compare LT, %a, %b : {SCALARS}", f"%2 = stablehlo.compare EQ, %a, %b : {SCALARS}",
        f"%3 = stablehlo.compare GT, %c, %d : {SCALARS}", "%4 = stablehlo.and %2, %3 : tensor<i1>",
        "%5 = stablehlo.or %1, %4 : tensor<i1>", "stablehlo.return %5 : tensor<i1>",
    )  # fmt: skip
    order = np.lexsort((-B, A))
    for found, expected in zip(evaluated(both, A, B), (A[order], B[order]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_other_comparators_count_what_comes_before() -> None:
    source = sorted_by(
        "%1 = stablehlo.add %a, %c : tensor<i32>", "%2 = stablehlo.add %b, %d : tensor<i32>",
        f"%3 = stablehlo.compare LT, %1, %2 : {SCALARS}", "stablehlo.return %3 : tensor<i1>",
    )  # fmt: skip
    order = np.argsort(A + B, kind="stable")
    for found, expected in zip(evaluated(source, A, B), (A[order], B[order]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_gathers_move_slices_inside() -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    source = program(
        "%x: tensor<4x5xf32>, %i: tensor<3x2xi32>", "tensor<3x2xf32>",
        '%r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>} "
        ": (tensor<4x5xf32>, tensor<3x2xi32>) -> tensor<3x2xf32>",
        "return %r : tensor<3x2xf32>",
    )  # fmt: skip
    places = np.array([[0, 1], [9, 4], [-5, -1]], np.int32)
    (found,) = compiled(source, x, places)
    np.testing.assert_array_equal(found, [x[0, 1:3], x[3, 3:5], x[0, 0:2]])


def scatter(body: str, attributes: str = "") -> bytes:
    return program(
        "%x: tensor<4x3xf32>, %i: tensor<3x1xi32>, %u: tensor<3x3xf32>", "tensor<4x3xf32>",
        '%r = "stablehlo.scatter"(%x, %i, %u) ({\n^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
        f"{body}\n}}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
        f"inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>{attributes}}} : "
        "(tensor<4x3xf32>, tensor<3x1xi32>, tensor<3x3xf32>) -> tensor<4x3xf32>",
        "return %r : tensor<4x3xf32>",
    )  # fmt: skip


def test_scatters_leave_out_what_lies_outside() -> None:
    x, u = np.ones((4, 3), np.float32), np.arange(9, dtype=np.float32).reshape(3, 3)
    places = np.array([[2], [-1], [2]], np.int32)
    source = scatter(f"%c = stablehlo.add %a, %b : {S}\nstablehlo.return %c : {S}")
    expected = x.copy()
    expected[2] += u[0] + u[2]
    np.testing.assert_array_equal(compiled(source, x, places, u)[0], expected)


def test_scatters_with_a_body_of_their_own_need_places_that_differ() -> None:
    x, u = np.full((4, 3), 10, np.float32), np.arange(9, dtype=np.float32).reshape(3, 3)
    body = f"%c = stablehlo.subtract %a, %b : {S}\nstablehlo.return %c : {S}"
    with pytest.raises(tilewright.UnsupportedError, match="body is not one of"):
        load_stablehlo(scatter(body))
    expected = x.copy()
    expected[[3, 0]] -= u[[0, 2]]
    places = np.array([[3], [7], [0]], np.int32)
    np.testing.assert_array_equal(evaluated(scatter(body, ", unique_indices = true"), x, places, u)[0], expected)
