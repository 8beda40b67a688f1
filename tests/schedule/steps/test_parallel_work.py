"""The work of a kernel, from which follows whether threads share it, and how evenly they can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import enclosing_loops, extent_of, is_loop, kind_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import parallel_extent
from tilewright.ops import contract, recurrent, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import put
from tilewright.ops.winograd import winograd_input

BIG = 10_000_000
"""Multiplications of a kernel from which on it takes tenths of a millisecond."""


def f32(*shape: int) -> TensorType:
    return tensor(dt.f32, shape)


def kernels(types: list[TensorType], body: Callable[..., Value], target: str) -> list[Func]:
    module = oracle.build(types, body)
    oracle.scheduled(module, target)
    return [func for name, func in module.funcs.items() if name != "main"]


def test_a_transform_of_tiles_counts_all_that_it_computes() -> None:
    (kernel,) = kernels(
        [f32(1, 8, 28, 28, 16)],
        lambda x: winograd_input(x, m=(4, 4), taps=(3, 3), pads_begin=(1, 1), pads_end=(1, 1)),
        "zen3",
    )
    assert kernel_info(kernel).work == 8 * 36 * 49 * 16


def test_loops_of_an_operator_count_what_they_execute() -> None:
    def body(gates: Value, r: Value, h: Value, lengths: Value) -> Value:
        return recurrent.rnn(gates, r, h, lengths)[0]

    types = [f32(10, 8, 64), f32(1, 64, 64), f32(8, 64), tensor(dt.i64, (8,))]
    (kernel,) = kernels(types, body, "zen3")
    assert kernel_info(kernel).work.value >= 10 * 8 * 64 * 64


def test_threads_share_rows_that_are_put_and_what_stays_where_it_is_does_not_count() -> None:
    """So a single row wakes no threads, however large the cache is that it is put into."""
    n = var("n", 1, 65)
    types = [f32(1, 12, 128, 64), tensor(dt.f32, (1, 12, n, 64))]
    module = oracle.build(types, lambda x, rows: put(x, rows, at=(0, 0, 5, 0)))
    arrays = [np.random.default_rng(0).random(s, np.float32) for s in ((1, 12, 128, 64), (1, 12, 33, 64))]
    (wanted,) = oracle.expected(module, arrays)
    oracle.scheduled(module, "zen3")
    (kernel,) = (func for name, func in module.funcs.items() if name != "main")
    work = kernel_info(kernel).work
    assert work is not None
    assert 12 * 64 / 8 < work.subs({v: sym(1) for v in work.vars}).value < 12 * 128 * 64
    extents = [extent_of(op) for op in kernel.body.walk() if is_loop(op) and kind_of(op) == "parallel"]
    assert any(extent.vars for extent in extents), "the loop over new rows"
    np.testing.assert_array_equal(oracle.run(module, arrays)[0], wanted)


def product(m: int, k: int, n: int) -> tuple[list[TensorType], Callable[..., Value]]:
    w = np.zeros((k, n), np.float32)
    return [f32(m, k)], lambda x: ew.max_(contract.matmul(x, constant(w)), 0.0)


SHAPES = {
    f"{m}x{k}x{n}": (m, k, n)
    for m, k, n in [
        (128, 768, 768),
        (128, 768, 2304),
        (128, 768, 3072),
        (128, 3072, 768),
        (197, 768, 3072),
        (384, 1024, 1024),
        (1024, 1024, 1024),
        (3136, 64, 256),
        (784, 512, 128),
        (196, 1024, 256),
        (49, 2048, 512),
        (49, 512, 2048),
        (100, 1000, 1000),
    ]
}


COARSE = {(8, "196x1024x256"), (16, "196x1024x256"), (16, "784x512x128"), (16, "100x1000x1000")}
"""Cores and shapes for which finer blocks would cost more than the threads that wait."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cores", [2, 4, 8, 16])
@pytest.mark.parametrize("machine", ["zen3", "cascadelake"])
def test_threads_have_equal_shares_of_big_kernels(machine: str, cores: int, name: str) -> None:
    """No thread has over 5 % more iterations of a big product than all have on average. Where whole register tiles do
    not come out even it is at most 15 %, and a remark says so."""
    module = oracle.build(*product(*SHAPES[name]))
    remarks = oracle.scheduled(module, f"{machine},cores={cores}").remarks
    (kernel,) = [func for other, func in module.funcs.items() if other != "main"]
    assert kernel_info(kernel).work.value >= BIG
    extent = parallel_extent(kernel)
    assert extent is not None and extent.is_const
    iterations = extent.value
    limit = 1.15 if (cores, name) in COARSE else 1.05
    assert -(-iterations // cores) * cores <= limit * iterations
    said = any(f"equal shares of {iterations} iterations" in str(remark) for remark in remarks)
    assert said == (-(-iterations // cores) * cores > 1.05 * iterations)


def test_what_threads_cannot_share_is_said() -> None:
    def rows(x: Value) -> Value:
        return ew.mul(x, reduce.reduce_sum(x, axes=(1,), keepdims=True))

    remarks = oracle.scheduled(oracle.build([f32(20, 64)], rows), "zen3,cores=16").remarks
    assert any("16 threads do not get equal shares of 20 iterations" in str(remark) for remark in remarks)


N, H, W = var("n", 1), var("h", 1), var("w", 1)


@pytest.mark.parametrize("shape", [(1, 2, H, W, 16), (N, 2, H, W, 16), (N, 8, H, W, 16)])
def test_loops_of_unknown_extents_become_one_until_there_are_rounds_enough(shape: Any) -> None:
    """Each pixel of its own would cost divisions of its index by dims. A batch is expected to have one entry, images
    many lines."""
    module = oracle.build([tensor(dt.f32, shape)], padded)
    oracle.scheduled(module, "zen3")
    (kernel,) = [func for name, func in module.funcs.items() if name != "main"]
    (store,) = [op for op in kernel.body.walk() if op.name == "store"]
    around = enclosing_loops(store)
    assert [o.attrs["kind"] for o in around] == ["parallel", "serial", "vector"]
    (columns,) = extent_of(around[1]).vars  # dims of a kernel have names of their own
    assert extent_of(around[1]) == columns + 2
    assert columns not in extent_of(around[0]).vars


def padded(x: Value) -> Value:
    return view.pad(x, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))


def doubled(x: Value) -> Value:
    """Each element of an image four times."""
    n, c, h, w = x.type.shape  # type: ignore[union-attr]
    rows = view.expand(view.reshape(x, shape=(n, c, h, 1, w, 1)), shape=(n, c, h, 2, w, 2))
    return view.reshape(rows, shape=(n, c, 2 * h, 2 * w))


def test_lines_that_are_enlarged_are_read_without_divisions_by_their_length() -> None:
    (kernel,) = kernels([tensor(dt.f32, (N, 64, H, W))], doubled, "zen3")
    height, width = kernel.dims[-2:]
    for op in kernel.body.walk():
        if op.name in ("load", "store"):
            divisors = {d for i in op.attrs["idx"] for d in divisors_in(i)}
            assert not any({height, width} & d.vars for d in divisors)
    assert parallel_extent(kernel) is not None


def divisors_in(e: Sym) -> set[Sym]:
    own = {e.args[1]} if e.kind in ("floordiv", "mod") else set()
    return own.union(*map(divisors_in, e.args))
