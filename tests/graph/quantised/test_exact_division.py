"""Quotients by known scales round as divisions do, without a division."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import program
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.quant import quantize_linear
from tilewright.ops.reduce import reduce_sum
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

SEEDS = np.random.SeedSequence()
COUNT = 4000


def quantised_to(dtype: dt.DType, scale: np.ndarray, zero: int, *shape: int) -> Module:
    def body(x: Value) -> Value:
        return quantize_linear(x, constant(scale), constant(np.asarray(zero, dtype.storage)), dtype=dtype)

    return program(body, tensor(dt.f32, shape))


def divisions(module: Module, machine: str) -> int:
    target = parse_target(machine)
    run_passes(module, default_passes(Options()), PassContext(target, Options()))
    return sum(op.name == "div" for op in module.main.body.ops)


def hard_cases(scale: np.float32, rng: np.random.Generator) -> np.ndarray:
    """Numbers whose quotients are halves, or next to them, and those that are none or without an end."""
    halves = ((rng.integers(-300, 300, COUNT) + 0.5) * np.float64(scale)).astype(np.float32)
    near = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    others = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30])
    return np.concatenate([halves, *near, others])


@pytest.mark.parametrize("dtype", (dt.u8, dt.i8, dt.u16, dt.i16), ids=str)
def test_halves_are_rounded_as_after_a_division(dtype: dt.DType) -> None:
    check_halves(dtype, "host")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="code for x86-64")
def test_halves_where_no_product_is_fused_with_a_sum() -> None:
    """The error of x * (1 / scale) could not be computed there without rounding."""
    check_halves(dt.i16, "x86-64")


def check_halves(dtype: dt.DType, machine: str) -> None:
    print("entropy", SEEDS.entropy)
    rng = np.random.default_rng(SEEDS)
    limits = np.iinfo(dtype.storage)
    for scale in (10 ** rng.uniform(-6, 3, 4)).astype(np.float32):
        x, zero = hard_cases(scale, rng), int(rng.integers(0, 100))
        module = quantised_to(dtype, scale, zero, len(x))
        (found,) = Model(compile_module(module, Options(threads=1), parse_target(machine)))(x)
        with np.errstate(all="ignore"):
            exact = np.rint(x / scale) + zero
        exact = np.where(np.isnan(exact), 0, np.clip(exact, limits.min, limits.max))
        np.testing.assert_array_equal(found, exact.astype(dtype.storage), err_msg=str(scale))


def test_known_scales_are_multiplied_by() -> None:
    assert divisions(quantised_to(dt.u8, np.float32(0.1), 3, 100), "x86-64-v3") == 0


@pytest.mark.parametrize("scale", (0.0, np.inf, np.nan, 1e-38, 1e38))
def test_scales_without_a_normal_reciprocal_are_divided_by(scale: float) -> None:
    module = quantised_to(dt.u8, np.float32(scale), 3, 100)
    assert divisions(module, "x86-64-v3") == 1


@pytest.mark.parametrize(
    ("body", "exact"),
    [
        (lambda x: ew.max_(ew.add(x, 1.5), 0.0), True),
        (lambda x: ew.exp(x), False),
        (lambda x: reduce_sum(x, axes=(0,), keepdims=True), False),
    ],
)
def test_what_is_rounded_before_takes_a_factor(body: Callable[[Value], Value], exact: bool) -> None:
    def quantised(x: Value) -> Value:
        return quantize_linear(body(x), constant(np.float32(0.3)), constant(np.uint8(0)), dtype=dt.u8)

    module = program(quantised, (4, 5))
    assert divisions(module, "x86-64-v3") == 0
    assert ("quotient" in [op.name for op in module.main.body.ops]) == exact
