"""16-bit floats are computed in float32: rounded in each operator with strict numerics, else where they leave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import program
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.graph.precision.widen_floats import WidenFloats
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.linalg import cholesky, solve_triangular
from tilewright.ops.norm import layer_norm, rms_norm, softmax
from tilewright.ops.reduce import argmax, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import concat, transpose
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(5)
KINDS = (dt.f16, dt.bf16)


def weights(dtype: dt.DType, *shape: int) -> Value:
    return constant((np.random.default_rng(shape).standard_normal(shape) / 4).astype(dtype.storage))


def network(dtype: dt.DType) -> Callable[[Value], Value]:
    def body(x: Value) -> Value:
        sums = conv(x, weights(dtype, 32, 16, 3), pads_begin=(1,), pads_end=(1,))
        y = ew.max_(ew.add(sums, weights(dtype, 32, 1)), 0)
        z = conv(y, weights(dtype, 16, 32, 3), pads_begin=(1,), pads_end=(1,))
        return ew.add(softmax(ew.mul(z, 0.3), axis=-1), ew.tanh(ew.add(z, x)))

    return body


def dtypes_of(module: Module, *ops: str) -> set[str]:
    return {op.results[0].tensor.dtype.name for op in module.main.body.ops if op.name in ops}


def passed(module: Module, **options: str) -> PassContext:
    target, chosen = parse_target("zen3"), Options(**options)  # type: ignore[arg-type]
    ctx = PassContext(target, chosen)
    run_passes(module, default_passes(chosen), ctx)
    return ctx


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_convolutions_have_the_layouts_of_float32(dtype: dt.DType, numerics: str) -> None:
    module = program(network(dtype), tensor(dtype, (1, 16, 12)))
    passed(module, numerics=numerics)
    used = "conv_blocked" if numerics == "strict" else "winograd_product"
    assert dtypes_of(module, used) == {"f32"}
    assert dtypes_of(module, "add", "mul", "exp") == {"f32"}
    assert module.main.returns[0].tensor.dtype is dtype


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_chain_rounds_once(dtype: dt.DType) -> None:
    """What leaves is the result of float32, rounded."""
    x = RNG.standard_normal((1, 16, 12)).astype(dtype.storage)
    narrow = program(network(dtype), tensor(dtype, (1, 16, 12)))
    module = program(network(dtype), tensor(dtype, (1, 16, 12)))
    run_passes(module, [WidenFloats(), Canonicalize()], PassContext(None, Options()))
    (found,) = evaluate_func(module.main, module, [x])
    casts = [op for op in module.main.body.ops if op.name == "cast" and op.attrs["dtype"] is dtype]
    assert len(casts) == 1
    (rounded,) = evaluate_func(narrow.main, narrow, [x])
    step = np.finfo(np.float16).eps if dtype is dt.f16 else 2.0**-7
    np.testing.assert_allclose(found.astype(np.float64), rounded.astype(np.float64), atol=8 * step, rtol=8 * step)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_strict_programs_round_in_each_operator(dtype: dt.DType) -> None:
    """To the bit, in the order of sums that the interpreter has."""

    def body(x: Value) -> Value:
        y = matmul(x, weights(dtype, 16, 24))
        z = layer_norm(ew.mul(ew.add(y, 0.1), y), weights(dtype, 24), weights(dtype, 24), axis=-1)
        return ew.add(softmax(z, axis=-1), ew.max_(ew.exp(z), 0.3))

    module = program(body, tensor(dtype, (7, 16)))
    x = RNG.standard_normal((7, 16)).astype(dtype.storage)
    (expected,) = evaluate_func(module.main, module, [x])
    run_passes(module, [WidenFloats()], PassContext(None, Options(numerics="strict")))
    (found,) = evaluate_func(module.main, module, [x])
    assert dtypes_of(module, "matmul", "add", "mul", "exp") == {"f32"}
    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))


STEPS: dict[str, Callable[[Value], Value]] = {
    "comparison": lambda y: ew.gt(y, 1),
    "place": lambda y: argmax(y, axis=1),
    "integer": lambda y: ew.cast(ew.mul(y, 100), dtype=dt.i32),
    "floor": lambda y: ew.floor(ew.mul(y, 4)),
    "float8": lambda y: ew.cast(y, dtype=dt.f8e4m3),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_what_steps_takes_the_rounded_value(name: str, dtype: dt.DType) -> None:
    module = program(lambda x: STEPS[name](ew.add(x, 0.3)), tensor(dtype, (3, 500)))
    x = RNG.standard_normal((3, 500)).astype(dtype.storage)
    if name == "floor":  # a product is rounded once more
        module = program(lambda x: ew.floor(ew.add(x, 0.3)), tensor(dtype, (3, 500)))
    if name == "integer":
        module = program(lambda x: ew.cast(ew.add(x, 100.3), dtype=dt.i32), tensor(dtype, (3, 500)))
    (expected,) = evaluate_func(module.main, module, [x])
    run_passes(module, [WidenFloats(), Canonicalize()], PassContext(None, Options()))
    (found,) = evaluate_func(module.main, module, [x])
    assert np.array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_casts_of_the_model_round() -> None:
    def body(x: Value) -> Value:
        return ew.mul(ew.cast(ew.cast(ew.add(x, 0.1), dtype=dt.f16), dtype=dt.f32), 2)

    module = program(body, tensor(dt.f32, (50,)))
    x = RNG.standard_normal(50).astype(np.float32)
    (expected,) = evaluate_func(module.main, module, [x])
    run_passes(module, [WidenFloats(), Canonicalize()], PassContext(None, Options()))
    (found,) = evaluate_func(module.main, module, [x])
    assert np.array_equal(found, expected)


def test_numbers_are_those_that_sixteen_bits_hold() -> None:
    module = program(lambda x: ew.mul(x, 0.1), tensor(dt.bf16, (4,)))
    run_passes(module, [WidenFloats(), Canonicalize()], PassContext(None, Options()))
    values = [op.attrs["value"] for op in module.main.body.ops if op.name == "full"]
    assert values == [float(np.asarray(0.1).astype(dt.bf16.storage))]


def test_casts_of_numbers_round_them_first() -> None:
    cast = program(lambda x: ew.add(x, ew.cast(full(value=0.1, dtype=dt.f16, shape=()), dtype=dt.f32)),
                   tensor(dt.f32, (4,)))
    run_passes(cast, [Canonicalize()], PassContext(None, Options()))
    assert [op.attrs["value"] for op in cast.main.body.ops if op.name == "full"] == [float(np.float16(0.1))]


def test_what_only_moves_stays_in_sixteen_bits() -> None:
    module = program(
        lambda x, y: transpose(concat(x, y, axis=0), perm=(1, 0)), tensor(dt.f16, (3, 4)), tensor(dt.f16, (2, 4))
    )
    run_passes(module, [WidenFloats()], PassContext(None, Options()))
    assert [op.name for op in module.main.body.ops] == ["concat", "transpose", "return"]


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_compiled(dtype: dt.DType, numerics: str) -> None:
    module = program(network(dtype), tensor(dtype, (1, 16, 12)))
    x = RNG.standard_normal((1, 16, 12)).astype(dtype.storage)
    (expected,) = evaluate_func(module.main, module, [x])
    model = Model(compile_module(module, Options(verify=True, numerics=numerics), parse_target("host")), 1)
    step = 2.0**-10 if dtype is dt.f16 else 2.0**-7
    np.testing.assert_allclose(
        model(x)[0].astype(np.float64), expected.astype(np.float64), atol=8 * step, rtol=8 * step
    )


def test_sums_do_not_overflow_between_operators() -> None:
    module = program(lambda x: ew.sqrt(reduce_sum(ew.mul(x, x), axes=(0,))), tensor(dt.f16, (4,)))
    run_passes(module, [WidenFloats()], PassContext(None, Options()))
    (found,) = evaluate_func(module.main, module, [np.full(4, 300, np.float16)])
    assert found == 600


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_weights_of_16_bits_may_scale_results_of_float32(dtype: dt.DType, numerics: str) -> None:
    """No result of the operator is of 16 bits then, an operand alone is."""
    module = program(lambda x: rms_norm(x, weights(dtype, 12)), tensor(dt.f32, (4, 12)))
    passed(module, numerics=numerics)
    assert module.main.returns[0].tensor.dtype is dt.f32


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["cholesky", "mod", "solve_triangular"])
def test_whatever_computes_on_floats_does_so_in_float32(name: str, strict: bool) -> None:
    def body(x: Value) -> Value:
        square = ew.add(matmul(x, transpose(x, perm=(1, 0))), constant(np.eye(4, dtype=np.float16) * 4))
        if name == "cholesky":
            return cholesky(square)[0]
        return ew.mod(x, full(value=0.75, dtype=dt.f16, shape=())) if name == "mod" else solve_triangular(
            square, x, upper=False
        )  # fmt: skip

    module = program(body, tensor(dt.f16, (4, 4)))
    x = RNG.standard_normal((4, 4)).astype(np.float16)
    (wanted,) = evaluate_func(module.main, module, [x])
    passed(module, numerics="strict" if strict else "default")
    assert dtypes_of(module, name) == {"f32"}
    (found,) = evaluate_func(module.main, module, [x])
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=4e-2, atol=4e-2)


def test_what_steps_takes_what_the_model_would_have_seen() -> None:
    """The remainder of a sum that rounds to a multiple is 0, and not nearly the divisor."""

    def body(x: Value, y: Value) -> Value:
        return ew.mod(ew.add(x, y), full(value=1.0, dtype=dt.f16, shape=()))

    module = program(body, tensor(dt.f16, (1,)), tensor(dt.f16, (1,)))
    passed(module)
    arrays = [np.array([v], np.float16) for v in (512.0, -0.01)]
    (found,) = evaluate_func(module.main, module, arrays)
    assert found.tolist() == [0.0]


def test_units_take_the_operands_of_products_as_they_are() -> None:
    """What a product reads is in memory in 16 bits, for its other readers as well."""
    module, wide = (program(network(dt.f16), tensor(dt.f16, (1, 16, 8))) for _ in range(2))
    run_passes(module, [WidenFloats(frozenset((dt.f16,)))], PassContext(None, Options()))
    convs = [op for op in module.main.body.ops if op.name == "conv"]
    assert [op.attrs["sums"] for op in convs] == [dt.f32] * 2
    assert {v.tensor.dtype for op in convs for v in op.operands} == {dt.f16}
    relu = next(op for op in module.main.body.ops if op.name == "max")
    assert [user.name for user in relu.result.users] == ["cast"]
    x = RNG.standard_normal((1, 16, 8)).astype(np.float16)
    (found,), (expected,) = (evaluate_func(m.main, m, [x]) for m in (module, wide))
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)


def test_depths_that_are_no_multiple_of_a_units_have_one() -> None:
    """Zeros are added to them."""
    module = program(lambda x: conv(x, weights(dt.f16, 32, 3, 3)), tensor(dt.f16, (1, 3, 8)))
    run_passes(module, [WidenFloats(frozenset((dt.f16,)))], PassContext(None, Options()))
    assert [op.attrs["sums"] for op in module.main.body.ops if op.name == "conv"] == [dt.f32]
