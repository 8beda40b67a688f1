"""Ops of StableHLO against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.frontends.stablehlo.helpers import compiled, evaluated, one, ops_of, program
from tilewright.frontends.stablehlo.load import load_stablehlo

F = np.array([[-2.5, -0.5, 0.0], [0.5, 1.5, 3.0]], np.float32)
I = np.array([[-7, -1, 0], [1, 5, 9]], np.int32)  # noqa: E741
J = np.array([[3, -1, 0], [0, -2, 4]], np.int32)
T, N = "tensor<2x3xf32>", "tensor<2x3xi32>"


def shifted(a: np.ndarray) -> np.ndarray:
    return (a.view(np.uint32) >> np.uint32(2)).view(np.int32)


UNARY: list[tuple[str, np.ndarray, Callable[[np.ndarray], np.ndarray]]] = [
    ("abs", I, np.abs), ("negate", I, np.negative), ("sign", F, np.sign), ("floor", F, np.floor),
    ("ceil", F, np.ceil), ("round_nearest_even", F, np.rint), ("exponential", F, np.exp),
    ("round_nearest_afz", F, lambda x: np.trunc(x + np.copysign(np.float32(0.5), x))),
    ("exponential_minus_one", F, np.expm1), ("log_plus_one", np.abs(F), np.log1p), ("cbrt", F, np.cbrt),
    ("tanh", F, np.tanh), ("sine", F, np.sin), ("cosine", F, np.cos), ("tan", F, np.tan), ("not", I, np.invert),
    ("logistic", F, lambda x: 1 / (1 + np.exp(-x))),
    ("popcnt", I, np.vectorize(lambda n: bin(int(n) & 0xFFFFFFFF).count("1"))),
    ("count_leading_zeros", I, np.vectorize(lambda n: 32 - (int(n) & 0xFFFFFFFF).bit_length())),
]  # fmt: skip


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("name", "x", "expected"), UNARY, ids=[u[0] for u in UNARY])
def test_of_one_operand(name: str, x: np.ndarray, expected: Callable[[np.ndarray], np.ndarray]) -> None:
    type = T if x.dtype == np.float32 else N
    (found,) = evaluated(one(type, f"stablehlo.{name} %x : {type}", f"%x: {type}"), x)
    np.testing.assert_allclose(found, expected(x), rtol=1e-6, atol=1e-7)


BINARY: list[tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    ("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum), ("and", np.bitwise_and),
    ("xor", np.bitwise_xor), ("shift_right_logical", lambda a, b: np.where(b == 3, (a.view("u4") >> 3).view("i4"), 0)),
    ("shift_right_arithmetic", lambda a, b: np.where((b >= 0) & (b < 32), a >> np.clip(b, 0, 31), a >> 31)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), BINARY, ids=[b[0] for b in BINARY])
def test_of_two_operands(name: str, expected: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    b = np.array([[3, 3, 40], [-1, 3, 3]], np.int32) if "shift" in name else J
    (found,) = evaluated(one(N, f"stablehlo.{name} %x, %y : {N}", f"%x: {N}, %y: {N}"), I, b)
    np.testing.assert_array_equal(found, expected(I, b))


def test_integers_divided_by_zero_are_what_xla_gives() -> None:
    source = program(
        f"%x: {N}, %y: {N}", f"{N}, {N}", f"%q = stablehlo.divide %x, %y : {N}",
        f"%r = stablehlo.remainder %x, %y : {N}", f"return %q, %r : {N}, {N}",
    )  # fmt: skip
    quotient, rest = compiled(source, I, J)
    np.testing.assert_array_equal(quotient, [[-2, 1, -1], [-1, -2, 2]])
    np.testing.assert_array_equal(rest, [[-1, 0, 0], [1, 1, 1]])


def test_powers_of_integers() -> None:
    a = np.array([[2, -1, -1], [1, 3, 0]], np.int32)
    b = np.array([[-1, -3, -2], [-9, 4, 0]], np.int32)
    (found,) = evaluated(one(N, f"stablehlo.power %x, %y : {N}", f"%x: {N}, %y: {N}"), a, b)
    np.testing.assert_array_equal(found, [[0, -1, 1], [1, 81, 1]])


def test_comparisons_in_total_order() -> None:
    a = np.array([-0.0, np.nan, 1.0, -np.inf], np.float32)
    b = np.array([0.0, np.inf, np.nan, -np.nan], np.float32)
    type = "tensor<4xf32>"
    source = one(
        "tensor<4xi1>", f"stablehlo.compare LT, %x, %y, TOTALORDER : ({type}, {type}) -> tensor<4xi1>",
        f"%x: {type}, %y: {type}",
    )  # fmt: skip
    (found,) = evaluated(source, a, b)
    np.testing.assert_array_equal(found, [True, False, True, False])


def test_clamp_select_and_convert() -> None:
    source = program(
        f"%x: {T}, %p: tensor<i1>", "tensor<2x3xi8>", "%l = stablehlo.constant dense<-1.0> : tensor<f32>",
        "%h = stablehlo.constant dense<2.0> : tensor<f32>",
        f"%c = stablehlo.clamp %l, %x, %h : (tensor<f32>, {T}, tensor<f32>) -> {T}",
        f"%s = stablehlo.select %p, %c, %x : tensor<i1>, {T}",
        f"%r = stablehlo.convert %s : ({T}) -> tensor<2x3xi8>", "return %r : tensor<2x3xi8>",
    )  # fmt: skip
    (found,) = evaluated(source, F, np.array(True))
    np.testing.assert_array_equal(found, np.clip(F, -1, 2).astype(np.int8))


@pytest.mark.parametrize(
    ("text", "type", "expected"),
    [
        ("[1.5, -2.0]", "2xbf16", [1.5, -2.0]), ("[1, -2]", "2xi4", [1, -2]), ("[true, false]", "2xi1", [1, 0]),
        ("[18446744073709551615]", "1xui64", [1.8446744073709552e19]), ("3.0", "2xf16", [3, 3]), ("7", "2xui8", [7, 7]),
    ],
)  # fmt: skip
def test_constants(text: str, type: str, expected: list[float]) -> None:
    wide = type.split("x")[0]
    source = program(
        "", f"tensor<{wide}xf64>", f"%c = stablehlo.constant dense<{text}> : tensor<{type}>",
        f"%r = stablehlo.convert %c : (tensor<{type}>) -> tensor<{wide}xf64>", f"return %r : tensor<{wide}xf64>",
    )  # fmt: skip
    np.testing.assert_array_equal(evaluated(source)[0], expected)


def test_views() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    source = program(
        f"%x: {T}", "tensor<7x3xf32>",
        f"%t = stablehlo.transpose %x, dims = [1, 0] : ({T}) -> tensor<3x2xf32>",
        "%b = stablehlo.broadcast_in_dim %t, dims = [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>",
        "%v = stablehlo.reverse %b, dims = [1] : tensor<2x3xf32>",
        "%c = stablehlo.concatenate %v, %x, dim = 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>",
        "%z = stablehlo.constant dense<9.0> : tensor<f32>",
        "%p = stablehlo.pad %c, %z, low = [1, -1], high = [-1, 0], interior = [1, 1] : "
        "(tensor<4x3xf32>, tensor<f32>) -> tensor<7x4xf32>",
        "%s = stablehlo.slice %p [0:7, 0:4:2] : (tensor<7x4xf32>) -> tensor<7x2xf32>",
        "%i = stablehlo.iota dim = 0 : tensor<7x1xf32>",
        "%r = stablehlo.concatenate %s, %i, dim = 1 : (tensor<7x2xf32>, tensor<7x1xf32>) -> tensor<7x3xf32>",
        "return %r : tensor<7x3xf32>",
    )  # fmt: skip
    stacked = np.concatenate([x[:, ::-1], x])
    wide = np.full((8, 5), 9, np.float32)
    wide[1::2, ::2] = stacked
    wide = wide[:7, 1:]
    expected = np.concatenate([wide[:, ::2], np.arange(7, dtype=np.float32)[:, None]], 1)
    np.testing.assert_array_equal(evaluated(source, x)[0], expected)


def test_dot_general_with_batch_and_several_inner_axes() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, 2, 3, 5)).astype(np.float32)
    b = rng.standard_normal((5, 2, 6, 3)).astype(np.float32)
    source = one(
        "tensor<2x4x6xf32>",
        "stablehlo.dot_general %x, %y, batching_dims = [1] x [1], contracting_dims = [2, 3] x [3, 0] : "
        "(tensor<4x2x3x5xf32>, tensor<5x2x6x3xf32>) -> tensor<2x4x6xf32>",
        "%x: tensor<4x2x3x5xf32>, %y: tensor<5x2x6x3xf32>",
    )
    np.testing.assert_allclose(evaluated(source, a, b)[0], np.einsum("abcd,dbec->bae", a, b), rtol=1e-5)


def test_products_of_bytes_are_summed_in_integers() -> None:
    a, b = np.full((2, 300), 127, np.int8), np.full((4, 300), -128, np.int8)
    source = one(
        "tensor<2x4xi32>",
        "stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : (tensor<2x300xi8>, tensor<4x300xi8>) "
        "-> tensor<2x4xi32>",
        "%x: tensor<2x300xi8>, %y: tensor<4x300xi8>",
    )
    (found,) = compiled(source, a, b)
    assert np.all(found == 127 * -128 * 300)


def convolved(x: np.ndarray, w: np.ndarray, attributes: str, window: str, result: str) -> np.ndarray:
    types = [f"tensor<{'x'.join(map(str, v.shape))}xf32>" for v in (x, w)]
    source = one(
        result,
        f"stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{{window}}} "
        f"{{{attributes}}} : ({types[0]}, {types[1]}) -> {result}",
        f"%x: {types[0]}, %w: {types[1]}",
    )
    return evaluated(source, x, w)[0]


def direct(x: np.ndarray, w: np.ndarray, low: int, high: int, apart: int, stride: int) -> np.ndarray:
    """[b, space, channels] with [taps, channels, outputs]."""
    wide = np.zeros((x.shape[0], (x.shape[1] - 1) * apart + 1, x.shape[2]))
    wide[:, ::apart] = x
    wide = np.pad(wide, ((0, 0), (max(low, 0), max(high, 0)), (0, 0)))[:, max(-low, 0) :]
    count = (wide.shape[1] - w.shape[0]) // stride + 1
    return np.stack(
        [np.einsum("btc,tco->bo", wide[:, k * stride : k * stride + w.shape[0]], w) for k in range(count)], 1
    )


@pytest.mark.parametrize(
    ("low", "high", "apart", "stride"), [(1, 1, 1, 2), (1, 2, 2, 1), (-1, 0, 1, 1), (3, 0, 3, 1), (1, 1, 2, 2)]
)
def test_convolutions(low: int, high: int, apart: int, stride: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 6, 3)).astype(np.float32)
    w = rng.standard_normal((3, 3, 4)).astype(np.float32)
    expected = direct(x, w, low, high, apart, stride)
    window = f"stride = [{stride}], pad = [[{low}, {high}]], lhs_dilate = [{apart}], rhs_dilate = [1]"
    counts = "batch_group_count = 1 : i64, feature_group_count = 1 : i64"
    found = convolved(x, w, counts, window, f"tensor<2x{expected.shape[1]}x4xf32>")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_convolutions_of_groups_of_the_batch() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 5, 3)).astype(np.float32)
    w = rng.standard_normal((2, 3, 6)).astype(np.float32)
    counts = "batch_group_count = 2 : i64, feature_group_count = 1 : i64"
    found = convolved(x, w, counts, "stride = [1], pad = [[0, 0]]", "tensor<2x4x6xf32>")
    parts = [direct(x[2 * k : 2 * k + 2], w[:, :, 3 * k : 3 * k + 3], 0, 0, 1, 1) for k in range(2)]
    np.testing.assert_allclose(found, np.concatenate(parts, -1), rtol=1e-5, atol=1e-5)


def test_quantised_types_are_refused_with_the_way_on() -> None:
    import tilewright

    type = "tensor<2x!quant.uniform<i8:f32, 0.5:3>>"
    with pytest.raises(tilewright.UnsupportedError, match="quantised types"):
        load_stablehlo(one(type, f"stablehlo.add %x, %x : {type}", f"%x: {type}"))


def test_weights_that_are_arguments_can_be_bound() -> None:
    type = "tensor<2x2xf32>"
    source = one(
        type, f"stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({type}, {type}) -> {type}",
        f'%x: {type} loc("x"), %w: {type} loc("params[\'dense\'][\'kernel\']")',
    )  # fmt: skip
    name = "params['dense']['kernel']"
    x, w = np.eye(2, dtype=np.float32), np.array([[1, 2], [3, 4]], np.float32)
    module = load_stablehlo(source, constants={name: w})
    assert module.main.attrs["inputs"] == ("x",) and "matmul" in ops_of(module)
    np.testing.assert_array_equal(evaluated(source, x, constants={name: w})[0], w)
