"""Regions of which no good kernel can be made are fused otherwise, and slow kernels are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import contract, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.norm import softmax
from tilewright.passes import PassContext
from tilewright.schedule.gemm.attention import Attention
from tilewright.schedule.gemm.contraction import Contraction
from tilewright.schedule.steps.pace import STAGE
from tilewright.schedule.strategies import STRATEGIES

N = var("n", 1)
RNG = np.random.default_rng(4)


def f32(*shape: Any) -> TensorType:
    return tensor(dt.f32, shape)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def declines(*arguments: object) -> None:
    raise ScheduleError("not today")


def calls(module: Module) -> list[str]:
    return [op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"]


def attention(q: Value, k: Value, v: Value) -> Value:
    return contract.matmul(softmax(ew.mul(contract.matmul(q, k, transpose_b=True), 0.25)), v)


def layers(q: Value, k: Value, v: Value) -> tuple[Value, ...]:
    first = attention(q, k, v)
    return first, attention(first, k, v)


def turned(q: Value, k: Value, v: Value) -> Value:
    return view.transpose(attention(q, k, v), perm=(0, 2, 1))


CASES: dict[str, Callable[..., Any]] = {"one": attention, "two that are alike": layers, "turned": turned}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
@pytest.mark.parametrize("rows", [40, N], ids=["known", "unknown"])
def test_group_that_cannot_be_scheduled_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch, body: Callable[..., Any], rows: Any
) -> None:
    monkeypatch.setattr(Attention, "schedule", declines)
    module = oracle.build([f32(2, rows, 16), f32(2, 48, 16), f32(2, 48, 16)], body)
    for step in (Expand(), Canonicalize()):
        step.run(module, PassContext())
    arrays = [data(2, 40, 16), data(2, 48, 16), data(2, 48, 16)]
    wanted = oracle.expected(module, arrays)
    ctx = oracle.scheduled(module)
    for a, b in zip(oracle.run(module, arrays), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert len(calls(module)) == 3 * len(wanted)
    assert not any("attention" in name for name in calls(module))
    assert sum("kernels instead of one" in r.message for r in ctx.remarks) == 1
    assert not [r for r in ctx.remarks if r.stage == STAGE]


def layer(x: Value, w: Value) -> Value:
    return ew.max_(ew.add(contract.matmul(x, w), 1.0), 0.0)


def schedule_only_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product has a schedule alone, and none with what was joined to it."""
    own = Contraction.schedule

    def alone(self: Contraction, s: Any, lowered: Any, target: Any) -> None:
        if len(lowered.stages) > 1:
            declines()
        own(self, s, lowered, target)

    monkeypatch.setattr(Contraction, "schedule", alone)


def test_joined_kernel_that_cannot_be_scheduled_is_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that alone has a schedule, but none with what was joined to it."""
    schedule_only_alone(monkeypatch)
    arrays = [data(48, 64), data(64, 48)]
    module, ctx = oracle.agree([f32(48, 64), f32(64, 48)], layer, arrays)
    assert [name.partition("_")[2] for name in calls(module)] == ["matmul", "add_max"]
    assert sum("kernels instead of one" in r.message for r in ctx.remarks) == 1


def test_constants_stay_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_only_alone(monkeypatch)
    w = data(64, 48)
    module, _ = oracle.agree([f32(48, 64)], lambda x: layer(x, constant(w)), [data(48, 64)])
    assert [name for name in module.constants if name.endswith(".packed")]
    assert len(module.constants) == 1


@pytest.mark.with_scalar_kernels
def test_what_is_no_better_apart_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scalar kernels are no faster than one: it is named instead."""
    for strategy in STRATEGIES.ours:
        monkeypatch.setattr(type(strategy), "schedule", declines)
    module, ctx = oracle.agree([f32(200, 300)], lambda x: ew.exp(ew.mul(ew.exp(x), -2.0)), [data(200, 300)])
    assert len(calls(module)) == 1
    (slow,) = [r for r in ctx.remarks if r.stage == STAGE]
    assert slow.kind == "warning"
    assert "computes one element at a time, as no schedule makes vectors of it" in slow.message
    assert "cycles are lost" in slow.message
    assert "what would change it: " in slow.message


def test_small_kernels_are_nobodys_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    for strategy in STRATEGIES.ours:
        monkeypatch.setattr(type(strategy), "schedule", declines)
    _, ctx = oracle.agree([f32(20, 30)], ew.exp, [data(20, 30)])
    assert not [r for r in ctx.remarks if r.stage == STAGE]


def test_good_kernels_are_not_named() -> None:
    module, ctx = oracle.agree([f32(200, 300)], softmax_by_hand, [data(200, 300)])
    assert len(calls(module)) == 1
    assert not [r for r in ctx.remarks if r.stage == STAGE]


def softmax_by_hand(x: Value) -> Value:
    powers = ew.exp(ew.sub(x, reduce.reduce_max(x, axes=(1,), keepdims=True)))
    return ew.div(powers, reduce.reduce_sum(powers, axes=(1,), keepdims=True))
