"""Both products of attention on the integers that their operands stand for: exact, whatever the zero points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from tests.graph.programs import program
from tests.graph.quantised.test_dequantized import passed
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.precision.attention_products import attention_products
from tilewright.graph.quantised import attention as integer_attention
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType
from tilewright.loops.edit import is_loop, kind_of
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.norm import softmax
from tilewright.ops.quant import dequantize_linear, matmul_integer, quantize_linear, requantize
from tilewright.ops.reduce import reduce_max
from tilewright.ops.view import reshape, transpose
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

DTYPES = {"u8": dt.u8, "i8": dt.i8}
MACHINES = ("zen4", "cascadelake", "neoverse-n1")
SHAPES = {
    "whole groups": (2, 16, 32, 24, 16),
    "an odd number of keys": (3, 20, 16, 21, 40),
    "an odd depth": (1, 33, 7, 19, 17),
    "many rows": (2, 150, 20, 35, 16),
}
SCALES = (np.float32(0.125), np.float32(0.0625), np.float32(4), np.float32(0.5))
"""Of queries, keys, weights, values: powers of 2, so that floats are exact, too."""


@dataclass(frozen=True)
class Zeros:
    """Zero points of queries, keys, weights and values."""

    q: int
    k: int
    w: int
    v: int


def parameters(scale: np.float32, zero: int, dtype: dt.DType) -> tuple[Value, Value]:
    return constant(np.asarray(scale)), constant(np.asarray(zero, dtype.storage))


def real(x: Value, scale: np.float32, zero: int) -> Value:
    return dequantize_linear(x, *parameters(scale, zero, x.tensor.dtype), dtype=dt.f32)


def in_bytes(x: Value, scale: np.float32, zero: int, dtype: dt.DType = dt.u8) -> Value:
    return quantize_linear(x, *parameters(scale, zero, dtype), dtype=dtype)


def attention(zeros: Zeros, *, transpose_b: bool = True) -> Any:
    def body(q: Value, k: Value, v: Value) -> Value:
        left, right = real(q, SCALES[0], zeros.q), real(k, SCALES[1], zeros.k)
        scores = matmul(left, right, transpose_b=transpose_b)
        below = ew.sub(scores, reduce_max(scores, axes=(2,), keepdims=True))
        weights = in_bytes(below, SCALES[2], zeros.w)
        return matmul(real(weights, SCALES[2], zeros.w), real(v, SCALES[3], zeros.v))

    return body


def wanted(zeros: Zeros, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """By integers that do not overflow; keys are [batch, keys, depth]."""
    left, right, values = (a.astype(np.int64) - z for a, z in ((q, zeros.q), (k, zeros.k), (v, zeros.v)))
    scores = (left @ right.swapaxes(1, 2)) * (float(SCALES[0]) * float(SCALES[1]))
    below = scores - scores.max(-1, keepdims=True)
    weights = np.clip(np.rint(below / SCALES[2]) + zeros.w, 0, 255).astype(np.int64) - zeros.w
    return (weights @ values) * (float(SCALES[2]) * float(SCALES[3]))


def arrays(shape: tuple[int, ...], left: dt.DType, right: dt.DType, seed: int) -> list[np.ndarray]:
    """Queries, keys [batch, keys, depth] and values, with all extremes in the first rows."""
    batch, rows, depth, keys, columns = shape
    rng = np.random.default_rng(seed)

    def drawn(dtype: dt.DType, *shape: int) -> np.ndarray:
        info = np.iinfo(dtype.storage)
        found = rng.integers(info.min, info.max + 1, shape).astype(dtype.storage)
        found[:, 0], found[:, 1] = info.max, info.min
        return found

    return [drawn(left, batch, rows, depth), drawn(right, batch, keys, depth), drawn(right, batch, keys, columns)]


def types(given: list[np.ndarray], names: dict[int, Sym] | None = None) -> list[TensorType]:
    """Types of arrays, sizes in `names` being symbolic."""
    dims = names or {}
    return [
        TensorType(dt.from_numpy(a.dtype), tuple(dims.get(n, sym(n)) for n in a.shape)) for a in given
    ]


def products(module: Module) -> list[str]:
    return [op.name for op in module.main.body.ops if op.name.startswith("matmul")]


def dots(module: Module) -> int:
    loops = (op for f in module.funcs.values() if f.level == "loops" for op in f.body.walk())
    return sum(is_loop(op) and kind_of(op) == "dot" for op in loops)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers also where they gain too little, as shapes of tests are small."""
    monkeypatch.setattr(integer_attention, "rounding_gains", lambda share: True)


@pytest.mark.sweep
@pytest.mark.usefixtures("always")
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("left", "right"), [("u8", "u8"), ("u8", "i8"), ("i8", "u8"), ("i8", "i8")])
def test_sums_are_exact(left: str, right: str, shape: str, machine: str, fresh_seed: int) -> None:
    """On the interpreters of graphs and of loops, the kernel being one with the instruction's loops in it."""
    rng = np.random.default_rng(fresh_seed)
    low = {"u8": 0, "i8": -128}
    zeros = Zeros(*(int(rng.integers(low[t], low[t] + 256)) for t in (left, right, "u8", right)))
    given = arrays(SHAPES[shape], DTYPES[left], DTYPES[right], fresh_seed)
    module = program(attention(zeros), *types(given))
    passed(module, machine)
    assert products(module) == ["matmul_widening", "matmul_widening"]
    (found,) = evaluate_func(module.main, module, given)
    np.testing.assert_array_equal(found, wanted(zeros, *given))
    oracle.scheduled(module, machine)
    calls = [op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"]
    assert sum("attention" in name for name in calls) == 1 and dots(module) == 2
    (found,) = oracle.run(module, given)
    np.testing.assert_array_equal(found, wanted(zeros, *given))


@pytest.mark.sweep
@pytest.mark.usefixtures("always")
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_native_code_is_exact(shape: str, threads: int, fresh_seed: int) -> None:
    zeros = Zeros(3, 200, 255, 117)
    given = arrays(SHAPES[shape], dt.u8, dt.u8, fresh_seed)
    module = program(attention(zeros), *types(given))
    with Model(compile_module(module, Options(threads=threads), parse_target("host"))) as model:
        (found,) = model(*given)
    np.testing.assert_array_equal(found, wanted(zeros, *given))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_zero_points_that_are_zero_need_no_sums(symmetric: bool, machine: str) -> None:
    """As the dtypes of the machine's operands have it."""
    low = {"zen4": (0, 128), "cascadelake": (0, 128), "neoverse-n1": (128, 128)}[machine]
    zeros = Zeros(low[0], low[1], low[0], low[1]) if symmetric else Zeros(low[0] + 1, low[1], low[0], low[1])
    given = arrays(SHAPES["whole groups"], dt.u8, dt.u8, 3)
    module = program(attention(zeros), *types(given))
    passed(module, machine)
    sums = [op for op in module.main.body.ops if op.name == "reduce_sum"]
    assert len(sums) == (0 if symmetric else 1)
    np.testing.assert_array_equal(evaluate_func(module.main, module, given)[0], wanted(zeros, *given))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("machine", MACHINES)
def test_keys_that_lie_as_columns(machine: str) -> None:
    zeros = Zeros(9, 100, 255, 140)
    q, k, v = arrays(SHAPES["an odd number of keys"], dt.u8, dt.u8, 5)
    columns = np.ascontiguousarray(k.swapaxes(1, 2))
    module = program(attention(zeros, transpose_b=False), *types([q, columns, v]))
    passed(module, machine)
    oracle.scheduled(module, machine)
    assert dots(module) == 2
    (found,) = oracle.run(module, [q, columns, v])
    np.testing.assert_array_equal(found, wanted(zeros, q, k, v))


def softmaxed(q: Value, k: Value, v: Value) -> Value:
    scores = matmul(real(q, SCALES[1], 120), real(k, SCALES[1], 131), transpose_b=True)
    weights = in_bytes(softmax(ew.mul(scores, 0.25), axis=2), np.float32(1 / 255), 0)
    return matmul(real(weights, np.float32(1 / 255), 0), real(v, SCALES[3], 99))


@pytest.mark.usefixtures("always")
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", ["zen4", "neoverse-n1"])
def test_any_number_of_keys(machine: str, fresh_seed: int) -> None:
    """Shares of 1 that are bytes have a sum that no number of them makes longer than 32 bits."""
    given = arrays((2, 30, 8, 21, 16), dt.u8, dt.u8, fresh_seed)
    module = program(softmaxed, *types(given, {21: var("keys", 1), 30: var("rows", 1)}))
    passed(module, machine)
    assert products(module) == ["matmul_widening", "matmul_widening"]
    oracle.scheduled(module, machine)
    assert dots(module) >= 2
    (found,) = oracle.run(module, given)
    q, k, v = (a.astype(np.float64) for a in given)
    scores = (q - 120) @ (k - 131).swapaxes(1, 2) * (float(SCALES[1]) ** 2 * 0.25)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = np.rint(powers / powers.sum(-1, keepdims=True) * 255) / 255
    error = np.abs(found - weights @ (v - 99) * float(SCALES[3]))
    assert (error > 1e-3).mean() < 0.05 and error.max() < 2 / 255 * 156 * 0.5  # a weight at a half


@pytest.mark.usefixtures("always")
def test_bytes_are_quantised_before_they_are_moved() -> None:
    """And as the machine multiplies them: nothing but the products reads keys and values."""

    def body(x: Value) -> Value:
        def heads(t: Value, *perm: int) -> Value:
            return transpose(reshape(t, shape=(20, 2, 16)), perm=perm)

        q = in_bytes(heads(ew.tanh(x), 1, 0, 2), SCALES[0], 7)
        k = in_bytes(heads(ew.exp(x), 1, 2, 0), SCALES[1], 3)
        v = in_bytes(heads(ew.abs_(x), 1, 0, 2), SCALES[3], 0)
        scores = matmul(real(q, SCALES[0], 7), real(k, SCALES[1], 3))
        weights = in_bytes(softmax(scores, axis=2), np.float32(1 / 255), 0)
        return matmul(real(weights, np.float32(1 / 255), 0), real(v, SCALES[3], 0))

    module = program(body, (20, 32))
    x = np.random.default_rng(4).standard_normal((20, 32)).astype(np.float32)
    (before,) = evaluate_func(module.main, module, [x])
    passed(module, "zen4")
    ops = [op for op in module.main.body.ops if op.name in ("transpose", "matmul_widening")]
    moved = [op.result.tensor.dtype.name for op in ops if op.name == "transpose"]
    assert sorted(moved) == ["i8", "i8", "u8"]
    assert [op.attrs["transpose_b"] for op in ops if op.name == "matmul_widening"] == [True, False]
    (after,) = evaluate_func(module.main, module, [x])
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)



REASONS: dict[str, tuple[str, tuple[int, ...], str, int]] = {
    "few rows": ("zen4", (1, 4, 16, 32, 16), "read for few rows", 2),
    "a machine that gains nothing": ("zen3", (1, 64, 64, 64, 64), "of the time of direct sums of f32", 2),
    "sums too long": ("zen4", (1, 64, 33100, 64, 64), "may be longer than 32 bits", 1),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_in_floats_says_why(name: str) -> None:
    machine, shape, reason, count = REASONS[name]
    batch, rows, depth, keys, columns = shape
    sizes = ((batch, rows, depth), (batch, keys, depth), (batch, keys, columns))
    module = program(attention(Zeros(1, 2, 3, 4)), *(TensorType(dt.u8, tuple(map(sym, s))) for s in sizes))
    ctx = passed(module, machine)
    assert products(module) == ["matmul", "matmul" if count == 2 else "matmul_widening"]
    remarks = [r for r in ctx.remarks if "matmul" in r.subject and r.kind == "missed"]
    assert len([r for r in remarks if reason in r.message]) == count


def test_strict_numerics_sum_floats() -> None:
    given = arrays(SHAPES["whole groups"], dt.u8, dt.u8, 1)
    module = program(attention(Zeros(1, 2, 3, 4)), *types(given))
    passed(module, "zen4", numerics="strict")
    assert products(module) == ["matmul", "matmul"]


@pytest.mark.usefixtures("always")
def test_each_product_decides_for_itself() -> None:
    """Quantisers leave the weights of values, or scales of single rows, in floats."""

    def body(q: Value, k: Value, v: Value) -> Value:
        scores = matmul(real(q, SCALES[0], 120), real(k, SCALES[1], 131), transpose_b=True)
        return matmul(softmax(ew.mul(scores, 0.01), axis=2), v)

    q, k, _ = arrays(SHAPES["an odd number of keys"], dt.u8, dt.u8, 1)
    v = np.random.default_rng(2).standard_normal((3, 21, 40)).astype(np.float32)
    module = program(body, *types([q, k, v]))
    (before,) = evaluate_func(module.main, module, [q, k, v])
    ctx = passed(module, "zen4")
    assert products(module) == ["matmul_widening", "matmul"]
    assert any("not both bytes with one scale" in r.message for r in ctx.remarks)
    oracle.scheduled(module, "zen4")
    assert dots(module) == 1
    (after,) = oracle.run(module, [q, k, v])
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("always")
def test_operands_of_several_scales_stay_in_floats() -> None:
    def body(q: Value, k: Value, v: Value) -> Value:
        scales = constant(np.full((1, 16, 1), 0.1, np.float32))
        zeros = constant(np.zeros((1, 16, 1), np.uint8))
        scores = matmul(dequantize_linear(q, scales, zeros, dtype=dt.f32), real(k, SCALES[1], 0), transpose_b=True)
        weights = in_bytes(softmax(scores, axis=2), np.float32(1 / 255), 0)
        return matmul(real(weights, np.float32(1 / 255), 0), real(v, SCALES[3], 0))

    module = program(body, *types(arrays((1, 16, 16, 16, 16), dt.u8, dt.u8, 1)))
    passed(module, "zen4")
    assert products(module) == ["matmul", "matmul_widening"]


@pytest.mark.usefixtures("always")
def test_products_of_integers_themselves() -> None:
    """As front ends make them of QLinearMatMul: the sums are scaled by whoever reads them."""
    def body(q: Value, k: Value, v: Value) -> Value:
        zero = [constant(np.uint8(n)) for n in (3, 130, 0, 77)]
        sums = matmul_integer(q, transpose(k, perm=(0, 2, 1)), zero[0], zero[1])
        scores = ew.mul(ew.cast(sums, dtype=dt.f32), 0.001)
        weights = in_bytes(softmax(scores, axis=2), np.float32(1 / 255), 0)
        total = matmul_integer(weights, v, zero[2], zero[3])
        return requantize(total, constant(np.float32(0.01)), constant(np.uint8(10)), dtype=dt.u8)

    given = arrays(SHAPES["an odd number of keys"], dt.u8, dt.u8, 2)
    module = program(body, *types(given))
    (before,) = evaluate_func(module.main, module, given)
    passed(module, "zen4")
    assert products(module) == ["matmul_widening", "matmul_widening"]
    (after,) = evaluate_func(module.main, module, given)
    assert np.abs(after.astype(int) - before.astype(int)).max() <= 1 and (after != before).mean() < 0.01


def test_a_product_with_one_of_several_results() -> None:
    """What has several results gives no scores; the search for them ended with a ValueError."""
    source = parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[4, 8] x, float[3, 5] y) => (float[4, 5] z) <int64[1] k = {3}> {
          values, indices = TopK <axis = -1> (x, k)
          z = MatMul (values, y)
        }""")
    assert attention_products(load_onnx(source.SerializeToString())) == {}
