"""Deep sums are taken in parts, which keeps digits that one running sum loses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant

RNG = np.random.default_rng(11)


def product(depth: int, then: bool = False) -> tuple[Module, np.ndarray, np.ndarray]:
    """x[8, depth] @ w[depth, 64] of which the first term is large; with the operand and the exact product."""
    x = RNG.uniform(0.5, 1.0, (8, depth)).astype(np.float32)
    w = RNG.uniform(-1.0, 1.0, (depth, 64)).astype(np.float32)
    x[:, 0], w[0] = 1024.0, 1024.0

    def body(a: Value) -> Value:
        y = contract.matmul(a, constant(w))
        return ew.exp(ew.mul(y, 1e-6)) if then else y

    return oracle.build([tensor(dt.f32, x.shape)], body), x, x.astype(np.float64) @ w.astype(np.float64)


def steps(module: Module) -> list[str]:
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return [step.partition("(")[0] for step in kernel_info(kernel).schedule]


def running_sum_error(x: np.ndarray, w: np.ndarray, exact: np.ndarray) -> float:
    """The mean error of one running sum in float32."""
    total = np.zeros(exact.shape, np.float32)
    for k in range(x.shape[1]):
        total += x[:, k : k + 1] * w[k]
    return float(np.abs(total - exact).mean())


@pytest.mark.parametrize("depth", [480, 521, 1024])
def test_terms_after_a_large_one_keep_their_digits(depth: int) -> None:
    module, x, exact = product(depth)
    (w,) = module.constants.values()
    before = running_sum_error(x, w, exact)
    oracle.scheduled(module)
    (y,) = oracle.run(module, [x])
    # Only the terms of the first part meet the large one.
    assert np.abs(y - exact).mean() < 0.85 * before
    assert np.allclose(y, exact, rtol=4e-6)


@pytest.mark.parametrize("depth", [480, 521])
def test_parts_before_a_costly_epilogue(depth: int) -> None:
    module, x, exact = product(depth, then=True)
    oracle.scheduled(module)
    (y,) = oracle.run(module, [x])
    assert "rfactor" in steps(module)
    assert np.allclose(y, np.exp(exact * 1e-6), rtol=4e-6)


@pytest.mark.parametrize(("depth", "parts"), [(384, 0), (480, 1), (521, 2), (768, 1)])
def test_parts_are_equal_where_the_depth_allows(depth: int, parts: int) -> None:
    module, _, _ = product(depth)
    oracle.scheduled(module)
    assert steps(module).count("rfactor") == parts
