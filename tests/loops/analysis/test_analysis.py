"""Bounds, packings and costs, each against plain counting."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.loops import programs
from tilewright.ir.sym import Sym, lower, maximum, minimum, parse_sym, sym, upper, var
from tilewright.loops.analysis.bounds import Box, Ranges, box
from tilewright.loops.analysis.deps import accesses, separated
from tilewright.loops.counts import cost, iterations
from tilewright.loops.edit import loops_in
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.storage.packing import PackedArray, Packing, apply_packing

I0, J0, N = var("i"), var("j"), var("n", 1)


def random_index(r: random.Random, depth: int = 3) -> Sym:
    if depth == 0:
        return r.choice([I0, J0, N, sym(r.randint(-3, 5))])
    a, b = random_index(r, depth - 1), random_index(r, depth - 1)
    match r.randrange(7):
        case 0 | 1:
            return a + b
        case 2:
            return a - b
        case 3:
            return a * r.randint(-3, 4)
        case 4:
            return a // r.randint(1, 5)
        case 5:
            return a % r.randint(1, 5)
        case _:
            return minimum(a, b) if r.random() < 0.5 else maximum(a, b)


@pytest.mark.parametrize("seed", range(200))
def test_bounds_hold_everywhere(seed: int) -> None:
    """With i in 0..n and j in 0..i + 3 (inclusive) no value of the expression is outside of its bounds."""
    e = random_index(random.Random(seed))
    ranges: Ranges = {I0: (sym(0), N), J0: (sym(0), I0 + 3)}
    low, high = lower(e, ranges), upper(e, ranges)
    for n in (1, 2, 5):
        values = [e.evaluate({"i": i, "j": j, "n": n}) for i in range(n + 1) for j in range(i + 4)]
        assert low is None or low.evaluate({"n": n}) <= min(values), f"{e}: {low}"
        assert high is None or high.evaluate({"n": n}) >= max(values), f"{e}: {high}"


def test_bounds_of_affine_expressions_are_exact() -> None:
    ranges: Ranges = {I0: (sym(0), N - 1), J0: (sym(0), sym(5))}
    assert upper(6 * I0 + J0, ranges) == 6 * N - 1
    assert lower(6 * I0 - J0 + 2, ranges) == sym(-3)
    assert upper((6 * I0 + J0) // 6, ranges) == N - 1


PACKINGS = [
    ((5, 7), Packing(((), (4,)), (1, 0, 2))),
    ((6, 8), Packing(((3,), (2, 2)), (2, 0, 3, 1, 4))),
    ((4,), Packing(((3,),), (1, 0))),
    ((2, 3, 4), Packing(((), (), ()), (2, 0, 1))),
    ((), Packing((), ())),
    ((1,), Packing(((),), (0,))),
    ((1,), Packing(((16,),), (0, 1))),
    ((1, 1), Packing(((), (32,)), (1, 0, 2))),
    ((0,), Packing(((4,),), (1, 0))),
    ((0, 3), Packing(((2,), (2,)), (0, 2, 1, 3))),
    ((3, 0), Packing(((2,), (2,)), (0, 2, 1, 3))),
    ((1, 0, 1), Packing(((), (), (8,)), (2, 1, 0, 3))),
]


@pytest.mark.parametrize("shape, packing", PACKINGS)
def test_packing_puts_every_element_where_index_says(shape: tuple[int, ...], packing: Packing) -> None:
    array = 1.0 + np.arange(np.prod(shape)).reshape(shape)
    packed = apply_packing(array, packing)
    assert packed.shape == tuple(int(n) for n in packing.shape([sym(n) for n in shape]))
    for at in itertools.product(*map(range, shape)):
        where = tuple(int(i) for i in packing.index([sym(i) for i in at]))
        assert packed[where] == array[at]
        assert tuple(int(i) for i in packing.position([sym(i) for i in where])) == at
    assert packed.sum() == array.sum()  # what was added is zero
    for count in (0, 1, 2, packed.size, packed.size + 5):
        np.testing.assert_array_equal(PackedArray(array, packing).first(count), packed.ravel()[:count])


@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (1, 0), (2, 1), (3, 5)])
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1)])
def test_first_bytes_of_an_array_packed_in_halves(shape: tuple[int, int], order: tuple[int, int, int]) -> None:
    packing = Packing(((2,), ()), order, fields=4)
    array = (np.arange(shape[0] * shape[1]).reshape(shape) % 15 - 7).astype(np.int8)
    packed = apply_packing(array, packing)
    for count in (0, 1, packed.size, packed.size + 1):
        np.testing.assert_array_equal(PackedArray(array, packing).first(count), packed.ravel()[:count])


def test_cost_of_a_product() -> None:
    func = programs.plain_matmul(4, N, 3, [N])
    counted = cost(func)
    assert counted.flops == 2 * 4 * 3 * N
    x, w, y = (counted.traffic[a] for a in func.args)
    assert (x.loaded, x.stored, x.distinct) == (8 * 12 * N, 0, 8 * 12)
    assert (w.loaded, w.distinct) == (8 * 12 * N, 8 * 3 * N)
    assert (y.loaded, y.stored, y.distinct) == (8 * 12 * N, 8 * 16 * N, 8 * 4 * N)
    assert counted.argument_bytes == 8 * (12 + 3 * N + 4 * N)
    assert counted.operations == counted.flops
    assert iterations(programs.plain_matmul(1, 1, 1)).value > 6


def test_a_table_is_touched_where_it_is_looked_up() -> None:
    text = """
    kernel @k(table: &f32[1000, 8], at: &i64[3], y: &f32[3, 8]) dims() with {outputs=1} {
      for i in 0..3 {
        bind n = at[i]
        for j in 0..8 { y[i, j] = table[n, j] }
      }
      return
    }
    """
    func = parse_kernel(text)
    table, at, y = (cost(func).traffic[a].distinct for a in func.args)
    assert (table, at, y) == (4 * 3 * 8, 8 * 3, 4 * 3 * 8)


def test_a_loop_whose_extent_is_data_counts_by_the_greatest_it_can_be() -> None:
    text = """
    kernel @k(at: &i32[3], y: &f32[3]) dims() with {outputs=1} {
      for i in 0..3 {
        bind n <= 5 = at[i]
        for j in 0..n { y[i] += 1.0 }
      }
      return
    }
    """
    assert cost(parse_kernel(text)).flops == 3 * 5


def test_a_loop_whose_extent_is_data_alone_counts_as_one_trip_or_by_what_bounds_it() -> None:
    text = """kernel @k(x: &f32[n], c: &i64[1], y: &f32[n]) dims(n) with {outputs=1} {
  bind count = c[0]
  for i in 0..min(count, n) {
    y[i] = x[i] + 1.0
  }
  for i in 0..count {
    y[0] = y[0] + 1.0
  }
  return
}
"""
    assert cost(parse_kernel(text)).flops.evaluate({"n": 7}) == 7 + 1


def test_of_versions_for_different_sizes_that_of_a_size_counts() -> None:
    text = """kernel @k(x: &f32[n], y: &f32[n]) dims(n) with {outputs=1} {
  if n < 9 {
    if n < 2 {
      for i in 0..n { y[i] = x[i] + 1.0 }
    }
    if n >= 2 {
      for i in 0..n { y[i] = x[i] * 2.0 + 1.0 }
    }
  }
  if n >= 9 {
    for i in 0..100 { y[0] += x[i % n] }
  }
  return
}
"""
    found = cost(parse_kernel(text))
    flops = parse_sym(str(found.flops), lambda name: var(name, None))  # as a report has it
    assert [flops.evaluate({"n": n}) for n in (0, 1, 2, 8, 9, 20)] == [0, 1, 4, 16, 100, 100]


def test_separated_tells_which_loops_keep_elements_apart() -> None:
    text = """
    kernel @k(y: &f64[64]) dims() with {outputs=1} {
      for i in 0..4 { for j in 0..8 { for k in 0..3 { y[8*i + j] = 0 } } }
      return
    }
    """
    func = parse_kernel(text)
    loops = loops_in(func.body)
    (store,) = accesses(func.body)
    assert separated(store, store, loops, {}) == set(loops[:2])


def test_separated_knows_parts_of_a_loop_beside_one_that_overlaps() -> None:
    text = """
    kernel @k(y: &f64[2, 8, 12]) dims() with {outputs=1} {
      for t in 0..16 { for i in 0..2 { for j in 0..8 { y[t % 2, t // 2, j + min(4, 8*i)] = 0 } } }
      return
    }
    """
    func = parse_kernel(text)
    t, i, j = loops_in(func.body)
    (store,) = accesses(func.body)
    assert separated(store, store, [t, i, j], {}) == {t}


@pytest.mark.parametrize("step, extent", [(4, 4), (4, 5), (5, 4), (-4, 4), (-3, 4), (1, 1), (0, 1)])
def test_a_step_that_outruns_what_moves_keeps_elements_apart(step: int, extent: int) -> None:
    """Of a store around which there is one loop and a sum's two loads, in all iterations of both."""
    text = f"""
    kernel @k(x: &f64[100], y: &f64[3]) dims() with {{outputs=1}} {{
      for i in 0..3 {{
        for j in 0..{extent} {{ x[{step}*i + j + 50] = 0 }}
        for r in 0..2 {{ for j in 0..{extent} {{ x[{step}*i + j + 50] = x[{step}*i + j + 50] + 1 }} }}
      }}
      return
    }}
    """
    func = parse_kernel(text)
    outer, found = loops_in(func.body)[0], accesses(func.body)
    places = [{step * i + j for j in range(extent)} for i in range(3)]
    apart = all(a.isdisjoint(b) for a, b in itertools.combinations(places, 2))
    assert len(found) == 3
    assert {outer in separated(a, b, [outer], {}) for a in found for b in found} == {apart}


@pytest.mark.parametrize(
    ("index", "injective"),
    [
        ("4*(t // n) + i, 4*(t % n) + j", True),
        ("4*(t // n) + j, 4*(t % n) + i", True),
        ("3*(t // n) + i, 4*(t % n) + j", False),  # tiles that overlap
        ("4*(t // n) + i, 4*(t % n)", False),  # without j
        ("4*(t // n) + i, j", False),  # without the units of t
        ("4*(t % n) + i, 4*(t % n) + j", False),
        ("4*(t // n) + i + j, 4*(t % n)", False),
    ],
)
def test_separated_knows_parts_of_a_flat_loop(index: str, injective: bool) -> None:
    """Against all places that a small image has: distinct in distinct iterations, or not."""
    text = f"""
    kernel @k(y: &f64[4*m, 4*n]) dims(m, n) with {{outputs=1}} {{
      for t in 0..m*n {{ for i in 0..4 {{ for j in 0..4 {{ y[{index}] = 0 }} }} }}
      return
    }}
    """
    func = parse_kernel(text)
    loops = loops_in(func.body)
    (store,) = accesses(func.body)
    assert (separated(store, store, loops, {}) == set(loops)) == injective
    iterations = [{"t": t, "i": i, "j": j, "n": 3} for t in range(6) for i in range(4) for j in range(4)]
    places = {tuple(e.evaluate(r) for e in store.idx) for r in iterations}
    assert (len(places) == len(iterations)) == injective


def test_box_at_remainders_of_loops_of_one_iteration() -> None:
    """A window of a batch, whose loop was fused into another one."""
    window, one = var("window", 0, 511), var("one", 0, 0)
    found = box([((window + one) // 64, (window + one) % 64)], [{one: (sym(0), sym(0))}])
    assert found == Box((window // 64, window % 64), (sym(1), sym(1)))


@pytest.mark.parametrize(
    ("index", "apart"),
    [
        ("(8*o + i) // 6, (4*o + i // 2) % 3, i % 2", True),
        ("(8*o + i) // 6, i % 2, 0", False),  # without the digit in between
        ("(8*o + i) // 6, (4*o + i // 2) % 3, 0", False),  # without the units
        ("(8*o + i) % 6, (4*o + i // 2) % 3, i % 2", False),  # without the quotient
        ("(6*o + i) // 6, (6*o + i) % 6, 0", False),  # the last ones of a group are the first ones of the next
    ],
)
def test_separated_knows_parts_of_a_flat_loop_that_was_split(index: str, apart: bool) -> None:
    """Of both loops, and of the inner one for any iteration of the outer one; against all places that there are."""
    text = f"""
    kernel @k(y: &f64[12, 12, 12]) dims() with {{outputs=1}} {{
      for o in 0..9 {{ for i in 0..8 {{ y[{index}] = 0 }} }}
      return
    }}
    """
    outer, inner = loops_in(parse_kernel(text).body)
    (store,), (alone,) = accesses(outer), accesses(inner)
    assert (separated(store, store, [outer, inner], {}) == {outer, inner}) == apart
    assert not apart or separated(alone, alone, [inner], {}) == {inner}
    places = [tuple(e.evaluate({"o": o, "i": i}) for e in store.idx) for o in range(9) for i in range(8)]
    assert (len(set(places)) == len(places)) == apart


@pytest.mark.parametrize(("rows", "apart"), [(2, True), (3, False)])
def test_separated_knows_places_of_a_flat_loop_in_loops_of_other_names(rows: int, apart: bool) -> None:
    text = f"""
    kernel @k(y: &f64[9, 9]) dims() with {{outputs=1}} {{
      for f in 0..16 {{
        for a in 0..2 {{ for b in 0..2 {{ y[2*(f // 4) + a, 2*(f % 4) + b] = 0 }} }}
        for c in 0..{rows} {{ for d in 0..2 {{ y[2*(f // 4) + c, 2*(f % 4) + d] = 1 }} }}
      }}
      return
    }}
    """
    flat = loops_in(parse_kernel(text).body)[0]
    first, second = accesses(flat)
    assert separated(first, second, [flat], {}) == ({flat} if apart else set())
