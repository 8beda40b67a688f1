"""The arena: tensors that live at the same time never overlap, and those that do not share memory."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.program.memory.packing.symbolic import _Comparison, _Skyline, _Stack, _varied
from tilewright.program.memory.plan import ALIGNMENT, Lifetime, plan_arena
from tilewright.program.memory.storage import assign_storage, needs_copy


def lifetimes(seed: int, dims: tuple[Sym, ...] = ()) -> list[Lifetime]:
    rng = random.Random(seed)
    found = []
    for key in range(rng.randint(1, 40)):
        first = rng.randint(0, 30)
        size = sym(rng.randint(1, 5000))
        if dims and rng.random() < 0.7:
            size = size * rng.choice(dims)
        found.append(Lifetime(key, size, first, first + rng.randint(0, 6)))
    return found


def assert_apart(tensors: list[Lifetime], offsets: dict[int, Sym], total: Sym, env: dict[str, int]) -> None:
    ranges = {}
    for t in tensors:
        start = offsets[t.key].evaluate(env)
        assert start % ALIGNMENT == 0
        ranges[t.key] = (start, start + t.size.evaluate(env))
        assert ranges[t.key][1] <= total.evaluate(env)
    for a in tensors:
        for b in tensors:
            if a.key < b.key and a.first <= b.last and b.first <= a.last:
                (s, e), (s2, e2) = ranges[a.key], ranges[b.key]
                assert e <= s2 or e2 <= s, f"{a} and {b} overlap"


@pytest.mark.parametrize("seed", range(30))
def test_static_tensors_never_overlap(seed: int) -> None:
    tensors = lifetimes(seed)
    plan = plan_arena(tensors)
    assert_apart(tensors, plan.offsets, plan.total, {})
    assert plan.total.value <= plan.unshared.value


@pytest.mark.parametrize("seed", range(30))
def test_symbolic_tensors_never_overlap_for_any_dims(seed: int) -> None:
    dims = (var("n", 1), var("m", 1))
    tensors = lifetimes(seed, dims)
    plan = plan_arena(tensors)
    for n, m in ((1, 1), (1, 1000), (64, 64), (777, 3)):
        assert_apart(tensors, plan.offsets, plan.total, {"n": n, "m": m})


def test_a_chain_needs_two_tensors_at_a_time() -> None:
    chain = [Lifetime(k, sym(6400), k, k + 1) for k in range(10)]
    plan = plan_arena(chain)
    assert plan.total == 2 * 6400
    assert plan.unshared == 10 * 6400


def test_a_symbolic_chain_shares_two_slots() -> None:
    n = var("n", 1)
    plan = plan_arena([Lifetime(k, 64 * n, k, k + 1) for k in range(10)])
    assert plan.total.evaluate({"n": 7}) == 2 * 64 * 7


F32 = tensor(dt.f32, (4, 8))


def call(builder: Builder, *operands: Value, type: TensorType = F32) -> Value:
    return builder.emit("call", operands, [type], {"kernel": "k", "dims": ()}).result


def program() -> tuple[Func, list[Value]]:
    """x -> a -> (alias r of a) -> b; returns b and x."""
    block = Block([F32], ["x"])
    builder = Builder(block, Module())
    a = call(builder, block.args[0])
    flat = tensor(dt.f32, (32,))
    r = builder.emit("reshape", [a], [flat], {"shape": flat.shape}).result
    b = call(builder, r)
    builder.emit("return", [b])
    return Func("main", block), [block.args[0], a, r, b]


def test_results_are_written_in_place_and_aliases_share_their_memory() -> None:
    func, (x, a, r, b) = program()
    places = assign_storage(func).places
    assert places[x].base == "input"
    assert places[b].base == "output"
    assert places[a].base == "arena" and places[r] == places[a]


def test_an_alias_keeps_its_tensor_alive() -> None:
    block = Block([F32], ["x"])
    builder = Builder(block, Module())
    a = call(builder, block.args[0])
    r = builder.emit("reshape", [a], [F32], {"shape": F32.shape}).result
    b = call(builder, block.args[0])
    c = call(builder, r, b)
    builder.emit("return", [c])
    places = assign_storage(Func("main", block)).places
    assert places[a].offset != places[b].offset


def test_outputs_that_no_kernel_writes_need_a_copy() -> None:
    func, (x, _, _, b) = program()
    assert needs_copy(func, [b]) == []
    assert needs_copy(func, [b, b]) == [1]
    assert needs_copy(func, [x, b]) == [0]


def test_a_dim_may_have_any_name() -> None:
    """Also one that a parameter of ours has."""
    for name in ("default", "usual", "of", "self", "size"):
        n = var(name, 1)
        plan = plan_arena([Lifetime(k, 64 * n, k, k + 1) for k in range(4)])
        assert plan.total.evaluate({name: 3}) == 2 * 64 * 3


def test_of_many_dims_few_are_looked_at_by_themselves() -> None:
    """A packing is made for each point."""
    dims = [var(f"n{k}", 1) for k in range(40)]
    sizes = [64 * dim for dim in (*dims, *dims[30:])]
    compared = _Comparison(sizes, [(k, k + 2) for k in range(len(sizes))], {})
    assert compared.starts <= 6 * 7
    assert _varied(sizes) == [f"n{k}" for k in range(30, 36)]
    tensors = [Lifetime(k, size, k, k + 2) for k, size in enumerate(sizes)]
    plan = plan_arena(tensors)
    assert_apart(tensors, plan.offsets, plan.total, {f"n{k}": (k * 7) % 11 + 1 for k in range(40)})


def test_what_a_plan_takes_is_not_taken_for_that_of_another_one() -> None:
    """Of plans that are dropped the memory is used again."""
    sizes = [64 * var("n", 1), sym(128)]
    compared = _Comparison(sizes, [(0, 1), (0, 1)], {})
    for below in ([[], [0]], [[], []]) * 20:
        found = compared.totals(_Stack(below, [0, 1]))
        np.testing.assert_array_equal(found, _Stack(below, [0, 1]).totals(compared.sizes, {}))


def test_a_tensor_lies_above_the_highest_ones_that_it_meets() -> None:
    spans = [(0, 3), (4, 9), (2, 5), (2, 2), (8, 12), (0, 12), (13, 13), (0, 20)]
    rows = _Skyline()
    found = [rows.cover(*span, n) for n, span in enumerate(spans)]
    assert found == [set(), set(), {0, 1}, {2}, {1}, {0, 3, 2, 1, 4}, set(), {5, 6}]


def test_a_call_takes_the_plan_that_needs_least_for_its_sizes() -> None:
    """Which order of tensors is good depends on which of two dims is larger: no one order is good for all."""
    n, m = var("n", 1), var("m", 1)
    parts = [(1, 1), (0, 2), (2, 2), (0, 2), (0, 2), (3, 0), (3, 0), (1, 2), (1, 0), (2, 0)]
    lasts = [3, 5, 7, 7, 7, 9, 8, 10, 10, 14]
    tensors = [
        Lifetime(k, 64 * (a * n + b * m), k, last) for k, ((a, b), last) in enumerate(zip(parts, lasts, strict=True))
    ]
    plan = plan_arena(tensors)
    for env in ({"n": a, "m": b} for a in (1, 2, 7, 40, 300) for b in (1, 3, 11, 90, 1000)):
        assert_apart(tensors, plan.offsets, plan.total, env)
        alive = [sum(t.size.evaluate(env) for t in tensors if t.first <= step <= t.last) for step in range(16)]
        assert plan.total.evaluate(env) == max(alive)
