"""Kernels that are made for several dims being large together: few rows have their own where the others still are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.graph.programs import softmax
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import is_loop, kind_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import versions_of
from tilewright.ops import elementwise as ew
from tilewright.ops import view as vw
from tilewright.ops.contract import matmul
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(31)
B, T, S, D, K, M, N = (var(name, 0) for name in "btsdkmn")


def attention(q: Value, k: Value, v: Value) -> Value:
    scores = ew.mul(matmul(q, vw.transpose(k, perm=(0, 2, 1))), 0.125)
    return matmul(softmax(scores), v)


def of_attention() -> Module:
    types = [tensor(dt.f32, shape) for shape in ((B, T, D), (B, S, D), (B, S, D))]
    return oracle.build(types, attention)


def of_transposes() -> Module:
    """x.T @ w.T, of which the columns are copied through squares of registers."""
    types: list[TensorType] = [tensor(dt.f32, (K, M)), tensor(dt.f32, (N, K))]
    return oracle.build(types, lambda a, b: matmul(a, b, transpose_a=True, transpose_b=True))


def only_kernel(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def specialised(kernel: Func) -> list[list[str]]:
    """For each version but the last the dims that it is specialised for."""
    found: list[list[str]] = [[]]
    for line in map(str.strip, kernel_info(kernel).schedule):
        if line.startswith("otherwise"):
            found.append([])
        elif line.startswith("specialize("):
            found[-1].append(line.split("(")[1].split(",")[0])
    return found


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("build", [of_attention, of_transposes], ids=lambda b: b.__name__)
def test_few_rows_have_a_kernel_where_the_depth_is_long(build: Callable[[], Module], target: str) -> None:
    module = build()
    oracle.scheduled(module, target)
    kernel = only_kernel(module)
    versions = specialised(kernel)
    *first, last = versions
    assert last == []
    assert first and all(len(set(v)) == 1 for v in first), "no version is lost where another dim is small"
    assert len(versions) <= 7
    for version in versions_of(kernel.body):
        assert "vector" in {kind_of(op) for op in version.walk() if is_loop(op)}

def test_attention_of_any_sizes() -> None:
    module = of_attention()
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    for t, s, d in product((0, 1, 2, 7, 8, 9, 33), (1, 5, 40), (1, 15, 16, 17, 64)):
        q, k, v = (RNG.standard_normal((2, n, d), np.float32) for n in (t, s, s))
        scores = 0.125 * q.astype(np.float64) @ k.transpose(0, 2, 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        wanted = weights / weights.sum(axis=-1, keepdims=True) @ v
        (found,) = model(q, k, v)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_transposes_of_any_sizes() -> None:
    model = Model(compile_module(of_transposes(), Options(), parse_target("host")), 1)
    for m, k, n in product((0, 1, 2, 4, 5, 8, 9, 20), (0, 1, 15, 16, 40), (1, 3, 48, 50, 130)):
        a, b = RNG.standard_normal((k, m), np.float32), RNG.standard_normal((n, k), np.float32)
        (found,) = model(a, b)
        np.testing.assert_allclose(found, a.T.astype(np.float64) @ b.T, rtol=1e-4, atol=1e-4)
