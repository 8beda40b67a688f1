"""Concats that are written in place and slices that are read in place: which become views, and that results stay
right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

import tilewright
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.view import concat, slice_
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(3)
X = RNG.standard_normal((24, 32)).astype(np.float32)
W = (RNG.standard_normal((32, 32)) / 6).astype(np.float32)
V = (RNG.standard_normal((32, 32)) / 6).astype(np.float32)


def compiled(body: Callable[[Value, Value, Value], tuple[Value, ...]], rows: int | str = 24) -> Model:
    shape = (sym(rows) if isinstance(rows, int) else var(rows, 1), 32)
    block = Block([tensor(dt.f32, shape)], ["x"])
    module = Module()
    with Builder(block, module) as b:
        b.emit("return", body(block.args[0], constant(W, "w"), constant(V, "v")))
    module.add(Func("main", block, "graph"))
    return Model(compile_module(module, Options(verify=True), parse_target("host")), 2)


def remarks(model: Model) -> list[str]:
    return [r.message for r in model.report().remarks if r.stage == "place-views"]


def check(model: Model, *wanted: np.ndarray) -> None:
    for _ in range(2):
        for found, array in zip(model(X), wanted, strict=True):
            np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-4)


def products() -> tuple[np.ndarray, np.ndarray]:
    x = X.astype(np.float64)
    return x @ W, x @ V


@pytest.mark.parametrize("rows", [24, "n"])
def test_products_write_their_part_of_a_concat(rows: int | str) -> None:
    model = compiled(lambda x, w, v: (matmul(concat(matmul(x, w), matmul(x, v), axis=0), w),), rows)
    assert remarks(model) == ["no copy"]
    assert model.artifact.report.kernels == 3
    check(model, np.concatenate(products()) @ W)


def test_a_concat_that_is_an_output_is_written_there() -> None:
    model = compiled(lambda x, w, v: (concat(matmul(x, w), matmul(x, v), axis=0),))
    assert model.artifact.report.kernels == 2
    assert model.artifact.static_plan is not None and model.artifact.static_plan.arena == 0
    check(model, np.concatenate(products()))


def test_a_part_may_have_other_readers() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        a, b = matmul(x, w), matmul(x, v)
        return matmul(concat(a, b, axis=0), w), matmul(a, v)

    model = compiled(body)
    assert model.artifact.report.kernels == 4
    a, b = products()
    check(model, np.concatenate((a, b)) @ W, a @ V)


def test_inputs_and_outputs_are_copied_into_a_concat() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        a, b = matmul(x, w), matmul(x, v)
        return matmul(concat(a, b, x, axis=0), w), a

    model = compiled(body)
    a, b = products()
    check(model, np.concatenate((a, b, X)) @ W, a)
    assert model.artifact.report.kernels == 5  # three products, and copies of `a` and of x


def test_one_tensor_twice_and_in_two_concats() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        a, b = matmul(x, w), matmul(x, v)
        return matmul(concat(a, b, a, axis=0), w), matmul(concat(b, a, axis=0), v)

    a, b = products()
    check(compiled(body), np.concatenate((a, b, a)) @ W, np.concatenate((b, a)) @ V)


def test_a_concat_of_concats() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        inner = concat(matmul(x, w), matmul(x, v), axis=0)
        return matmul(concat(inner, matmul(inner, w), axis=0), v), matmul(inner, v)

    inner = np.concatenate(products())
    check(compiled(body), np.concatenate((inner, inner @ W)) @ V, inner @ V)


def test_an_operand_that_is_computed_on_the_way_gets_a_kernel() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        sliced = slice_(x, starts=(0, 0), sizes=(12, 32), steps=(2, 1))
        return (matmul(concat(matmul(x, w), sliced, axis=0), v),)

    check(compiled(body), np.concatenate((products()[0], X[::2])) @ V)


def test_columns_lie_apart() -> None:
    model = compiled(
        lambda x, w, v: (
            matmul(
                concat(matmul(x, w), matmul(x, v), axis=1), constant(np.eye(64, 8, dtype=np.float32), "e")
            ),
        )
    )
    assert any("lie apart in the result" in r for r in remarks(model))
    check(model, np.concatenate(products(), axis=1)[:, :8])


def test_a_slice_of_rows_is_read_where_it_lies() -> None:
    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        part = slice_(matmul(x, w), starts=(5, 0), sizes=(12, 32))
        sliced = slice_(matmul(x, w), starts=(0, 0), sizes=(24, 32))
        return matmul(part, part, transpose_b=True), matmul(ew.tanh(sliced), v)

    a, _ = products()
    model = compiled(body)
    check(model, a[5:17] @ a[5:17].T, np.tanh(a) @ V)


def test_rows_of_a_constant_from_a_place_that_a_size_decides() -> None:
    """The slice is no kernel: the product reads the constant from that row on."""
    graph = onnx.parser.parse_graph("""g (float[n, 32] x) => (float[n, 32] y)
        <int64[1] rows = {32}, int64[1] zero = {0}, float[1, 1] w = {0}, float[1, 1] v = {0}> {
            size = Shape <start = 0, end = 1> (x)
            first = Sub (rows, size)
            some = Slice (w, first, rows, zero)
            product = MatMul (some, v)
            y = Add (product, x)
        }""")
    given = {"w": W, "v": V}
    for array in graph.initializer:
        if array.name in given:
            array.CopyFrom(onnx.numpy_helper.from_array(given[array.name], array.name))
    model = tilewright.compile(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), cache=False
    )
    for count in (24, 1, 31, 7):
        x = RNG.standard_normal((count, 32)).astype(np.float32)
        np.testing.assert_allclose(model(x)[0], W[32 - count :] @ V + x, rtol=1e-4, atol=1e-4)


def test_a_slice_that_is_an_output_is_copied() -> None:
    a, _ = products()
    check(compiled(lambda x, w, v: (slice_(matmul(x, w), starts=(5, 0), sizes=(12, 32)),)), a[5:17])


def test_halves_that_change_places() -> None:
    """As rotary embeddings do: a concat of slices of one tensor, which is also read whole."""

    def body(x: Value, w: Value, v: Value) -> tuple[Value, ...]:
        a = matmul(x, w)
        upper = slice_(a, starts=(12, 0), sizes=(12, 32))
        lower = slice_(a, starts=(0, 0), sizes=(12, 32))
        return matmul(concat(upper, lower, axis=0), v), ew.add(a, concat(ew.neg(upper), lower, axis=0))

    a, _ = products()
    sliced = np.concatenate((a[12:], a[:12]))
    check(compiled(body), sliced @ V, a + np.concatenate((-a[12:], a[:12])))
