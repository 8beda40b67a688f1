"""Quantised networks as programs of integers: each rule against the floats that it stands for, and the same bits on
every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import var
from tilewright.ir.text import print_module
from tilewright.ir.types import TensorType, tensor
from tilewright.ir.verify import verify_func
from tilewright.ops import activation, contract, norm, pool, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.ops.index import gather
from tilewright.ops.quant import dequantize_linear, dynamic_quantize_linear, quantize_linear
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

MACHINES = ("zen3", "cascadelake", "x86-64-v4", "neoverse-n1")
SCALE, ZERO = 0.037, 131


def q(x: Value, scale: Any = SCALE, zero: int = ZERO, dtype: dt.DType = dt.u8) -> Value:
    """The numbers rounded to bytes, as QuantizeLinear and DequantizeLinear do."""
    parameters = [constant(np.asarray(scale, np.float32)), constant(np.asarray(zero, dtype.storage))]
    return dequantize_linear(quantize_linear(x, *parameters, dtype=dtype), *parameters, dtype=dt.f32)


def w(*shape: int, axis: int | None = 0, seed: int = 1) -> Value:
    """Known numbers, quantised to bytes by a scale for each position of `axis`."""
    rng = np.random.default_rng(seed)
    scale = np.float32(0.004)
    if axis is not None:
        scale = (rng.random([n if k == axis else 1 for k, n in enumerate(shape)]) * 0.01 + 1e-3).astype(np.float32)
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    return dequantize_linear(constant(codes), constant(scale), constant(np.zeros_like(scale, np.int8)), dtype=dt.f32)


def f(*shape: int, seed: int = 2) -> Value:
    """Known numbers."""
    return constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


PAD = {"pads_begin": (1, 1), "pads_end": (1, 1)}
IMAGE, ROWS = (2, 16, 9, 7), (3, 5, 32)


def conv(x: Value, filters: int = 24, groups: int = 1, **attrs: Any) -> Value:
    channels = x.tensor.shape[1].value
    return contract.conv(x, w(filters, channels // groups, 3, 3), groups=groups, **{**PAD, **attrs})


def attention(x: Value) -> Value:
    query, key, value = (q(contract.matmul(q(x), w(32, 32, axis=1, seed=k)), 0.02) for k in (1, 2, 3))
    scores = q(contract.matmul(query, view.transpose(key, perm=(0, 2, 1))), 0.05)
    shares = q(norm.softmax(ew.mul(scores, 0.25), axis=-1), 1 / 256, 0)
    return q(contract.matmul(shares, value), 0.02)


BODIES: dict[str, tuple[Sequence[int], Callable[[Value], Value]]] = {
    "convolution": (IMAGE, lambda x: q(ew.max_(ew.add(conv(q(x)), f(24, 1, 1)), 0.0), 0.1, 0)),
    "i8": (IMAGE, lambda x: q(conv(q(x, 0.05, -3, dt.i8)), 0.1, 5, dt.i8)),
    "depthwise": (IMAGE, lambda x: q(ew.min_(ew.max_(conv(q(x), 16, 16), 0.0), 6.0), 0.03, 0)),
    "strides": (IMAGE, lambda x: q(conv(q(x), strides=(2, 2)), 0.1)),
    "transposed": (IMAGE, lambda x: q(contract.conv_transpose(q(x), w(16, 8, 3, 3, axis=1), strides=(2, 2)), 0.1)),
    "two layers": (IMAGE, lambda x: q(conv(q(ew.max_(conv(q(x)), 0.0), 0.1, 0), 16), 0.2)),
    "two layers without bytes between": (IMAGE, lambda x: q(conv(ew.max_(conv(q(x)), 0.0), 16), 0.5)),
    "attention without bytes between": (
        ROWS, lambda x: q(contract.matmul(norm.softmax(contract.matmul(q(x), q(x), transpose_b=True)), q(x)), 0.02),
    ),
    "product": (ROWS, lambda x: q(ew.add(contract.matmul(q(x), w(32, 48, axis=1)), f(48)), 0.05)),
    "product, transposed weights": (ROWS, lambda x: q(contract.matmul(q(x), w(48, 32), transpose_b=True), 0.05)),
    "residual": (IMAGE, lambda x: q(ew.add(q(x), q(ew.mul(q(x), 0.3), 0.011)), 0.05)),
    "residual of sums": (IMAGE, lambda x: q(ew.add(conv(q(x), 16), q(x)), 0.1)),
    "subtraction": (IMAGE, lambda x: q(ew.sub(q(x), q(ew.neg(q(x)), 0.05)), 0.07)),
    "multiplication": (IMAGE, lambda x: q(ew.mul(q(x), q(ew.add(q(x), 1.0), 0.04)), 0.1)),
    "channels": (IMAGE, lambda x: q(ew.mul(ew.add(q(x), f(16, 1, 1)), f(16, 1, 1, seed=5)), 0.08)),
    "by a global mean": (
        IMAGE, lambda x: q(ew.mul(q(x), q(ew.sigmoid(q(reduce.reduce_mean(q(x), axes=(2, 3)), 0.01)), 1 / 256, 0))),
    ),
    "means of windows": (IMAGE, lambda x: q(pool.average_pool(q(x), kernel=(3, 3), **PAD), 0.03)),
    "greatest of windows": (IMAGE, lambda x: q(pool.max_pool(q(x), kernel=(3, 3), strides=(2, 2), **PAD))),
    "concatenation": (IMAGE, lambda x: q(view.concat(q(x), q(ew.mul(q(x), 2.0), 0.1, 9), axis=1), 0.05)),
    "moves": (ROWS, lambda x: q(view.transpose(view.reshape(q(x), shape=(15, 32)), perm=(1, 0)))),
    "padding": (IMAGE, lambda x: q(view.pad(q(x), before=(0, 0, 1, 2), after=(0, 0, 0, 1), value=1.11))),
    "padding by the least": (
        IMAGE,
        lambda x: q(pool.max_pool(view.pad(q(x), before=(0, 0, 1, 1), after=(0,) * 4, value=-1e30), kernel=(2, 2))),
    ),
    "nearest": (IMAGE, lambda x: q(gather(q(x), constant(np.arange(18) // 2), axis=2))),
    "function": (IMAGE, lambda x: q(activation.gelu(q(x)), 0.02, 9)),
    "function, then a move": (ROWS, lambda x: q(view.reshape(ew.mul(q(x), ew.sigmoid(q(x))), shape=(15, 32)), 0.02, 9)),
    "function that others read": (IMAGE, lambda x: q(ew.add(ew.tanh(q(x)), q(ew.neg(q(x)), 0.03)), 0.04)),
    "leaky": (IMAGE, lambda x: q(ew.select(ew.lt(q(x), 0.0), ew.mul(q(x), 0.1), q(x)))),
    "leaky, by channels": (IMAGE, lambda x: q(ew.select(ew.lt(q(x), 0.0), ew.mul(q(x), f(16, 1, 1)), q(x)))),
    "less than": (IMAGE, lambda x: q(ew.select(ew.gt(q(x), q(ew.neg(q(x)), 0.05)), q(x), ew.mul(q(x), 0.5)), 0.05)),
    "absolute": (IMAGE, lambda x: q(ew.abs_(ew.add(q(x), f(16, 1, 1))), 0.02, 0)),
    "lesser": (IMAGE, lambda x: q(ew.min_(q(x), q(ew.neg(q(x)), 0.05)), 0.04)),
    "quotient": (IMAGE, lambda x: q(ew.div(conv(q(x)), 8.0), 0.01)),
    "softmax": (ROWS, lambda x: q(norm.softmax(q(x), axis=-1), 1 / 256, 0)),
    "softmax along the middle": (ROWS, lambda x: q(norm.softmax(q(x), axis=1), 1 / 256, 0)),
    "layer norm": (ROWS, lambda x: q(norm.layer_norm(q(x), f(32), f(32, seed=4)), 0.05)),
    "layer norm of a sum": (
        ROWS, lambda x: q(norm.layer_norm(ew.add(q(x), f(5, 32, seed=6)), f(32), f(32, seed=4)), 0.05),
    ),
    "rms norm": (ROWS, lambda x: q(norm.rms_norm(q(x), f(32)), 0.05)),
    "attention": (ROWS, attention),
    "mask": (
        ROWS,
        lambda x: q(
            norm.softmax(
                ew.add(q(x), constant(np.where(np.arange(32) < 20, 0, np.finfo(np.float32).min).astype(np.float32)))
            ), 1 / 256, 0,
        ),
    ),
    "16 bits": (ROWS, lambda x: q(contract.matmul(q(x, 1e-3, 0, dt.i16), w(32, 16, axis=1)), 1e-3, 0, dt.i16)),
}  # fmt: skip
COARSE = {"16 bits": 4}
"""Steps of the result between integers and floats, where more than 1."""


def module_of(name: str) -> Module:
    shape, body = BODIES[name]
    return program(body, shape)


def passed(module: Module, machine: str) -> PassContext:
    target, options = parse_target(machine), Options(integer_only=True)
    ctx = PassContext(target, options)
    run_passes(module, default_passes(options), ctx, verify=lambda m: verify_func(m.main, graph_spec(m)))
    return ctx


def text_and_constants(module: Module) -> tuple[str, ...]:
    known = (f"{name} {a.dtype} {a.shape} {a.tobytes().hex()}" for name, a in module.constants.items())
    return print_module(module), *known


def floats_in(module: Module) -> list[str]:
    values = [(op.name, v) for op in module.main.body.ops for v in (*op.operands, *op.results)]
    values += [("argument", a) for a in module.main.args]
    return [name for name, v in values if isinstance(v.type, TensorType) and v.type.dtype.is_float]


def numbers(shape: Sequence[int]) -> np.ndarray:
    x = np.random.default_rng(8).standard_normal(shape).astype(np.float32)
    x.reshape(-1)[:4] = 0, 100, -100, SCALE / 2
    return x


def as_integers(x: np.ndarray, row: tuple[Any, ...]) -> np.ndarray:
    _, _, name, scale, zero = row
    limits = np.iinfo(name)
    return np.clip(np.rint(x / np.float32(scale)) + zero, limits.min, limits.max).astype(name)


def as_numbers(x: np.ndarray, row: tuple[Any, ...]) -> np.ndarray:
    _, _, name, scale, zero = row
    assert x.dtype == name
    return (x.astype(np.float64) - zero) * scale


@pytest.mark.parametrize("name", BODIES)
def test_integers_stand_for_the_numbers_on_every_machine(name: str) -> None:
    module = module_of(name)
    x = numbers(BODIES[name][0])
    (expected,) = evaluate_func(module.main, module, [x])
    first, seen = None, set()
    for machine in MACHINES:
        module = module_of(name)
        passed(module, machine)
        assert floats_in(module) == []
        made = text_and_constants(module)
        if made in seen:  # what a program means depends on nothing else
            continue
        seen.add(made)
        given, got = module.main.attrs["integers"]
        (found,) = evaluate_func(module.main, module, [as_integers(x, given)])
        first = found if first is None else first
        np.testing.assert_array_equal(found, first)
        error = np.abs(as_numbers(found, got) - expected)
        assert error.max() <= (COARSE.get(name, 1) + 0.01) * got[3]
        assert np.mean(error > got[3] / 2) < 0.05
    assert first is not None and len(np.unique(first)) > 5


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", BODIES)
def test_machine_code_gives_the_same(name: str) -> None:
    module = module_of(name)
    passed(module, "zen3")
    given = module.main.attrs["integers"][0]
    x = as_integers(numbers(BODIES[name][0]), given)
    expected = evaluate_func(module.main, module, [x])
    options = Options(threads=1, integer_only=True)
    found = Model(compile_module(module_of(name), options, parse_target("host")))(x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ("x86-64-v4", "neoverse-n1"))
@pytest.mark.parametrize("name", ["convolution", "residual", "attention", "layer norm", "function", "depthwise"])
def test_kernels_of_other_machines_give_the_same(name: str, machine: str) -> None:
    module = module_of(name)
    passed(module, machine)
    x = as_integers(numbers(BODIES[name][0]), module.main.attrs["integers"][0])
    expected = evaluate_func(module.main, module, [x])
    oracle.scheduled(module, machine)
    np.testing.assert_array_equal(oracle.run(module, [x]), expected)


# A whole network, by arithmetic of Python's own integers


def to_bytes(sums: np.ndarray, factor: np.ndarray, zero: int) -> np.ndarray:
    """Sums [.., channels, h, w] times exact factors by channels, halves rounded up."""
    found = np.empty(sums.shape, np.int64)
    for index, n in np.ndenumerate(sums):
        exact = int(n) * factor[index[1]] + Fraction(1, 2)
        found[index] = min(max(exact.numerator // exact.denominator + zero, 0), 255)
    return found


def fixed(factors: np.ndarray) -> list[Fraction]:
    """Factors of 31 binary digits, the largest of them; the others with as many behind the point."""
    exact = [Fraction(float(x)) for x in factors]
    digits = 0
    while max(exact) * 2**digits < 2**30:
        digits += 1
    return [Fraction(round(x * 2**digits), 2**digits) for x in exact]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_layer_is_what_big_integers_say(machine: str) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8)
    scales = (rng.random(8) * 0.01 + 1e-3).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    x_scale, y_scale = np.float32(0.031), np.float32(0.12)

    def body(x: Value) -> Value:
        parameters = scales.reshape(8, 1, 1, 1), np.zeros((8, 1, 1, 1), np.int8)
        right = dequantize_linear(*map(constant, (codes, *parameters)), dtype=dt.f32)
        sums = contract.conv(q(x, x_scale, 120), right, **PAD)
        return q(ew.max_(ew.add(sums, constant(bias.reshape(8, 1, 1))), 0.0), y_scale, 3)

    module = program(body, (1, 4, 5, 6))
    passed(module, machine)
    assert module.main.attrs["integers"] == (
        ("input", "x0", "uint8", float(x_scale), 120), ("output", "output0", "uint8", float(y_scale), 3),
    )  # fmt: skip
    x = rng.integers(0, 256, (1, 4, 5, 6)).astype(np.uint8)
    (found,) = evaluate_func(module.main, module, [x])

    padded = np.pad(x.astype(np.int64) - 120, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    sums = np.einsum("nchwij,ocij->nohw", windows, codes.astype(np.int64))
    of_sums = float(x_scale) * scales.astype(np.float64)
    sums = np.maximum(sums + np.rint(bias.astype(np.float64) / of_sums).astype(np.int64).reshape(8, 1, 1), 0)
    expected = to_bytes(sums, fixed(of_sums / float(y_scale)), 3)
    np.testing.assert_array_equal(found, expected)


# The border


def test_outputs_that_are_not_quantised_are_in_fixed_point() -> None:
    module = program(lambda x: contract.matmul(q(x), w(32, 8, axis=1)), (3, 32))
    x = numbers((3, 32))
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, "zen3")
    given, got = module.main.attrs["integers"]
    assert (got[0], got[2], got[4]) == ("output", "int32", 0)
    (found,) = evaluate_func(module.main, module, [as_integers(x, given)])
    np.testing.assert_allclose(as_numbers(found, got), expected, atol=1e-5 * np.abs(expected).max())


def test_tokens() -> None:
    """A table of floats, positions, and a norm."""

    def body(ids: Value) -> Value:
        return norm.layer_norm(ew.add(gather(f(50, 32), ids), f(7, 32, seed=9)), f(32), f(32, seed=4))

    module = program(body, tensor(dt.i64, (2, 7)))
    ids = np.random.default_rng(1).integers(0, 50, (2, 7))
    (expected,) = evaluate_func(module.main, module, [ids])
    passed(module, "zen3")
    assert floats_in(module) == []
    (row,) = module.main.attrs["integers"]
    (found,) = evaluate_func(module.main, module, [ids])
    np.testing.assert_allclose(as_numbers(found, row), expected, atol=2e-3)


def test_a_batch_of_unknown_size() -> None:
    batch = var("batch")
    body = BODIES["two layers"][1]
    module = program(body, (batch, 16, 9, 7))
    same = program(body, (5, 16, 9, 7))
    passed(module, "zen3")
    passed(same, "zen3")
    x = as_integers(numbers((5, 16, 9, 7)), module.main.attrs["integers"][0])
    np.testing.assert_array_equal(
        evaluate_func(module.main, module, [x]), evaluate_func(same.main, same, [x])
    )


def test_the_report_says_what_the_integers_stand_for() -> None:
    artifact = compile_module(module_of("product"), Options(threads=1, integer_only=True), parse_target("host"))
    rows = artifact.report.integers
    assert [(r.tensor, r.dtype, r.zero_point) for r in rows] == [
        ("input", "uint8", ZERO), ("output", "uint8", ZERO),
    ]  # fmt: skip
    assert rows[0].scale == pytest.approx(SCALE)
    assert [i.dtype for i in (*artifact.inputs, *artifact.outputs)] == ["uint8", "uint8"]


# Obstacles


def test_every_obstacle_is_listed_once() -> None:
    def body(x: Value) -> Value:
        sums = contract.matmul(q(x), f(32, 32))
        return q(ew.exp(ew.add(ew.exp(sums), ew.sqrt(contract.matmul(q(x), w(32, 32, axis=1))))))

    with pytest.raises(UnsupportedError) as caught:
        passed(program(body, (3, 32)), "zen3")
    problems = caught.value.problems
    assert [(p.operator, p.reason) for p in problems] == [
        ("matmul", "its weights are floats"), ("sqrt", "it has no form in integers"),
    ]  # fmt: skip
    assert all(p.hint for p in problems)
    assert all(p.reason in str(caught.value) and p.hint in str(caught.value) for p in problems)


OBSTACLES: dict[str, tuple[str, Callable[[Value], Value]]] = {
    "no quantisation": ("is read as floats by", lambda x: ew.mul(x, 2.0)),
    "twice": ("its readers quantise it differently", lambda x: ew.add(q(x), q(x, 0.05))),
    "dynamic": ("is read as floats by", lambda x: ew.cast(dynamic_quantize_linear(x)[0], dtype=dt.f32)),
    "division": ("it divides by what is not known", lambda x: q(ew.div(q(x), q(ew.add(q(x), 1.0), 0.05)))),
    "scales along the sum": ("differ along the sum", lambda x: q(contract.matmul(q(x), w(32, 8, axis=0)))),
    "floats of 8 bits": ("quantised to f8e4m3", lambda x: q(x, 0.1, 0, dt.f8e4m3)),
    "integers of 64 bits": (
        "integers of 64 bits become floats",
        lambda x: q(ew.add(q(x), ew.cast(reduce.argmax(q(x), axis=1, keepdims=True), dtype=dt.f32))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OBSTACLES)
def test_obstacles(name: str) -> None:
    words, body = OBSTACLES[name]
    with pytest.raises(UnsupportedError, match=words) as caught:
        passed(program(body, (3, 32)), "zen3")
    assert caught.value.hint and caught.value.problems


def test_sizes_that_are_not_known() -> None:
    rows = var("rows")
    body = lambda x: q(reduce.reduce_sum(q(x), axes=(0,)))  # noqa: E731
    with pytest.raises(UnsupportedError, match="sums a number of elements that is not known"):
        passed(program(body, (rows, 32)), "zen3")


def test_what_turns_out_to_be_known() -> None:
    """x - x is 0 for each byte, and so is known what compares it."""

    def body(x: Value) -> Value:
        nothing = q(ew.sub(q(x), q(x)), 0.02, 7)
        return q(ew.select(ew.gt(nothing, 0.0), nothing, q(x)), 0.05)

    module = program(body, (3, 32))
    x = numbers((3, 32))
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, "zen3")
    given, got = module.main.attrs["integers"]
    (found,) = evaluate_func(module.main, module, [as_integers(x, given)])
    np.testing.assert_allclose(as_numbers(found, got), expected, atol=1.01 * got[3])


def test_known_numbers_are_quantised_when_compiling() -> None:
    def body(x: Value) -> Value:
        return q(view.concat(q(x), q(f(1, 32)), axis=0))

    module = program(body, (3, 32))
    x = numbers((3, 32))
    (expected,) = evaluate_func(module.main, module, [x])
    passed(module, "zen3")
    given, got = module.main.attrs["integers"]
    (found,) = evaluate_func(module.main, module, [as_integers(x, given)])
    np.testing.assert_allclose(as_numbers(found, got), expected, atol=1e-6)


def test_places_of_the_greatest() -> None:
    module = program(lambda x: reduce.argmax(q(x), axis=1), (3, 32))
    x = numbers((3, 32))
    expected = evaluate_func(module.main, module, [x])
    passed(module, "zen3")
    assert floats_in(module) == []
    found = evaluate_func(module.main, module, [as_integers(x, module.main.attrs["integers"][0])])
    np.testing.assert_array_equal(found, expected)


def test_integers_alone_are_left_as_they_are() -> None:
    module = program(lambda x: ew.add(x, full(value=3, dtype=dt.i32, shape=())), tensor(dt.i32, (4,)))
    passed(module, "zen3")
    assert module.main.attrs["integers"] == ()
