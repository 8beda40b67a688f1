"""Operators between dequantised values: computed on the integers, exactly, where the machine multiplies these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import is_loop, kind_of
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.pool import max_pool
from tilewright.ops.quant import conv_integer, dequantize_linear, quantize_linear
from tilewright.ops.view import concat, pad, reshape, transpose
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(7)
MACHINES = ("zen3", "cascadelake", "neoverse-n1")
SCALE = np.float32(0.043)


def passed(module: Module, machine: str, **options: Any) -> PassContext:
    target, chosen = parse_target(machine), Options(**options)
    ctx = PassContext(target, chosen)
    run_passes(module, default_passes(chosen), ctx)
    return ctx


def names(module: Module) -> list[str]:
    return [op.name for op in module.main.body.ops if op.name not in ("constant", "full", "return")]


def weights(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def dequantized(q: Value, zero: int | np.ndarray = 0, scale: np.ndarray | np.float32 = SCALE) -> Value:
    return dequantize_linear(
        q, constant(np.asarray(scale)), constant(np.asarray(zero, q.tensor.dtype.storage)), dtype=dt.f32
    )


def quantized(x: Value, zero: int = 0, dtype: dt.DType = dt.u8, scale: np.float32 = SCALE) -> Value:
    return quantize_linear(
        x, constant(np.asarray(scale)), constant(np.asarray(zero, dtype.storage)), dtype=dtype
    )


# Convolutions


SHAPES = {
    "1x1": (tensor(dt.u8, (2, 32, 5, 7)), (48, 32, 1, 1), {}),
    "3x3": (tensor(dt.u8, (1, 20, 9, 7)), (24, 20, 3, 3), {"pads_begin": (1, 1), "pads_end": (1, 1)}),
    "strides": (
        tensor(dt.u8, (1, 16, 11, 9)), (16, 16, 3, 3),
        {"pads_begin": (1, 0), "pads_end": (0, 1), "strides": (2, 2)},
    ),
    "of an image": (
        tensor(dt.u8, (1, 3, 17, 15)), (16, 3, 7, 7),
        {"pads_begin": (3, 3), "pads_end": (3, 3), "strides": (2, 2)},
    ),
    "of an image, dilated": (tensor(dt.u8, (1, 3, 17, 15)), (16, 3, 3, 3), {"dilations": (2, 2)}),
    "depthwise": (
        tensor(dt.u8, (1, 24, 9, 7)), (24, 1, 3, 3), {"pads_begin": (1, 1), "pads_end": (1, 1), "groups": 24},
    ),
    "groups": (tensor(dt.u8, (1, 64, 6, 5)), (32, 32, 3, 3), {"groups": 2}),
    "one axis": (tensor(dt.u8, (1, 12, 40)), (16, 12, 5), {"pads_begin": (2,), "pads_end": (2,)}),
}  # fmt: skip


def convolution(shape: str, signed: bool, zero: int) -> tuple[Module, np.ndarray]:
    """A module that sums integers, and one set of these with the extremes."""
    type_, filters, attrs = SHAPES[shape]
    dtype = dt.i8 if signed else dt.u8
    w = weights(*filters)
    w[0] = 127
    zeros = np.asarray(zero - 128 if signed else zero, dtype.storage)
    module = program(
        lambda x: conv_integer(x, constant(w), constant(zeros), constant(np.int8(0)), **attrs),
        TensorType(dtype, type_.shape),
    )
    limits = np.iinfo(dtype.storage)
    x = RNG.integers(limits.min, limits.max + 1, [d.value for d in type_.shape]).astype(dtype.storage)
    x[:, 0] = limits.max
    return module, x


@pytest.mark.sweep(16)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("zero", (0, 131))
@pytest.mark.parametrize("signed", (False, True), ids=("u8", "i8"))
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_windows_are_exact(shape: str, signed: bool, zero: int, machine: str) -> None:
    module, x = convolution(shape, signed, zero)
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, machine)
    assert any(op.attrs.get("sums") for op in module.main.body.ops), names(module)
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ("zen4", "neoverse-n1"))
@pytest.mark.parametrize("shape", ("1x1", "groups", "one axis"))
def test_kernels_of_other_machines_give_the_exact_sums(shape: str, machine: str) -> None:
    module, x = convolution(shape, False, 131)
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, machine)
    oracle.scheduled(module, machine)
    loops = [op for func in module.funcs.values() for op in func.body.walk() if is_loop(op)]
    assert any(kind_of(loop) == "dot" for loop in loops)
    (found,) = oracle.run(module, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("zero", (0, 131))
@pytest.mark.parametrize("signed", (False, True), ids=("u8", "i8"))
@pytest.mark.parametrize("shape", SHAPES)
def test_machine_code_gives_the_exact_sums(shape: str, signed: bool, zero: int) -> None:
    module, x = convolution(shape, signed, zero)
    (expected,) = evaluate_func(module.main, module, [x])
    (found,) = Model(compile_module(module, Options(threads=1), parse_target("host")))(x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", ("zen3", "zen4", "cascadelake", "host"))
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_of_other_zero_points_are_multiplied_as_words(shape: str, machine: str, fresh_seed: int) -> None:
    """Bytes without a sign whose centred numbers do not fit a byte; each filter has a zero point of its own."""
    type_, filters, attrs = SHAPES[shape]
    rng = np.random.default_rng(fresh_seed)
    w = rng.integers(0, 256, filters).astype(np.uint8)
    w[0], w[1] = 0, 255
    zeros = rng.integers(0, 256, (filters[0], *[1] * (len(filters) - 1))).astype(np.uint8)
    x = rng.integers(0, 256, [d.value for d in type_.shape]).astype(np.uint8)
    module = program(
        lambda v: conv_integer(v, constant(w), constant(np.uint8(77)), constant(zeros), **attrs), type_
    )
    (expected,) = evaluate_func(module.main, module, [x])
    if machine == "host":
        (found,) = Model(compile_module(module, Options(threads=1), parse_target("host")))(x)
    else:
        passed(module, machine)
        used = {op.operands[1].tensor.dtype for op in module.main.body.ops if op.attrs.get("sums")}
        assert used == {dt.i16}, names(module)
        (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("machine", (*MACHINES, "host"))
@pytest.mark.parametrize("signed", (False, True), ids=("u8", "i8"))
@pytest.mark.parametrize("shape", ["3x3", "of an image", "depthwise", "one axis"])
def test_zero_points_of_the_call(shape: str, signed: bool, machine: str) -> None:
    """Padding stands for a number that is not known when compiling."""
    type_, filters, attrs = SHAPES[shape]
    dtype = dt.i8 if signed else dt.u8
    w = weights(*filters)
    module = program(
        lambda x, zero: conv_integer(x, constant(w), zero, constant(np.int8(0)), **attrs),
        TensorType(dtype, type_.shape), tensor(dtype, ()),
    )  # fmt: skip
    limits = np.iinfo(dtype.storage)
    x = RNG.integers(limits.min, limits.max + 1, [d.value for d in type_.shape]).astype(dtype.storage)
    zero = np.asarray(limits.min + 77, dtype.storage)
    (expected,) = evaluate_func(module.main, module, [x, zero])
    if machine == "host":
        (found,) = Model(compile_module(module, Options(threads=1), parse_target("host")))(x, zero)
    else:
        passed(module, machine)
        assert any(op.attrs.get("sums") for op in module.main.body.ops), names(module)
        (found,) = evaluate_func(module.main, module, [x, zero])
    np.testing.assert_array_equal(found, expected)


def test_a_network_of_bytes_has_no_floats_between_its_kernels() -> None:
    def body(x: Value) -> Value:
        y = dequantized(quantized(x, 3), 3)
        for k in range(2):
            sums = conv(y, dequantized(constant(weights(16, 16, 3, 3))), pads_begin=(1, 1), pads_end=(1, 1))
            y = dequantized(quantized(ew.max_(sums, 0.0), 3 + k), 3 + k)
            y = dequantized(quantized(max_pool(y, kernel=(2, 2), strides=(2, 2)), 3 + k), 3 + k)
        return y

    module = program(body, (1, 16, 16, 16))
    passed(module, "cascadelake")
    wide = [
        op.name
        for op in module.main.body.ops
        for v in op.operands
        if op.name in ("conv_blocked", "max_pool_blocked", "pad") and v.tensor.dtype.bits > 8
    ]
    assert not wide


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("transposed", (False, True))
def test_products_of_dequantised_matrices(transposed: bool, machine: str) -> None:
    w, scales = weights(16, 24), RNG.random(24).astype(np.float32)

    def body(x: Value) -> Value:
        if transposed:
            right = dequantized(constant(w.T.copy()), 0, scales.reshape(-1, 1))
        else:
            right = dequantized(constant(w), 0, scales)
        return matmul(dequantized(x, 9), right, transpose_b=transposed)

    module = program(body, tensor(dt.u8, (5, 16)))
    x = RNG.integers(0, 256, (5, 16)).astype(np.uint8)
    passed(module, machine)
    assert "matmul_widening" in names(module) and "matmul" not in names(module)
    (found,) = evaluate_func(module.main, module, [x])
    exact = (x.astype(np.int64) - 9) @ w * (np.float64(SCALE) * scales)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


# Moves


MOVES: dict[str, Callable[[Value], Value]] = {
    "reshape": lambda x: reshape(x, shape=(1, 64, 4)),
    "transpose": lambda x: transpose(x, perm=(0, 2, 3, 1)),
    "max_pool": lambda x: max_pool(x, kernel=(2, 2), pads_begin=(1, 1), pads_end=(0, 0)),
    "pad": lambda x: pad(x, before=(0, 0, 1, 1), after=(0, 0, 1, 2)),
    "concat": lambda x: concat(x, x, axis=1),
}


@pytest.mark.parametrize("zero", (0, 100))
@pytest.mark.parametrize("move", MOVES)
def test_moves_go_from_bytes_to_bytes(move: str, zero: int) -> None:
    module = program(lambda x: quantized(MOVES[move](dequantized(x, zero)), zero), tensor(dt.u8, (1, 16, 4, 4)))
    x = RNG.integers(0, 256, (1, 16, 4, 4)).astype(np.uint8)
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, "cascadelake")
    assert all(op.result.tensor.dtype is dt.u8 for op in module.main.body.ops if op.results)
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("scale", (np.float32(0), np.float32(1e-38), np.float32(np.nan), np.float32(-1)))
def test_scales_that_round_otherwise_are_applied(scale: np.float32) -> None:
    module = program(lambda x: quantized(dequantized(x, 3, scale), 3, scale=scale), tensor(dt.u8, (256,)))
    x = np.arange(256).astype(np.uint8)
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, "cascadelake")
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, expected)


def test_other_scales_are_applied() -> None:
    module = program(lambda x: quantized(dequantized(x), scale=np.float32(0.05)), tensor(dt.u8, (256,)))
    x = np.arange(256).astype(np.uint8)
    passed(module, "cascadelake")
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_array_equal(found, np.clip(np.rint(x * SCALE / np.float32(0.05)), 0, 255))


# What stays


ONES = np.ones((16, 1), np.float32)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: matmul(x, dequantized(constant(weights(16, 8)))), ""),
        (lambda x: matmul(dequantized(quantized(x)), dequantized(quantized(x))), "not known when compiling"),
        (
            lambda x: matmul(dequantized(quantized(x)), dequantized(constant(weights(16, 8)), 0, ONES)),
            "scales differ along the sum",
        ),
        (
            lambda x: matmul(dequantized(quantized(x), 0, ONES), dequantized(constant(weights(16, 8)))),
            "several scales",
        ),
        (
            lambda x: matmul(dequantized(quantized(x)), dequantized(constant(weights(16, 8))), transpose_a=True),
            "is transposed",
        ),
    ],
)  # fmt: skip
def test_products_that_stay_in_floats_say_why(body: Callable[[Value], Value], reason: str) -> None:
    module = program(body, (16, 16))
    ctx = passed(module, "cascadelake")
    assert "matmul" in names(module)
    assert not reason or any(reason in r.message and r.kind == "missed" for r in ctx.remarks)


@pytest.mark.parametrize(("depth", "in_integers"), [(66_300, True), (66_320, False)])
def test_sums_that_may_leave_32_bits_are_of_floats(depth: int, in_integers: bool) -> None:
    w = np.full((depth, 4), 127, np.int8)
    module = program(lambda x: matmul(dequantized(x), dequantized(constant(w))), tensor(dt.u8, (2, depth)))
    ctx = passed(module, "cascadelake")
    assert ("matmul_widening" in names(module)) == in_integers
    assert in_integers or any("longer than 32 bits" in r.message for r in ctx.remarks)


def test_strict_numerics_sum_floats() -> None:
    def body(x: Value) -> Value:
        return matmul(dequantized(quantized(x)), dequantized(constant(weights(16, 8))))

    module = program(body, (16, 16))
    passed(module, "cascadelake", numerics="strict")
    assert "matmul" in names(module)


@pytest.mark.parametrize(("machine", "in_integers"), [("cascadelake", True), ("zen3", False), ("neoverse-n1", True)])
def test_convolutions_are_summed_in_integers_where_that_is_faster(machine: str, in_integers: bool) -> None:
    def body(x: Value) -> Value:
        return conv(dequantized(quantized(x)), dequantized(constant(weights(16, 16, 3, 3))))

    module = program(body, (1, 16, 8, 8))
    ctx = passed(module, machine)
    assert any(op.attrs.get("sums") for op in module.main.body.ops) == in_integers
    reasons = [r.message for r in ctx.remarks if r.stage == "integer-products"]
    assert in_integers or "the machine multiplies no more integers than floats in a cycle" in reasons
