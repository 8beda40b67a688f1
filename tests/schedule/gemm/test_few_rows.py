"""Products of few rows of the call with columns that lie beside each other: tiles that suit so few rows, and no copies
of columns that one tile of rows reads."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

RNG = np.random.default_rng(29)
M, K, N = var("m", 0), var("k", 0), var("n", 0)


def only_kernel(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def steps_for(m: Sym, k: Sym, n: Sym, target: str = "x86-64-v4") -> list[str]:
    module = oracle.build([tensor(dt.f32, (m, k)), tensor(dt.f32, (k, n))], matmul)
    oracle.scheduled(module, target)
    return [line.strip() for line in kernel_info(only_kernel(module)).schedule]


def of_last_version(steps: list[str]) -> list[str]:
    """Those of the kernel for the fewest rows."""
    return steps[max(n for n, step in enumerate(steps) if step == "otherwise {") :]


@pytest.mark.parametrize("columns", [sym(1000), N], ids=str)
def test_a_row_of_unknown_number_reads_wide_tiles_as_they_lie(columns: Sym) -> None:
    steps = of_last_version(steps_for(M, sym(512) if columns.is_const else K, columns))
    assert max(map(int, re.findall(r"^split\(t\w*, factor=(\d+)", "\n".join(steps), re.MULTILINE))) >= 128
    assert not any(s.startswith("pack(") for s in steps)


@pytest.mark.parametrize("columns", [128, 129, 200, 1000])
def test_the_last_columns_of_unknown_number_of_a_row_begin_earlier(columns: int) -> None:
    """They are no vectors one by one, for each of which all lines of memory would be gone through again."""
    steps = steps_for(M, K, N)
    (wide,) = [k for k, step in enumerate(steps) if step.startswith("specialize(n2, least=")]
    assert any('tail="overlap"' in step for step in steps[wide : steps.index("otherwise {", wide)])
    module = oracle.build([tensor(dt.f32, (M, K)), tensor(dt.f32, (K, N))], matmul)
    oracle.scheduled(module, "x86-64-v4")
    a, b = RNG.standard_normal((1, 21), np.float32), RNG.standard_normal((21, columns), np.float32)
    (found,) = oracle.run(module, [a, b])
    np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_many_rows_share_copies_of_columns_that_lie_apart() -> None:
    steps = steps_for(M, K, N)
    assert any(s.startswith("pack(") for s in steps[: steps.index("otherwise {")])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_the_last_columns_of_a_single_row_need_no_conditions(target: str) -> None:
    a, b = RNG.standard_normal((1, 70), np.float32), RNG.standard_normal((70, 1000), np.float32)
    module, _ = oracle.agree([tensor(dt.f32, a.shape), tensor(dt.f32, b.shape)], matmul, [a, b], target)
    kernel = only_kernel(module)
    assert not any(op.name == "if" for op in kernel.body.walk())
    assert not any("guard" in op.attrs for op in kernel.body.walk() if op.name == "load")


@pytest.mark.parametrize("which", ["rows", "all"])
def test_any_sizes(which: str) -> None:
    """Compiled once, and called with sizes around those of tiles, none and one among them."""
    m, k, n = (M, K, N) if which == "all" else (M, sym(40), sym(300))
    module = oracle.build([tensor(dt.f32, (m, k)), tensor(dt.f32, (k, n))], matmul)
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    depths, widths = ((0, 1, 40), (0, 1, 17, 255, 300)) if which == "all" else ((40,), (300,))
    for rows, depth, columns in product((0, 1, 2, 3, 4, 5, 8, 9, 13, 30), depths, widths):
        a, b = (
            RNG.standard_normal((rows, depth), np.float32),
            RNG.standard_normal((depth, columns), np.float32),
        )
        (found,) = model(a, b)
        np.testing.assert_allclose(found, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)


WEIGHTS = RNG.standard_normal((96, 512)).astype(np.float32)


def test_few_rows_of_a_layer_are_one_tile() -> None:
    """Its weights are read once: each version for fewer rows than a tile has has a tile for all of them, and a single
    row one of its own."""
    module = oracle.build([tensor(dt.f32, (M, 96))], lambda x: matmul(x, constant(WEIGHTS)))
    oracle.scheduled(module, "x86-64-v4")
    steps = [line.strip() for line in kernel_info(only_kernel(module)).schedule]
    versions = [n for n, step in enumerate(steps) if step == "otherwise {"]
    least = [int(re.findall(r"least=(\d+)", step)[0]) for step in steps if step.startswith("specialize(")]
    assert len(versions) >= 2 and least[-1] == 2 and len(least) == len(versions)
    for begin, most in zip(versions, least, strict=True):
        (rows,) = re.findall(
            r"^split\(t, factor=(\d+)(?:, tail=\"(\w+)\")?\)", "\n".join(steps[begin:]), re.M
        )[:1]
        assert rows == (str(most - 1), "")


@pytest.mark.parametrize("threads", [1, 2])
def test_versions_of_one_tile_go_with_those_of_several(threads: int) -> None:
    """Where one tile is all columns, no loop of a version for few rows is left to share; a single row has one still."""
    weights = RNG.standard_normal((64, 32)).astype(np.float32)

    def layer() -> Module:
        return oracle.build([tensor(dt.f32, (M, 64))], lambda x: matmul(x, constant(weights)))

    module = layer()
    oracle.scheduled(module, "x86-64-v4")
    assert "split(t, factor=1)" in "\n".join(kernel_info(only_kernel(module)).schedule)
    model = Model(compile_module(layer(), Options(threads=threads), parse_target("host")), threads)
    for rows in range(17):
        x = RNG.standard_normal((rows, 64), np.float32)
        (found,) = model(x)
        np.testing.assert_allclose(found, x.astype(np.float64) @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", range(20))
def test_results_of_each_version(rows: int) -> None:
    x = RNG.standard_normal((rows, 96), np.float32)
    (found,) = layer()(x)
    np.testing.assert_allclose(found, x.astype(np.float64) @ WEIGHTS, rtol=1e-4, atol=1e-4)


@lru_cache
def layer() -> Model:
    module = oracle.build([tensor(dt.f32, (M, 96))], lambda x: matmul(x, constant(WEIGHTS)))
    return Model(compile_module(module, Options(), parse_target("host")), 1)
