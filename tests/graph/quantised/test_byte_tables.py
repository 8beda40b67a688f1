"""Functions of bytes as tables: the same bits for all 256 values, on every machine, and only where they are faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.graph.quantised.byte_tables import ByteTables
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import gelu, hard_swish
from tilewright.ops.contract import conv
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.ops.view import reshape, shape_of
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

MACHINES = ("x86-64-v3", "zen4", "neoverse-n1")
SCALE = np.float32(0.043)


def dequantized(q: Value, zero: int = 7, scale: Any = SCALE, shape: tuple[int, ...] = ()) -> Value:
    parameters = np.full(shape, scale, np.float32), np.full(shape, zero, q.tensor.dtype.storage)
    return dequantize_linear(q, *map(constant, parameters), dtype=dt.f32)


def quantized(x: Value, dtype: dt.DType, zero: int = 5, scale: float = 0.021) -> Value:
    parameters = np.float32(scale), np.asarray(zero, dtype.storage)
    return quantize_linear(x, *map(constant, parameters), dtype=dtype)


def silu_of_bytes(q: Value) -> Value:
    """As quantisers write it: the sigmoid is rounded to a byte, too."""
    x, dtype = dequantized(q), q.tensor.dtype
    low = -128 if dtype is dt.i8 else 0
    gate = dequantized(quantized(ew.sigmoid(x), dtype, low, 1 / 255), low, 1 / 255)
    return quantized(ew.mul(x, gate), dtype)


def reshaped_on_the_way(q: Value) -> Value:
    """Exporters reshape between a product and its activation."""
    x = reshape(dequantized(q), shape=(1, *shape_of(q)))
    gate = dequantized(quantized(ew.tanh(x), q.tensor.dtype))
    return quantized(ew.mul(x, gate), q.tensor.dtype)


FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "sigmoid": lambda q: quantized(ew.sigmoid(dequantized(q)), q.tensor.dtype),
    "silu": silu_of_bytes,
    "gelu": lambda q: quantized(gelu(dequantized(q)), q.tensor.dtype),
    "hard-swish": lambda q: quantized(hard_swish(ew.mul(ew.tanh(dequantized(q)), 3.0)), q.tensor.dtype),
    "reshaped": reshaped_on_the_way,
    "tanh of parameters with axes": lambda q: quantized(
        ew.tanh(dequantized(q, shape=(1,) * q.tensor.rank)), q.tensor.dtype
    ),
    "to the other sign": lambda q: quantized(
        ew.exp(dequantized(q)), dt.u8 if q.tensor.dtype is dt.i8 else dt.i8
    ),
}


def looked_up(module: Module) -> list[str]:
    return [op.name for op in module.main.body.ops if op.name == "table_lookup"]


def passed(module: Module, machine: str, **options: Any) -> PassContext:
    target, chosen = parse_target(machine), Options(**options)
    ctx = PassContext(target, chosen)
    run_passes(module, default_passes(chosen), ctx)
    return ctx


def every_byte(dtype: dt.DType, count: int = 256) -> np.ndarray:
    return np.resize(np.arange(256), count).astype(np.uint8).view(dtype.storage)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", (dt.u8, dt.i8), ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_tables_are_what_the_program_means(function: str, dtype: dt.DType, machine: str) -> None:
    module = program(FUNCTIONS[function], tensor(dtype, (2, 4, 32)))
    x = every_byte(dtype).reshape(2, 4, 32)
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, machine)
    assert looked_up(module) == ["table_lookup"]
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, expected)
    oracle.scheduled(module, machine)
    (found,) = oracle.run(module, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("numerics", ("default", "strict"))
@pytest.mark.parametrize("dtype", (dt.u8, dt.i8), ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_machine_code_of_any_size(function: str, dtype: dt.DType, numerics: Any) -> None:
    n = var("n")
    module = program(FUNCTIONS[function], TensorType(dtype, (n, n)))
    reference = program(FUNCTIONS[function], TensorType(dtype, (n, n)))
    model = Model(compile_module(module, Options(threads=1, numerics=numerics), parse_target("host")))
    for size in (1, 3, 17):
        x = every_byte(dtype, size * size).reshape(size, size)
        (expected,) = evaluate_func(reference.main, reference, [x])
        np.testing.assert_array_equal(model(x)[0], expected)


def test_a_chain_is_one_table() -> None:
    def body(q: Value) -> Value:
        for _ in range(3):
            q = silu_of_bytes(q)
        return q

    module = program(body, tensor(dt.u8, (256,)))
    (expected,) = evaluate_func(module.main, module, [every_byte(dt.u8)])
    passed(module, "zen3")
    assert [op.name for op in module.main.body.ops] == ["constant", "table_lookup", "return"]
    (found,) = evaluate_func(module.main, module, [every_byte(dt.u8)])
    np.testing.assert_array_equal(found, expected)


def test_bytes_that_others_read_have_a_table_of_their_own() -> None:
    def body(q: Value) -> tuple[Value, Value]:
        first = silu_of_bytes(q)
        return first, silu_of_bytes(first)

    module = program(body, tensor(dt.u8, (256,)))
    expected = evaluate_func(module.main, module, [every_byte(dt.u8)])
    passed(module, "zen3")
    assert len(looked_up(module)) == 2
    for a, b in zip(evaluate_func(module.main, module, [every_byte(dt.u8)]), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_only_limits_is_no_table() -> None:
    def clipped(q: Value) -> Value:
        return quantized(ew.min_(ew.max_(dequantized(q, 7), 0.0), 4.0), q.tensor.dtype, 7, float(SCALE))

    for dtype in (dt.u8, dt.i8):
        module = program(clipped, tensor(dtype, (256,)))
        (expected,) = evaluate_func(module.main, module, [every_byte(dtype)])
        passed(module, "zen3")
        assert {op.name for op in module.main.body.ops} == {"full", "max", "min", "return"}
        (found,) = evaluate_func(module.main, module, [every_byte(dtype)])
        np.testing.assert_array_equal(found, expected)


def test_cheap_work_is_computed_where_finding_it_takes_longer() -> None:
    def scaled(q: Value) -> Value:
        return quantized(dequantized(q), dt.u8)

    modules = {machine: program(scaled, tensor(dt.u8, (256,))) for machine in ("zen3", "zen4")}
    remarks = {machine: passed(module, machine).remarks for machine, module in modules.items()}
    assert not looked_up(modules["zen3"]) and looked_up(modules["zen4"])
    assert any("takes no longer" in r.message for r in remarks["zen3"])


def test_functions_of_several_tensors_or_of_channels_are_none() -> None:
    def two(a: Value, b: Value) -> Value:
        return quantized(ew.sigmoid(ew.add(dequantized(a), dequantized(b))), dt.u8)

    def of_channels(q: Value) -> Value:
        factor = constant(np.arange(1, 257, dtype=np.float32))
        return quantized(ew.sigmoid(ew.mul(dequantized(q), factor)), dt.u8)

    for module in (program(two, *[tensor(dt.u8, (256,))] * 2), program(of_channels, tensor(dt.u8, (256,)))):
        passed(module, "zen3")
        assert not looked_up(module)


def test_tables_that_fail_are_not_made() -> None:
    def body(q: Value) -> Value:
        wide = ew.cast(q, dtype=dt.i32)
        return ew.cast(ew.div(constant(np.array(1000, np.int32)), wide), dtype=dt.u8)

    module = program(body, tensor(dt.u8, (256,)))
    ctx = PassContext(parse_target("zen3"))
    run_passes(module, [ByteTables()], ctx)
    assert not looked_up(module)
    assert any("division by zero" in r.message for r in ctx.remarks)


@pytest.mark.parametrize("machine", ("zen3", "zen4", "neoverse-n1"))
def test_a_table_stays_in_the_kernel_of_the_convolution(machine: str) -> None:
    """Behind the sums that make its bytes, and before the padding of the ones that read what it gives."""
    weights = np.random.default_rng(1).integers(-127, 128, (2, 32, 32, 3, 3)).astype(np.int8)

    def body(x: Value) -> Value:
        q = quantized(x, dt.u8)
        for w in weights:
            factors = dequantized(constant(w), 0, 0.01)
            attrs = {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}
            sums = conv(dequantized(q, 5, 0.021), factors, **attrs)
            q = silu_of_bytes(quantized(sums, dt.u8, 7, float(SCALE)))
        return q

    module = program(body, (1, 32, 8, 8))
    x = np.random.default_rng(2).standard_normal((1, 32, 8, 8)).astype(np.float32)
    passed(module, machine)
    (expected,) = evaluate_func(module.main, module, [x])
    assert len(looked_up(module)) == 2
    oracle.scheduled(module, machine)
    assert not [name for name in module.funcs if "table_lookup" in name and "conv" not in name]
    (found,) = oracle.run(module, [x])
    assert (found != expected).mean() < 0.01  # floats are summed in another order


def test_programs_that_compute_the_same_after_a_table_are_compiled() -> None:
    """What is known of an operator on 256 elements is kept, and serves other programs."""
    for _ in range(2):
        module = program(silu_of_bytes, tensor(dt.u8, (256,)))
        passed(module, "zen3")
        plain = program(lambda q: ew.sigmoid(dequantized(q)), tensor(dt.u8, (256,)))
        Model(compile_module(plain, Options(threads=1), parse_target("host")))(every_byte(dt.u8))
