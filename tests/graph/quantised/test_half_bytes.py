"""Which weights lie two to a byte."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import inputs, program
from tilewright.graph.quantised.weight_only import WeightOnly
from tilewright.graph.rewrites.horizontal_fusion import HorizontalFusion
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.verify import verify_func
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce
from tilewright.ops import view as vw
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

FAR = "zen4,l2=65536,l3=65536"
"""Weights come from memory."""
NEAR = "zen4,l2=65536,l3=1073741824"


def numbers(low: int, high: int, *shape: int, dtype: type = np.int8) -> np.ndarray:
    found = np.random.default_rng(3).integers(low, high + 1, shape)
    found.reshape(-1)[:2] = low, high
    return found.astype(dtype)


def weights(q: np.ndarray, name: str = "q") -> Value:
    scale = np.random.default_rng(1).random((1, q.shape[1])).astype(np.float32)
    return ew.mul(ew.cast(constant(q, name), dtype=dt.f32), constant(scale, "scale"))


def after(module: Module, target: str = FAR, *, fused: bool = False) -> PassContext:
    """Lay weights out; the program stays legal and computes the same bits."""
    arrays = inputs(module)
    wanted = evaluate_func(module.main, module, arrays)
    ctx = PassContext(parse_target(target), Options())
    passes = [WeightOnly(), *([HorizontalFusion()] if fused else [])]
    run_passes(module, passes, ctx, verify=lambda m: verify_func(m.main, graph_spec(m)))
    for a, b in zip(wanted, evaluate_func(module.main, module, arrays), strict=True):
        np.testing.assert_array_equal(b, a)
    return ctx


def stored(module: Module) -> set[str]:
    return {a.dtype.name for a in module.constants.values()} - {"float32"}


@pytest.mark.parametrize(
    ("low", "high", "dtype", "found"),
    [
        (-8, 7, np.int8, "int4"),
        (0, 15, np.uint8, "uint4"),
        (0, 15, np.int8, "uint4"),
        (0, 8, np.uint8, "uint4"),
        (-65, 7, np.int8, "int8"),
        (-1, 64, np.int8, "int8"),
        (0, 64, np.uint8, "uint8"),
        (-8, 7, dt.i4.storage, "int4"),
    ],
)
def test_what_fits_half_a_byte(low: int, high: int, dtype: type, found: str) -> None:
    q = numbers(low, high, 32, 20, dtype=dtype)
    module = program(lambda x: ct.matmul(x, weights(q)), (2, 32))
    after(module)
    assert stored(module) == {found}


BOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@pytest.mark.parametrize(("count", "found"), [(2, "uint4"), (15, "uint4"), (16, "uint4"), (17, "int8")])
def test_few_levels_are_looked_up(count: int, found: str) -> None:
    q = np.array((*BOOK, 127)[:count], np.int8)[numbers(0, count - 1, 64, 90)]
    module = program(lambda x: ct.matmul(x, weights(q)), (2, 64))
    ctx = after(module)
    assert stored(module) == {found}
    looked_up = [op for op in module.main.body.ops if op.name == "level"]
    assert len(looked_up) == (count <= 16)
    assert count > 16 or any("two weights lie in a byte" in r.message for r in ctx.remarks)


def test_a_matrix_with_some_of_the_levels_of_another_has_its_codes() -> None:
    whole, some = (np.array(BOOK, np.int8)[numbers(0, most, 64, 20)] for most in (15, 9))
    module = program(lambda x: (ct.matmul(x, weights(whole)), ct.matmul(x, weights(some))), (2, 64))
    after(module)
    levels = {op.attrs["levels"] for op in module.main.body.ops if op.name == "level"}
    assert levels == {BOOK}


def test_near_weights_are_whole_bytes_where_that_is_faster() -> None:
    q = numbers(-8, 7, 512, 512, dtype=dt.i4.storage)
    module = program(lambda x: ct.matmul(x, weights(q)), (1, 512))
    ctx = after(module, NEAR)
    assert stored(module) == {"int8"}
    assert any("longer than reading" in r.message for r in ctx.remarks)


def test_zero_points_are_taken_off_in_halves_alone() -> None:
    def body(zero: int) -> Callable[[Value], Value]:
        q = constant(numbers(0, 15, 32, 20, dtype=np.uint8), "q")
        zeros = constant(np.full((1, 20), zero, np.float32), "zero")
        return lambda x: ct.matmul(x, ew.sub(ew.cast(q, dtype=dt.f32), zeros))

    for zero, dtype in ((8, "int4"), (5, "uint4")):
        module = program(lambda x, zero=zero: body(zero)(x), (2, 32))
        after(module)
        assert stored(module) == {dtype}


@pytest.mark.parametrize("depth", [33, 1])
def test_columns_of_an_odd_length_stay_whole(depth: int) -> None:
    module = program(lambda x: ct.matmul(x, weights(numbers(-8, 7, depth, 20))), (2, depth))
    ctx = after(module)
    assert stored(module) == {"int8"}
    assert any("no pairs" in r.message for r in ctx.remarks)


def test_what_else_reads_them_needs_them_whole() -> None:
    def body(x: Value) -> Value:
        wide = ew.cast(constant(numbers(-8, 7, 32, 20), "q"), dtype=dt.f32)
        return ew.add(ct.matmul(x, wide), reduce.reduce_sum(wide, axes=(0,)))

    module = program(body, (2, 32))
    after(module)
    assert stored(module) == {"int8"}


def test_what_picks_rows_reads_halves() -> None:
    def body(x: Value) -> Value:
        wide = ew.cast(constant(numbers(-8, 7, 32, 20), "q"), dtype=dt.f32)
        rows = gather(wide, constant(np.arange(2), "at"), axis=0)
        return ew.add(ct.matmul(x, wide), rows)

    module = program(body, (2, 32))
    after(module)
    assert stored(module) == {"int4", "int64"}


def test_a_transposed_matrix() -> None:
    def body(x: Value) -> Value:
        w = ew.mul(ew.cast(constant(numbers(-8, 7, 20, 32), "q"), dtype=dt.f32), 0.5)
        return ct.matmul(x, vw.transpose(w, perm=(1, 0)))

    module = program(body, (2, 32))
    after(module)
    assert stored(module) == {"int4"}
    assert any(a.shape == (32, 20) for a in module.constants.values())


def test_matrices_of_one_tensor_are_joined() -> None:
    def body(x: Value) -> Value:
        parts = [ct.matmul(x, weights(numbers(-8, 7, 32, n), f"q{n}")) for n in (20, 12)]
        return ew.add(*(vw.slice_(p, starts=(0, 0), sizes=(2, 12)) for p in parts))

    module = program(body, (2, 32))
    after(module, fused=True)
    assert [a.shape for a in module.constants.values() if a.dtype == dt.i4.storage] == [(32, 32)]


def test_other_machines_keep_bytes() -> None:
    module = program(lambda x: ct.matmul(x, weights(numbers(-8, 7, 32, 20))), (2, 32))
    run_passes(module, [WeightOnly()], PassContext(None, Options()))
    assert stored(module) == {"int8"}
