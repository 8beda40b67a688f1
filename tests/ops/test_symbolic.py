"""Arithmetic on dims that models do on tensors, followed as expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import InputError
from tilewright.ir.sym import Sym, parse_sym, sym, var
from tilewright.ir.types import tensor
from tilewright.ops import contract, index, norm, reduce, source, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.binding import MAX_ELEMENTS, bound_dims, input_variables
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Ratio, UnknownValueError
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.symbolic import Values, symbols

N, H = var("n"), var("h", 1)


def symbolic_value(value: Value, module: Module) -> np.ndarray | None:
    """The elements of a small tensor as Syms and Ratios; None where they are not known."""
    known = Values(module).of(value)
    try:
        return None if known is None or known.elements.size > MAX_ELEMENTS else symbols(known, value)
    except UnknownValueError:
        return None


def followed(build: Callable[..., Value], *args: Any) -> list[str] | None:
    """The text of the symbolic elements of what `build` makes of inputs of types `args`."""
    module = Module()
    block = Block(args, [f"in{k}" for k in range(len(args))])
    with Builder(block, module):
        found = symbolic_value(build(*block.args), module)
    return None if found is None else [str(x) for x in found.flat]


def dims_tensor() -> Value:
    return source.sym_tensor(values=(N, H, sym(3)))


def test_shape_gather_concat_reshape() -> None:
    def build() -> Value:
        batch = index.gather(dims_tensor(), constant(np.array([0])))
        rest = ew.mul(index.gather(dims_tensor(), constant(np.array([1]))), constant(np.array([2])))
        return view.concat(batch, rest, constant(np.array([-1])), axis=0)

    assert followed(build) == ["n", "2*h", "-1"]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda d: ew.add(d, 1), ["n + 1", "h + 1", "4"]),
        (lambda d: ew.div(d, 2), ["n // 2", "h // 2", "1"]),
        (lambda d: ew.neg(ew.div(ew.neg(d), 2)), ["n // 2", "h // 2", "1"]),
        (lambda d: ew.mod(d, 2), ["n % 2", "h % 2", "1"]),
        (lambda d: ew.max_(d, 1), ["max(n, 1)", "h", "3"]),
        (lambda d: reduce.reduce_prod(d, axes=(0,)), ["3*h*n"]),
        (lambda d: reduce.reduce_sum(d, axes=(0,)), ["h + n + 3"]),
        (lambda d: view.reverse(d, axes=(0,)), ["3", "h", "n"]),
        (lambda d: view.unsqueeze(d, axes=(0,)), ["n", "h", "3"]),
        (lambda d: view.pad(d, before=(1,), after=(0,), value=7), ["7", "n", "h", "3"]),
        (lambda d: ew.cast(ew.ge(d, 0), dtype=dt.i64), ["1", "1", "1"]),
        (lambda d: ew.select(ew.eq(d, 3), d, ew.sub(d, d)), ["3*(n == 3)", "3*(h == 3)", "3"]),
    ],
)
def test_integer_operators(operation: Callable[[Value], Value], expected: list[str]) -> None:
    found = followed(lambda: operation(dims_tensor()))
    assert found is not None
    env = {"n": 3, "h": 4}
    values = [_evaluated(text, env) for text in found]
    assert values == [_evaluated(text, env) for text in expected]
    assert len(found) == len(expected)


def _evaluated(text: str, env: dict[str, int]) -> int:
    return parse_sym(text, lambda name: var(name)).evaluate(env)


@pytest.mark.parametrize(
    ("factor", "rounding", "expected"),
    [
        (2.0, ew.floor, lambda d: d * 2),
        (0.5, ew.floor, lambda d: d // 2),
        (0.5, ew.ceil, lambda d: (d + 1) // 2),
        (1 / 3, ew.floor, lambda d: d // 3),
        (0.5, ew.round_, lambda d: round(d / 2)),
        (1.25, ew.trunc, lambda d: d * 5 // 4),
        (0.7310586, ew.floor, lambda d: int(d * 0.7310586)),
    ],
)
def test_dims_times_a_fraction(factor: float, rounding: Any, expected: Callable[[int], int]) -> None:
    def build() -> Value:
        scaled = ew.mul(ew.cast(source.sym_tensor(values=(H,)), dtype=dt.f32), constant(np.float32(factor)))
        return ew.cast(rounding(scaled), dtype=dt.i64)

    module = Module()
    with Builder(Block(), module):
        (found,) = symbolic_value(build(), module)
    assert [found.evaluate({"h": d}) for d in range(1, 20)] == [expected(d) for d in range(1, 20)]


def test_a_quotient_of_dims_is_a_float() -> None:
    module = Module()
    with Builder(Block(), module):
        twice = ew.cast(source.sym_tensor(values=(2 * H,)), dtype=dt.f32)
        (found,) = symbolic_value(
            ew.div(twice, ew.cast(source.sym_tensor(values=(H,)), dtype=dt.f32)), module
        )
    assert found == Ratio(sym(2), sym(1))


def test_what_is_not_followed() -> None:
    floats, ints = tensor(dt.f32, (2,)), tensor(dt.i64, (3,))
    assert followed(lambda x: norm.softmax(x), floats) is None
    assert followed(lambda x: x, floats) is None
    assert followed(lambda x: index.gather(dims_tensor(), x), ints) is None
    assert followed(lambda: ew.exp(ew.cast(dims_tensor(), dtype=dt.f32))) is None
    assert followed(lambda: source.full(value=1, dtype=dt.i64, shape=(1000,))) is None
    assert followed(lambda: ew.div(dims_tensor(), 0)) is None
    assert followed(lambda: index.gather(dims_tensor(), constant(np.array([5])))) is None


def test_inputs_that_may_determine_shapes_are_variables() -> None:
    ints = tensor(dt.i64, (2,))
    assert followed(lambda x: ew.add(x, 1), ints) == ["val_in0_0 + 1", "val_in0_1 + 1"]
    block = Block([tensor(dt.i64, ()), tensor(dt.i64, (N,)), tensor(dt.i64, (2, 2))], ["a:0", "b", "c"])
    names = [input_variables(v) for v in block.args]
    assert names[0] is not None and str(names[0][()]) == "val_a_3a_0_0"
    assert names[1] is None and names[2] is None


def test_a_function_runs_with_dims_bound_from_its_inputs() -> None:
    module = Module()
    block = Block([tensor(dt.f32, (N, 4)), tensor(dt.i64, (1,))], ["x", "count"])
    with Builder(block, module) as builder:
        x, count = block.args
        (rows,) = symbolic_value(count, module)
        joined = view.reshape(x, shape=(N * 4,))
        cut = view.slice_(joined, starts=(0,), sizes=(rows,))
        mean = reduce.reduce_mean(x, axes=(0,))
        grid = contract.matmul(x, x, transpose_b=True)
        builder.emit("return", [cut, mean, grid])
    func = module.add(Func("main", block))
    for n, k in ((3, 5), (1, 0), (6, 24)):
        data = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        found = evaluate_func(func, module, [data, np.array([k])])
        np.testing.assert_array_equal(found[0], data.reshape(-1)[:k])
        np.testing.assert_allclose(found[1], data.mean(0, keepdims=True), rtol=1e-6)
        np.testing.assert_allclose(found[2], data @ data.T, rtol=1e-5, atol=1e-6)


def test_inputs_that_contradict_their_types() -> None:
    block = Block([tensor(dt.f32, (N, 2)), tensor(dt.f32, (N + 1,))], ["x", "y"])
    good, pair = np.zeros((3, 2), np.float32), np.zeros(4, np.float32)
    assert bound_dims(block.args, [good, pair]) == {"n": 3}
    for bad in ([good, pair[:3]], [good[0], pair], [good.astype(np.float64), pair]):
        with pytest.raises(InputError, match="must be f32"):
            bound_dims(block.args, bad)


def test_symbols_are_syms() -> None:
    module = Module()
    with Builder(Block(), module):
        found = symbolic_value(dims_tensor(), module)
    assert found is not None and found.dtype == object and all(isinstance(x, Sym) for x in found)


def scaled(dim: Sym, factor: float, dtype: dt.DType = dt.f32) -> tuple[Sym, list[str]]:
    """floor(dim * factor) in floats, and where that is known."""
    arithmetic = Arithmetic()
    number = element_of(np.asarray(factor).astype(dtype.storage), dtype)
    product = arithmetic.apply("mul", (arithmetic.cast(dim, dtype, dt.i64), number), dtype, dtype)
    size = arithmetic.cast(product, dt.i64, dtype)
    assert isinstance(size, Sym)
    return size, list(map(str, arithmetic.conditions))


@pytest.mark.parametrize(
    ("dtype", "factor", "expected", "known"),
    [
        (dt.f32, 0.5, "n // 2", ["n < 16777217"]),
        (dt.f16, 0.5, "n // 2", ["n < 2049"]),
        (dt.f64, 0.5, "n // 2", []),
        (dt.f32, 3.0, "3*n", ["n < 16777217", "n < 5592406"]),
        (dt.f32, 1 / 3, "n // 3", ["n < 16777217", "n < 4194305"]),
        (dt.f64, 0.1, "n // 10", []),
        (dt.f64, 1 / 3, "n // 3", []),
    ],
)
def test_where_floats_of_a_dim_are_known(
    dtype: dt.DType, factor: float, expected: str, known: list[str]
) -> None:
    size, conditions = scaled(N, factor, dtype)
    assert str(size) == expected and conditions == known


def test_dims_for_which_rounding_gives_another_size_are_left_out() -> None:
    size, conditions = scaled(N, 1.3)
    assert str(size) == "13*n // 10"
    holds = [parse_sym(c, lambda name: N) for c in conditions]
    for n in range(3000):
        exact = int(np.float32(n) * np.float32(1.3)) == n * 13 // 10
        assert exact == all(h.evaluate({"n": n}) for h in holds)


def test_rounded_arithmetic_on_two_dims_is_not_followed() -> None:
    with pytest.raises(UnknownValueError, match="2 dims"):
        scaled(N * H, 1.3)
    assert str(scaled(N * H, 0.3, dt.f64)[0]) == "3*h*n // 10"
    assert str(scaled(N * H, 0.25)[0]) == "h*n // 4"


def test_numbers_that_no_float_holds_are_not_followed() -> None:
    large = Arithmetic()
    with pytest.raises(UnknownValueError, match="too large"):
        large.apply(
            "add",
            (Ratio(sym(1 << 24), sym(1)), large.cast(var("m", 1), dt.f32, dt.i64)),
            dt.f32,
            dt.f32,
        )
