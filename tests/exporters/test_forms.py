"""What single operators are written as, where that is not one operator of the same name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from tests.exporters.round_trip import agree, converted, operators, parsed, run
from tilewright.exporters.onnx.forms.registry import forms_of, rewrites_of
from tilewright.exporters.onnx.write import onnx_model
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import silu
from tilewright.ops.contract import conv
from tilewright.ops.define import OPERATORS, Operator
from tilewright.ops.index import scatter_nd
from tilewright.ops.linalg import inverse
from tilewright.ops.recurrent import lstm
from tilewright.ops.scan import running
from tilewright.ops.view import pad, slice_, stretch

RNG = np.random.default_rng(0)


def graph(fn: Callable[..., Value], *types: TensorType) -> Module:
    """A module whose main function is made by `fn` of inputs x0, x1, ..."""
    module, block = Module(), Block(types, [f"x{k}" for k in range(len(types))])
    with Builder(block, module) as builder:
        builder.emit("return", [fn(*block.args)])
    inputs = tuple(v.name for v in block.args)
    module.add(Func("main", block, "graph", {"inputs": inputs, "outputs": ("y",)}))
    return module


def given(fn: Callable[..., Value], *arrays: np.ndarray, opset: int | None = None) -> np.ndarray:
    """What ONNX Runtime gives for the graph."""
    module = graph(fn, *[tensor(dt.from_numpy(a.dtype), a.shape) for a in arrays])
    proto = onnx_model(module, opset=opset)
    onnx.checker.check_model(proto, full_check=True)
    return run(proto, {f"x{k}": a for k, a in enumerate(arrays)})[0]


X = np.array([-3.0, -1e-5, -0.0, 1e-5, 0.5, 40.0, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize(
    ("operator", "expected"),
    [(ew.expm1, np.expm1), (ew.log1p, lambda x: np.log1p(np.maximum(x, -0.9))), (ew.trunc, np.trunc),
     (ew.rsqrt, lambda x: 1 / np.sqrt(x)), (ew.is_inf, np.isinf)],
)  # fmt: skip
def test_functions_that_onnx_has_not(operator: Callable[..., Value], expected: Callable[..., np.ndarray]) -> None:
    x = np.maximum(X, -0.9) if operator is ew.log1p else X
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(given(operator, x), expected(x.astype(np.float64)), rtol=2e-6)


def test_angles_of_points() -> None:
    a, b = np.meshgrid(np.array([-2, -0.0, 0, 3], np.float32), np.array([-1, 0, 2], np.float32))
    np.testing.assert_allclose(given(ew.atan2, a, b), np.arctan2(a, b), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_remainders(dtype: type) -> None:
    a, b = np.array([7, -7, 7, -7], dtype), np.array([3, 3, -3, -3], dtype)
    np.testing.assert_array_equal(given(ew.mod, a, b), np.mod(a, b))
    np.testing.assert_array_equal(given(ew.rem, a, b), np.fmod(a, b))
    floats = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(given(ew.mod, *floats), np.mod(*floats))


def test_types_that_onnx_lacks_are_widened_and_bools_are_logical() -> None:
    a = RNG.standard_normal((2, 3)).astype(ml_dtypes.bfloat16)
    module = graph(lambda x, y: ew.add(x, y), *[tensor(dt.bool_, (4,))] * 2)
    assert operators(onnx_model(module)) == ["Or"]
    kinds = operators(onnx_model(graph(ew.erf, tensor(dt.f8e4m3, (2, 3)))))
    assert kinds == ["Cast", "Erf", "Cast"] and a.dtype.itemsize == 2


def test_floats_that_become_integers_are_limited_unless_the_model_converts_them() -> None:
    x = np.array([-300.0, -1.5, 300.0], np.float32)
    np.testing.assert_array_equal(given(lambda v: ew.cast(v, dtype=dt.i8), x), [-128, -1, 127])
    proto = parsed("g (float[3] x) => (int8[3] y) { y = Cast <to = 3> (x) }")
    assert operators(converted(proto)) == ["Cast"]


def test_pads_of_any_kind() -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    for mode in ("constant", "edge", "reflect", "wrap"):
        found = given(lambda v, mode=mode: pad(v, before=(0, 2), after=(1, 5), mode=mode), x, opset=18)
        np.testing.assert_array_equal(found, np.pad(x, ((0, 1), (2, 5)), mode=mode))  # type: ignore[call-overload]


def test_slices_that_go_backward() -> None:
    x = np.arange(20, dtype=np.int64).reshape(4, 5)
    found = given(lambda v: slice_(v, starts=(3, 4), sizes=(4, 2), steps=(-1, -2)), x)
    np.testing.assert_array_equal(found, x[::-1, 4:0:-2])


def test_convolutions_of_integers_are_written_by_their_body() -> None:
    x, w = (RNG.integers(-5, 6, shape).astype(np.int32) for shape in ((1, 2, 5, 4), (3, 2, 2, 3)))

    def convolved(a: Value, b: Value) -> Value:
        return conv(a, b, pads_begin=(1, 1), pads_end=(0, 1), strides=(2, 1))

    wide = given(convolved, x.astype(np.float32), w.astype(np.float32))
    np.testing.assert_array_equal(given(convolved, x, w), wide)


@pytest.mark.parametrize("combine", ["add", "mul", "max", "min", "logaddexp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_totals(combine: str, reverse: bool) -> None:
    x = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "logaddexp": np.logaddexp}
    ordered = x[:, ::-1] if reverse else x
    expected = functions[combine].accumulate(ordered.astype(np.float64), axis=1)
    found = given(lambda v: running(v, combine=combine, reverse=reverse), x)
    np.testing.assert_allclose(found, expected[:, ::-1] if reverse else expected, rtol=1e-5, atol=1e-6)


def test_updates_that_lie_outside_are_left_out() -> None:
    x, updates = np.zeros((3, 2), np.float32), np.array([1.0, 2.0, 3.0], np.float32)
    places = np.array([[0, 1], [3, 0], [-1, 0]], np.int64)
    found = given(lambda a, b, c: scatter_nd(a, b, c, drop=True), x, places, updates)
    np.testing.assert_array_equal(found, [[0, 1], [0, 0], [0, 0]])


def test_an_operator_of_a_plugin_is_written_by_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.ops.define import compute, op, primitive

    @primitive
    def diagonal_of_products(a, b):
        (n, m), (k, _) = a.shape, b.shape
        del k
        return compute([a, b], (n,), lambda t, i, r: a[i[0], r[0]] * b[r[0], i[0]], reduce=[m], combine="add")

    @op
    def capped(x: Value, *, cap: float = 2.0) -> Value:
        return ew.mul(ew.tanh(ew.div(x, cap)), cap)

    try:
        a, b = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((4, 3)).astype(np.float32)
        found = given(lambda x, y: capped(diagonal_of_products(x, y)), a, b)
        np.testing.assert_allclose(found, 2 * np.tanh(np.diag(a @ b) / 2), rtol=1e-5)
    finally:
        for name in ("diagonal_of_products", "capped"):
            del OPERATORS[name]


def test_what_is_stretched_vanishes_before_operators_that_broadcast_alone() -> None:
    n, m = var("n"), var("m")

    def stretched(x: Value) -> Value:
        return stretch(x, shape=(m, 3))

    types = tensor(dt.f32, (n, 3)), tensor(dt.f32, (m, 3))
    alone = onnx_model(graph(lambda x, y: stretched(x), *types))
    assert operators(alone)[-1] == "Expand"
    assert operators(onnx_model(graph(lambda x, y: ew.add(stretched(x), y), *types))) == ["Add"]


@pytest.mark.parametrize("dtype", [dt.bf16, dt.f16, dt.f32])
def test_recurrent_layers_of_short_floats_are_computed_in_wide_ones(dtype: dt.DType) -> None:
    types = [tensor(dtype, shape) for shape in ((2, 1, 8), (4, 2, 2), (6,), (1, 2), (1, 2))]
    proto = onnx_model(graph(lambda *operands: lstm(*operands)[0], *types), opset=17)
    onnx.checker.check_model(proto, full_check=True)
    (layer,) = [node for node in proto.graph.node if node.op_type == "LSTM"]
    made_by = {name: node.op_type for node in proto.graph.node for name in node.output}
    assert (made_by.get(layer.input[0]) == "Cast") == (dtype is dt.bf16)


@pytest.mark.parametrize("operator", [ew.rsqrt, ew.trunc, silu, ew.floor])
def test_bytes_of_floats_are_computed_in_wide_ones(operator: Callable[..., Value]) -> None:
    proto = onnx_model(graph(operator, tensor(dt.f8e5m2, (3,))))
    onnx.checker.check_model(proto, full_check=True)
    assert operators(proto)[0] == operators(proto)[-1] == "Cast"


def test_what_has_no_form_is_listed_at_once() -> None:
    def several(x: Value, gates: Value, r: Value, p: Value, h: Value) -> Value:
        first = inverse(x)
        first.name = "inverted"
        lstm(gates, r, p, h, h, clip=1.0)
        return ew.bitcast(first, dtype=dt.i32)

    types = [tensor(dt.f32, shape) for shape in ((3, 3), (2, 1, 8), (4, 2, 2), (6,), (1, 2))]
    with pytest.raises(UnsupportedError, match="ONNX cannot express all of the model") as caught:
        onnx_model(graph(several, *types), opset=20)
    text = str(caught.value)
    assert "inverse: ONNX has no operator" in text and "'inverted'" in text
    assert "lstm: ONNX has no recurrent layers of which cells are limited" in text
    assert "bitcast: version 20 of the operator set cannot take bits of f32 for i32" in text
    assert "opset=26 (--opset)" in text and "tilewright compile" in text
    assert len(caught.value.problems) == 3


def test_element_types_of_later_versions_are_refused_with_the_version() -> None:
    module = graph(lambda x: ew.cast(x, dtype=dt.f32), tensor(dt.i4, (3,)))
    with pytest.raises(UnsupportedError, match="version 20 of the operator set has no element type i4") as caught:
        onnx_model(module, opset=20)
    assert "opset=21" in str(caught.value)
    assert onnx_model(module).opset_import[0].version == 21


def test_recurrent_layers_keep_their_weights() -> None:
    size, width, steps, batch = 4, 3, 5, 2
    weights = {
        "w": RNG.standard_normal((1, 4 * size, width)), "r": RNG.standard_normal((1, 4 * size, size)),
        "b": RNG.standard_normal((1, 8 * size)),
    }  # fmt: skip
    proto = parsed(
        f"g (float[{steps}, batch, {width}] x) => (float[{steps}, 1, batch, {size}] y) "
        f"{{ [layer] y = LSTM <hidden_size = {size}, direction = \"reverse\"> (x, w, r, b) }}",
        **{name: array.astype(np.float32) for name, array in weights.items()},
    )
    written = agree(proto, {"x": RNG.standard_normal((steps, batch, width)).astype(np.float32)})
    (layer,) = [node for node in written.graph.node if node.op_type == "LSTM"]
    assert layer.input[0] == "x"
    held = {t.name: t for t in written.graph.initializer}
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(held[layer.input[1]]), weights["w"].astype(np.float32))


def test_the_page_lists_the_operators_without_a_form() -> None:
    def has_form(operator: Operator) -> bool:
        is_bound = any(not binding.domain for binding in operator.onnx_bindings)
        return bool(is_bound or forms_of(operator.name) or rewrites_of(operator.name))

    none = {o.name for o in OPERATORS.values() if o.kind == "irregular" and not has_form(o)}
    page = (Path(__file__).parents[2] / "docs/convert.md").read_text()
    (listed,) = re.findall(r"these have none:\n\n(.*)\n", page)
    assert set(re.findall(r"`(\w+)`", listed)) == none
