"""Products of few rows, which read their weights once, as several runs of addresses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.cost.gemm.cost_model import Decision, choose, cycles
from tilewright.cost.gemm.panels import streams_of
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.target.named import NAMED, parse_target

RNG = np.random.default_rng(24)
DEPTH = 96


def product(rows: Sym, columns: int, target: str) -> Func:
    """The kernel of a product with constant weights, checked on the interpreter."""
    weights = RNG.standard_normal((DEPTH, columns)).astype(np.float32)

    def body(x: Value) -> Value:
        return ew.add(ct.matmul(x, constant(weights)), constant(weights[0]))

    x = RNG.standard_normal((rows.value if rows.is_const else 3, DEPTH)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (rows, DEPTH))], body, [x], target, 1e-4)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def weights_of(kernel: Func) -> tuple[int, ...]:
    return tuple(d.value for d in buffer_type(kernel.args[1]).shape)


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [512, 500])
@pytest.mark.parametrize(
    ("rows", "target"), [(1, "x86-64-v4"), (1, "neoverse-n1"), (1, "x86-64-v3"), (2, "x86-64-v4")]
)
def test_each_stream_is_a_run_of_its_own(rows: int, columns: int, target: str) -> None:
    kernel = product(sym(rows), columns, target)
    tiles, streams, depth, vectors, lanes = weights_of(kernel)
    assert depth == DEPTH and streams > 1
    assert 4 * vectors * lanes >= 128
    assert (tiles - 1) * streams * vectors * lanes < columns <= tiles * streams * vectors * lanes
    assert not any(op.name == "prefetch" for op in kernel.body.walk())


@pytest.mark.parametrize("target", ["zen3", "zen4"])
def test_cores_that_follow_one_stream_best_get_one(target: str) -> None:
    assert DEPTH in weights_of(product(sym(1), 512, target))[:2]
    assert NAMED["zen4"].bandwidth.streams == 1


@pytest.mark.parametrize("rows", [sym(3), sym(20), var("n", 1)], ids=["3", "20", "unknown"])
def test_more_rows_read_one_stream(rows: Sym) -> None:
    kernel = product(rows, 512, "x86-64-v4")
    assert DEPTH in weights_of(kernel)[:2] or len(weights_of(kernel)) > 5


@pytest.mark.parametrize("columns", range(1, 17))
def test_streams_are_as_many_as_have_whole_pairs_of_lines(columns: int) -> None:
    streams = streams_of(Tile(1, columns, 16), 4, parse_target("x86-64-v4"))
    assert columns % streams == 0
    assert streams == 1 or columns // streams >= 2
    assert streams > 1 or columns < 4 or all(columns % d for d in range(2, columns // 2 + 1))


def vector_times(columns: int, depth: int) -> GemmShape:
    return GemmShape(rows=1, columns=columns, depth=depth, lanes=16, packed=True, uncut="it has no rows")


def test_tiles_that_have_no_streams_are_dearer() -> None:
    target, shape = parse_target("cascadelake,cores=1"), vector_times(11 * 12, 2048)
    eleven, twelve = (cycles(shape, Decision(Tile(1, n, 16)), target) for n in (11, 12))
    assert 1.03 < eleven / twelve < 1.1


def test_threads_get_equal_shares_of_the_columns() -> None:
    """768 columns are three of the widest tiles, which one thread takes."""
    chosen = {
        cores: choose(vector_times(48, 768), parse_target(f"cascadelake,cores={cores}")).decision.tile.columns
        for cores in (1, 2)
    }
    assert 48 % chosen[2] == 0 and 48 // chosen[2] % 2 == 0
    assert chosen[1] >= chosen[2]
