"""Products with one row: constant matrices from memory are read row by row, several rows far apart in turns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import reduce
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant

RNG = np.random.default_rng(7)
SMALL_L2 = "x86-64-v3,l2=16384"


def kernel_of(rows: int, shape: tuple[int, int], *, transpose: bool, target: str = SMALL_L2) -> Func:
    """The kernel of a product with a constant matrix, whose results are checked."""
    w = RNG.standard_normal(shape).astype(np.float32)
    x = RNG.standard_normal((rows, shape[1 if transpose else 0])).astype(np.float32)

    def product(a: Value) -> Value:
        return matmul(a, constant(w, "w"), transpose_b=transpose)

    module, _ = oracle.agree([tensor(dt.f32, x.shape)], product, [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def steps_of(kernel: Func) -> list[str]:
    return [step.split("(")[0] for step in kernel_info(kernel).schedule]


@pytest.mark.parametrize("columns", [128, 131])
def test_a_matrix_from_memory_stays_as_it_is(columns: int) -> None:
    kernel = kernel_of(1, (columns, 300), transpose=True)
    assert not kernel_info(kernel).packed
    assert any(s.startswith("strided_split") and "parts=4" in s for s in kernel_info(kernel).schedule)
    assert "unroll_and_jam" in steps_of(kernel)


def test_a_matrix_whose_sums_run_across_its_rows_is_transposed_when_compiling() -> None:
    kernel = kernel_of(1, (300, 130), transpose=False)
    (packing,) = kernel_info(kernel).packed.values()
    assert packing.order == (1, 0) and packing.factors == ((), ())


@pytest.mark.parametrize(
    ("rows", "shape", "target"),
    [(2, (128, 300), SMALL_L2), (1, (128, 300), "x86-64-v3"), (1, (64, 60), SMALL_L2)],
    ids=["two rows", "in L2", "small"],
)
def test_others_are_packed_in_panels(rows: int, shape: tuple[int, int], target: str) -> None:
    (packing,) = kernel_info(kernel_of(rows, shape, transpose=True, target=target)).packed.values()
    assert len(packing.order) > 2


@pytest.mark.parametrize("width", [96, 1024, 3000])
def test_rows_that_are_only_read_run_in_fours(width: int) -> None:
    """Also rows that would not stay in L1, or that lie a page apart."""
    x = RNG.standard_normal((259, width)).astype(np.float32)
    module, _ = oracle.agree(
        [tensor(dt.f32, x.shape)], lambda a: reduce.reduce_max(a, axes=(1,)), [x], SMALL_L2
    )
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    text = "\n".join(kernel_info(kernel).schedule)
    assert "parts=4, overlap=true" in text and "unroll_and_jam" in text
