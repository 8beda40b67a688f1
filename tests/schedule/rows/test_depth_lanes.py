"""Products of few rows of the call with columns that lie along the sum: read as they lie, lanes along the depth."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import relu
from tilewright.ops.contract import matmul
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(11)
TARGETS = ["x86-64-v3", "x86-64-v4"]


def normal(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def turned(a: Value, b: Value) -> Value:
    return matmul(a, b, transpose_b=True)


def only_kernel(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def steps_of(kernel: Func) -> list[str]:
    return [line.strip().split("(")[0] for line in kernel_info(kernel).schedule]


def agreed(
    a: np.ndarray, b: np.ndarray, target: str, body: Callable[[Value, Value], Value] = turned
) -> list[str]:
    """The steps of the kernel of a product, whose results are checked."""
    dtype = dt.f64 if a.dtype == np.float64 else dt.f32
    types = [tensor(dtype, a.shape), tensor(dtype, b.shape)]
    return steps_of(only_kernel(oracle.agree(types, body, [a, b], target)[0]))


SHAPES = [(2, 200, 33), (3, 64, 16), (4, 100, 3), (5, 77, 1), (6, 500, 20)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_few_rows_copy_no_columns(shape: tuple[int, int, int], target: str) -> None:
    rows, depth, columns = shape
    steps = agreed(normal(rows, depth), normal(columns, depth), target)
    assert "vectorize_reduction" in steps and "pack" not in steps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_rows_share_a_copy(dtype: type) -> None:
    steps = agreed(normal(90, 24, dtype=dtype), normal(90, 24, dtype=dtype), "x86-64-v4")
    assert "pack" in steps and "vectorize_reduction" not in steps


def test_doubles_have_half_the_lanes() -> None:
    a, b = normal(4, 120, dtype=np.float64), normal(17, 120, dtype=np.float64)
    types = [tensor(dt.f64, a.shape), tensor(dt.f64, b.shape)]
    kernel = only_kernel(oracle.agree(types, turned, [a, b], "x86-64-v4")[0])
    assert any(s.startswith("vectorize_reduction") and "lanes=8" in s for s in kernel_info(kernel).schedule)


def test_work_on_the_sums_is_done_in_vectors_of_columns() -> None:
    def body(a: Value, b: Value) -> Value:
        return relu(ew.add(turned(a, b), 0.5))

    steps = agreed(normal(4, 96), normal(40, 96), "x86-64-v4", body)
    assert "vectorize_reduction" in steps and "vectorize" in steps


def test_batches_of_such_products() -> None:
    assert "pack" not in agreed(normal(3, 4, 256), normal(3, 64, 256), "x86-64-v4")
    assert "pack" not in agreed(normal(2, 2, 256), normal(64, 256), "x86-64-v4")


M, K, N = var("m", 0), var("k", 0), var("n", 0)
UNKNOWN = {
    "rows": (M, sym(40), sym(21)),
    "depth": (sym(3), K, sym(21)),
    "columns": (sym(3), sym(40), N),
    "all": (M, K, N),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("which", UNKNOWN)
def test_any_sizes(which: str) -> None:
    """Compiled once, and called with sizes around those of tiles, none and one among them."""
    m, k, n = UNKNOWN[which]
    module = oracle.build([tensor(dt.f32, (m, k)), tensor(dt.f32, (n, k))], turned)
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    sizes: list[tuple[int, ...]] = [
        (0, 1, 2, 4, 5, 30, 70) if isinstance(d, Sym) and not d.is_const else (d.value,) for d in (m, k, n)
    ]
    for rows, depth, columns in product(*sizes):
        a, b = normal(rows, depth), normal(columns, depth)
        (found,) = model(a, b)
        np.testing.assert_allclose(found, a.astype(np.float64) @ b.T.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_few_of_unknown_rows_copy_nothing() -> None:
    module = oracle.build([tensor(dt.f32, (M, sym(256))), tensor(dt.f32, (sym(256), sym(256)))], turned)
    oracle.scheduled(module, "x86-64-v4")
    lines = kernel_info(only_kernel(module)).schedule
    other = lines.index("otherwise {")
    assert any(s.startswith("pack(") for s in lines[:other])
    assert not any(s.strip().startswith("pack(") for s in lines[other:])
    assert any(s.strip().startswith("vectorize_reduction") for s in lines[other:])


@pytest.mark.parametrize("depth", [2, 3, 8, 12])
def test_short_sums_read_copies_in_whole_vectors(depth: int) -> None:
    """Columns of a few elements lie a few elements apart, but are no windows that move by as many."""
    a, b = normal(40, depth), normal(70, depth)
    module, _ = oracle.agree([tensor(dt.f32, a.shape), tensor(dt.f32, b.shape)], turned, [a, b], "x86-64-v4")
    (step,) = (s for s in kernel_info(only_kernel(module)).schedule if s.startswith("pack("))
    assert "factors=((), ())" in step


def test_rows_that_are_a_batch_of_unknown_size() -> None:
    """One row for each entry, in tiles of entries and those that are left."""
    module = oracle.build([tensor(dt.f32, (M, sym(1), K)), tensor(dt.f32, (M, N, K))], turned)
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    for batch, depth, columns in product((0, 1, 4, 6), (1, 3, 17), (1, 5, 20)):
        a, b = normal(batch, 1, depth), normal(batch, columns, depth)
        wanted = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
        np.testing.assert_allclose(model(a, b)[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_column_that_is_shorter_than_a_vector() -> None:
    """Nothing behind the rows is read: LLVM took masked loads for whole ones in the first sum of the remainder."""
    module = oracle.build([tensor(dt.f32, (sym(3), K)), tensor(dt.f32, (K, sym(1)))], matmul)
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    for depth in (0, 1, 4, 15, 16, 20):
        a, b = normal(3, depth), normal(depth, 1)
        np.testing.assert_allclose(model(a, b)[0], a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0, 1e-40])
def test_special_values_reach_their_sums_alone(special: float, numerics: str) -> None:
    """In the last of whole vectors of the depth, in what is left of it, and in the last row and column."""
    module = oracle.build([tensor(dt.f32, (M, K)), tensor(dt.f32, (N, K))], turned)
    model = Model(compile_module(module, Options(numerics=numerics), parse_target("host")), 1)
    for rows, depth, columns in ((1, 1, 1), (1, 16, 5), (3, 33, 17), (5, 64, 4)):
        for of_rows in (True, False):
            a, b = normal(rows, depth), normal(columns, depth)
            (a if of_rows else b)[-1, -1] = special
            (found,) = model(a, b)
            with np.errstate(invalid="ignore"):
                exact = a.astype(np.float64) @ b.T.astype(np.float64)
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
