"""Scales of matrices that data pick: where the matrices are rows of a tile, they stay within the loop over terms."""

from __future__ import annotations

import numpy as np

from tests.schedule import scheduling as oracle
from tests.schedule.gemm.test_rounded_rows import f32
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target


def test_one_row_for_each_of_a_few_matrices() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(-8, 8, (3, 64, 257)).astype(np.int8)
    scales = (0.1 * rng.random((3, 1, 257))).astype(np.float16)

    def body(x: Value, at: Value) -> Value:
        return contract.matmul(x, gather(ew.mul(f32(codes), f32(scales)), at, axis=0))

    module = oracle.build([tensor(dt.f32, (3, 1, 64)), tensor(dt.i64, (3,))], body)
    model = Model(compile_module(module, Options(verify=True), parse_target("host,l2=1024,cores=1")), 1)
    x, at = rng.standard_normal((3, 1, 64)).astype(np.float32), np.array([2, 0, -1])
    np.testing.assert_allclose(model(x, at)[0], x @ (codes * scales.astype(np.float64))[at], rtol=1e-4, atol=1e-4)
