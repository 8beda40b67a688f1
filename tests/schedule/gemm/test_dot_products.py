"""Products of a matrix and a vector: lanes along the sum, nothing copied, no row computed that is not there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul

RNG = np.random.default_rng(3)


def kernels(module: Module) -> list[Func]:
    return [f for f in module.funcs.values() if f.level == "loops"]


def product(x: Value, w: Value) -> Value:
    return ew.sigmoid(matmul(x, w))


def sums_in_lanes(func: Func) -> bool:
    return any(o.name == "lanes_reduce" for o in func.body.walk())


@pytest.mark.parametrize("shape", [(7, 40), (3, 5, 64), (1, 33), (9, 16)])
def test_lanes_run_along_the_sum(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    w = RNG.standard_normal((shape[-1], 1)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, shape), tensor(dt.f32, w.shape)], product, [x, w])
    (kernel,) = kernels(module)
    assert sums_in_lanes(kernel)
    assert not [o for o in kernel.body.walk() if o.name == "alloc" and o.result.type.space == "scratch"]  # type: ignore[union-attr]


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 11])
def test_rows_need_not_be_known(rows: int) -> None:
    n: Sym = var("n", 0)
    x = RNG.standard_normal((rows, 48)).astype(np.float32)
    w = RNG.standard_normal((48, 1)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (n, 48)), tensor(dt.f32, w.shape)], product, [x, w])
    (kernel,) = kernels(module)
    assert sums_in_lanes(kernel)


@pytest.mark.parametrize(("m", "k", "n"), [(7, 40, 2), (7, 3, 1)])
def test_other_products_have_lanes_along_the_results(m: int, k: int, n: int) -> None:
    x = RNG.standard_normal((m, k)).astype(np.float32)
    w = RNG.standard_normal((k, n)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape), tensor(dt.f32, w.shape)], product, [x, w])
    assert not any(map(sums_in_lanes, kernels(module)))


@pytest.mark.parametrize(
    ("left", "right"), [((5, 7, 33), (5, 33, 1)), ((5, 1, 33), (5, 33, 1)), ((2, 3, 7, 40), (2, 3, 40, 1))]
)
def test_each_matrix_of_many_has_a_vector_of_its_own(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x = RNG.standard_normal(left).astype(np.float32)
    w = RNG.standard_normal(right).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, left), tensor(dt.f32, right)], product, [x, w])
    (kernel,) = kernels(module)
    assert sums_in_lanes(kernel)
    assert not [o for o in kernel.body.walk() if o.name == "alloc" and o.result.type.space == "scratch"]  # type: ignore[union-attr]


def test_matrices_with_several_columns_are_tiled() -> None:
    x = RNG.standard_normal((3, 20, 33)).astype(np.float32)
    w = RNG.standard_normal((3, 33, 8)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape), tensor(dt.f32, w.shape)], product, [x, w])
    assert not any(map(sums_in_lanes, kernels(module)))
