"""Calls that share their iterations: which may, where they stand, and that results stay right."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.diag import Remark
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import KernelInfo, new_kernel
from tilewright.ops import recurrent
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.schedule.sharing.concurrent_kernels import group_concurrent_kernels
from tilewright.target.named import parse_target

RNG = np.random.default_rng(3)


class Program:
    """A main function of calls of kernels on one thread, of work enough to be shared (`long`) or not (`short`)."""

    def __init__(self) -> None:
        self.module, self.block = Module(), Block([tensor(dt.f32, (4,))], ["x"])
        self.module.add(Func("main", self.block))
        for name, work in (("long", 65_536), ("short", 65_536 - 1)):
            self.module.add(new_kernel(name, Block(), (), KernelInfo(outputs=1, work=sym(work))))

    def call(self, kernel: str, *operands: Value) -> Value:
        op = Op("call", list(operands), [tensor(dt.f32, (4,))], {"kernel": kernel, "dims": ()})
        return self.block.append(op).result

    def grouped(self, *results: Value) -> list[Remark]:
        """What was noted; afterwards the calls are in their new order."""
        self.block.append(Op("return", list(results)))
        remarks: list[Remark] = []
        group_concurrent_kernels(self.module, parse_target("zen3"), remarks)
        return remarks

    @property
    def results(self) -> list[Value]:
        return [op.result for op in self.block.ops if op.name == "call"]


def number(value: Value) -> int | None:
    assert value.op is not None
    return value.op.attrs.get("concurrent")


def test_independent_calls_come_together_at_the_last_of_them() -> None:
    p = Program()
    (x,) = p.block.args
    a = p.call("long", x)
    b = p.call("short", x)
    c = p.call("long", b)
    d = p.call("short", a, c)
    remarks = p.grouped(d)
    assert p.results == [b, a, c, d]
    assert [number(v) for v in p.results] == [None, 0, 0, None]
    assert [str(r) for r in remarks] == [
        "[concurrent-kernels] long: runs at the same time as long: neither needs the other"
    ]


@pytest.mark.parametrize("way", ["directly", "over another call", "too short"])
def test_calls_that_need_each_other_or_are_short_stay_apart(way: str) -> None:
    p = Program()
    (x,) = p.block.args
    a = p.call("short" if way == "too short" else "long", x)
    b = p.call("short", a)
    c = p.call("long", {"directly": a, "over another call": b, "too short": x}[way])
    assert not p.grouped(b, c)
    assert p.results == [a, b, c] and not any(map(number, p.results))


@pytest.mark.parametrize("seed", range(30))
def test_any_program_stays_in_an_order_that_can_run(seed: int) -> None:
    r = random.Random(seed)
    p = Program()
    values = [*p.block.args]
    for _ in range(25):
        operands = r.sample(values, min(len(values), r.randint(1, 2)))
        values.append(p.call(r.choice(["long", "long", "short"]), *operands))
    p.grouped(values[-1])
    assert set(p.results) == set(values[1:])
    needs: dict[Value, set[Value]] = {values[0]: set()}
    for v in p.results:  # a KeyError where an operand comes later
        assert v.op is not None
        needs[v] = set(v.op.operands).union(*(needs[o] for o in v.op.operands))
    numbers = [number(v) for v in p.results]
    for n in {m for m in numbers if m is not None}:
        members = [v for v in p.results if number(v) == n]
        at = numbers.index(n)
        assert numbers[at : at + len(members)] == [n] * len(members) and len(members) > 1
        assert not any(needs[v] & set(members) for v in members)


WEIGHTS = (RNG.standard_normal((1, 64, 64)) / 8).astype(np.float32)


def directions(steps: Sym, batch: Sym) -> Module:
    """A recurrence in both directions over [steps, batch, 64]: two kernels with an iteration for each entry."""

    def body(x: Value, h: Value, lengths: Value) -> tuple[Value, ...]:
        r = constant(WEIGHTS)
        return tuple(recurrent.rnn(x, r, h, lengths, reverse=reverse)[0] for reverse in (False, True))

    types = [tensor(dt.f32, (steps, batch, 64)), tensor(dt.f32, (batch, 64)), tensor(dt.i64, (batch,))]
    return oracle.build(types, body)


def states(x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """All states of the recurrence, in float64."""
    found = []
    for gates in x.astype(np.float64):
        h = np.tanh(gates + h @ WEIGHTS[0].astype(np.float64).T)
        found.append(h)
    return np.stack(found)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("known", [True, False])
def test_both_directions_of_a_recurrence(known: bool, batch: int) -> None:
    dims = (sym(40), sym(batch)) if known else (var("t", 1), var("n", 1))
    artifact = compile_module(directions(*dims), Options(), parse_target("host"))
    if not known or batch == 1:
        assert any("runs at the same time" in r.message for r in artifact.report.remarks)
    x = RNG.standard_normal((40, batch, 64)).astype(np.float32)
    h = RNG.standard_normal((batch, 64)).astype(np.float32)
    for threads in (1, 2, 3):
        forward, backward = Model(artifact, threads)(x, h, np.full(batch, 40))
        np.testing.assert_allclose(forward, states(x, h), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(backward, states(x[::-1], h)[::-1], rtol=1e-4, atol=1e-5)
