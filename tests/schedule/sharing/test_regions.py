"""Regions that are equal but for names of dims and starts of slices share one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.scheduling import build, run, scheduled
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import sym, var
from tilewright.ir.types import TensorType
from tilewright.ops.contract import matmul
from tilewright.ops.elementwise import add, tanh
from tilewright.ops.view import reshape, slice_
from tilewright.schedule.sharing.regions import canonical_regions

batch = var("batch", 1)


def _recurrence(steps: int) -> Module:
    """h = tanh(h @ w + x[:, t]) for t in 0..steps-1."""

    def body(x: Value, h: Value, w: Value) -> Value:
        for t in range(steps):
            starts, sizes = (sym(0), sym(t), sym(0)), (batch, sym(1), sym(8))
            part = slice_(x, starts=starts, sizes=sizes, steps=(1, 1, 1))
            h = tanh(add(matmul(h, w), reshape(part, shape=(batch, sym(8)))))
        return h

    shapes = [(batch, sym(steps), sym(8)), (batch, sym(8)), (sym(8), sym(8))]
    return build([TensorType(dt.f32, s) for s in shapes], body)


def _kernels_called(module: Module) -> set[str]:
    return {op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"}


def _calls(module: Module) -> int:
    return sum(op.name == "call" for op in module.main.body.ops)


@pytest.mark.parametrize(("steps", "shared"), [(2, False), (5, True)])
def test_steps_of_an_unrolled_recurrence_share_kernels(steps: int, shared: bool) -> None:
    module = _recurrence(steps)
    scheduled(module)
    assert (len(_kernels_called(module)) < _calls(module) / 2) == shared
    rng = np.random.default_rng(3)
    x, h, w = (rng.standard_normal(s).astype(np.float32) for s in [(3, steps, 8), (3, 8), (8, 8)])
    wanted = h.astype(np.float64)
    for t in range(steps):
        wanted = np.tanh(wanted @ w + x[:, t])
    np.testing.assert_allclose(run(module, [x, h, w])[0], wanted, rtol=1e-5, atol=1e-6)


def test_start_of_a_shared_kernel_is_a_dim_with_the_bounds_of_its_uses() -> None:
    module = _recurrence(5)
    scheduled(module)
    calls = [op for op in module.main.body.ops if op.name == "call"]
    starts = [
        int(value.value)
        for op in calls
        for dim, value in zip(module.funcs[op.attrs["kernel"]].dims, op.attrs["dims"], strict=True)
        if dim.name.startswith("start")
    ]
    assert sorted(starts) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("computed", "keys"), [(False, 1), (True, 4)])
def test_slices_of_computed_values_keep_their_starts(computed: bool, keys: int) -> None:
    regions = [_slicing_region(5 * k, computed) for k in range(4)]
    canonical = canonical_regions(regions)
    assert len({c.key for c in canonical.values()}) == keys
    assert all(bool(c.starts) != computed for c in canonical.values())


def _slicing_region(start: int, computed: bool) -> Op:
    """x[:, start : start + 4], or of tanh(x), as the body of a region."""
    type = TensorType(dt.f32, (batch, sym(24)))
    block = Block([type], ["x"])
    with Builder(block) as builder:
        x = tanh(block.args[0]) if computed else block.args[0]
        part = slice_(x, starts=(sym(0), sym(start)), sizes=(batch, sym(4)), steps=(1, 1))
        builder.emit("yield", (part,))
    return Op("fused", [], [part.type], {"strategy": "elementwise"}, [block])
