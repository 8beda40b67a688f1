"""Symbolic integers against plain Python integers: every rewrite must keep the value of a random expression."""

from __future__ import annotations

import copy
import gc
import itertools
import operator
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pytest

from tilewright.ir import sym as s
from tilewright.ir.diag import TextError
from tilewright.ir.sym import (
    Sym,
    const,
    parse_sym,
    parse_sym_prefix,
    prove,
    prove_ge0,
    simplify,
    var,
    weighted_sum,
)
from tilewright.ir.symbolic.arith import _INTERNED, REMEMBERED, SHORT
from tilewright.ir.symbolic.compiled import places_of

N = var("n", 0, None)
M = var("m", 1, None)
I = var("i", 0, 5)  # noqa: E741
IO = var("io")
K = var("k", -7, 9)
B = var("b", 0, 1)
U = var("u", None, None)
LANE = var("lane", 0, None)
VARIABLES = {v.name: v for v in (N, M, I, IO, K, B, U)}


@dataclass(frozen=True)
class Twin:
    """A canonical expression and the same computation written as a Python function of the variables."""

    expression: Sym
    compute: Callable[[dict[str, int]], int]


def sampled(rng: random.Random, v: Sym) -> int:
    lo, hi = v.bounds
    low = -30 if lo is None else lo
    return rng.randint(low, low + rng.choice([3, 60]) if hi is None else hi)


def sample(rng: random.Random) -> dict[str, int]:
    return {name: sampled(rng, v) for name, v in VARIABLES.items()}


def leaf(rng: random.Random) -> Twin:
    if rng.random() < 0.35:
        number = rng.choice([0, 1, 2, 3, 4, 6, 8, 12, 16, -1, -3])
        return Twin(const(number), lambda env: number)
    name = rng.choice(sorted(VARIABLES))
    return Twin(VARIABLES[name], lambda env: env[name])


def divisor(rng: random.Random) -> Twin:
    if rng.random() < 0.8:
        number = rng.choice([1, 2, 3, 4, 6, 8, 12, 16, -1, -4])
        return Twin(const(number), lambda env: number)
    return Twin(M, lambda env: env["m"]) if rng.random() < 0.5 else Twin(4 * M, lambda env: 4 * env["m"])


COMPARISONS = [
    (s.lt, operator.lt), (s.le, operator.le), (s.gt, operator.gt),
    (s.ge, operator.ge), (s.eq, operator.eq), (s.ne, operator.ne),
]  # fmt: skip


def condition(rng: random.Random, depth: int) -> Twin:
    choice = rng.random()
    if depth == 0 or choice < 0.6:
        make, compare = rng.choice(COMPARISONS)
        a, b = grown(rng, max(depth - 1, 0)), grown(rng, max(depth - 1, 0))
        return Twin(
            make(a.expression, b.expression), lambda env: int(compare(a.compute(env), b.compute(env)))
        )
    a, b = condition(rng, depth - 1), condition(rng, depth - 1)
    if choice < 0.75:
        return Twin(s.logical_and(a.expression, b.expression), lambda env: a.compute(env) & b.compute(env))
    if choice < 0.9:
        return Twin(s.logical_or(a.expression, b.expression), lambda env: a.compute(env) | b.compute(env))
    return Twin(s.logical_not(a.expression), lambda env: 1 - a.compute(env))


BINARY = [
    (operator.add, operator.add), (operator.sub, operator.sub), (operator.mul, operator.mul),
    (s.minimum, min), (s.maximum, max),
]  # fmt: skip


def grown(rng: random.Random, depth: int) -> Twin:
    """A random expression of at most this depth."""
    if depth == 0:
        return leaf(rng)
    choice = rng.random()
    if choice < 0.1:
        return condition(rng, depth - 1)
    a = grown(rng, depth - 1)
    if choice < 0.2:
        c, b = condition(rng, depth - 1), grown(rng, depth - 1)
        chosen = s.select(c.expression, a.expression, b.expression)
        return Twin(chosen, lambda env: a.compute(env) if c.compute(env) else b.compute(env))
    if choice < 0.55:
        q = divisor(rng)
        if rng.random() < 0.5:
            return Twin(a.expression // q.expression, lambda env: a.compute(env) // q.compute(env))
        return Twin(a.expression % q.expression, lambda env: a.compute(env) % q.compute(env))
    make, apply = rng.choice(BINARY)
    b = grown(rng, rng.randrange(depth))
    return Twin(make(a.expression, b.expression), lambda env: apply(a.compute(env), b.compute(env)))


def twins(seed: int, count: int) -> list[Twin]:
    rng = random.Random(seed)
    return [grown(rng, rng.randint(1, 5)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(10))
def test_value_bounds_and_text_of_random_expressions(seed: int) -> None:
    rng = random.Random(1000 + seed)
    for twin in twins(seed, 150):
        e = twin.expression
        lo, hi = e.bounds
        for _ in range(12):
            env = sample(rng)
            expected = twin.compute(env)
            assert e.evaluate(env) == expected, f"{e} at {env}"
            assert lo is None or lo <= expected, f"{e} at {env}: {expected} is below {lo}"
            assert hi is None or expected <= hi, f"{e} at {env}: {expected} is above {hi}"
        assert parse_sym(str(e), VARIABLES.__getitem__) is e, str(e)


@pytest.mark.fresh_seeds(2)
def test_places_of_lanes_are_those_of_each_lane(fresh_seed: int) -> None:
    """Two axes that grow by the same from lane to lane: a slice, an array or an int, and None outside of the shape."""
    rng = random.Random(fresh_seed)
    for twin in twins(fresh_seed, 60):
        env, lanes, offset = sample(rng), rng.randint(1, 5), rng.randrange(3)
        first = twin.expression + rng.choice([0, 1, -1, 3]) * LANE
        lowest = min(first.evaluate({**env, "lane": lane}) for lane in range(lanes))
        first -= min(0, lowest) if rng.random() < 0.8 else 0
        index = first, M + 4 - rng.choice([0, 1, -1, 3]) * LANE
        each = [[e.evaluate({**env, "lane": lane}) for e in index] for lane in range(lanes)]
        shape = tuple(max(0, *axis) + rng.choice([0, 1, 1, 5]) for axis in zip(*each, strict=True))
        strides = (rng.randint(1, 9), rng.randrange(4))
        places = places_of(index, "lane")
        assert places is not None
        found = places(env, lanes, shape, strides, offset)
        if all(0 <= i < n for one in each for i, n in zip(one, shape, strict=True)):
            wanted = [offset + a * strides[0] + b * strides[1] for a, b in each]
            found = range(found.start, found.stop, found.step) if isinstance(found, slice) else found
            assert np.broadcast_to(found, lanes).tolist() == wanted, f"{index} at {env}"
        else:
            assert found is None, f"{index} at {env}"


def test_what_places_of_lanes_are() -> None:
    def found(index: Sym, lanes: int = 4) -> Any:
        places = places_of((index, const(1)), "lane")
        return None if places is None else places({"m": 3}, lanes, (10, 2), (2, 1), 5)

    assert (found(M), found(M + 2 * LANE)) == (12, slice(12, 25, 4))
    assert found(M - LANE).tolist() == [12, 10, 8, 6]
    assert (found(M + 7), found(M - 4), found(M + 2 * LANE, 5), found(M - LANE, 5)) == (None,) * 4
    assert found(LANE // 2) is None
    with pytest.raises(KeyError):
        found(N + LANE)


@pytest.mark.parametrize("groups", [2, 3, 4, 8])
@pytest.mark.parametrize("channels", [24, 48, 116])
@pytest.mark.parametrize("q", [4, 6, 16, 24, 48, 96])
def test_remainders_of_shuffled_channels(groups: int, channels: int, q: int) -> None:
    """Digits of a number in other order: a sum that has both x // groups and x % groups."""
    for size in (1, channels // groups, channels):
        x = var("x", 0, channels * groups - 1)
        for shift in (0, -size):
            e = (x // groups + size * (x % groups) + shift) % q
            values = range(channels * groups)
            expected = [(v // groups + size * (v % groups) + shift) % q for v in values]
            assert [e.evaluate({"x": v}) for v in values] == expected
            assert parse_sym(str(e), {"x": x}.__getitem__) is e, str(e)
            assert e % q is e


@pytest.mark.parametrize("high", [1, 2, 4])
@pytest.mark.parametrize("shift", range(-3, 4))
@pytest.mark.parametrize("bound", range(-2, 3))
@pytest.mark.parametrize("extremum", [s.minimum, s.maximum])
def test_conditions_on_a_clamped_index(
    extremum: Callable[..., Sym], bound: int, shift: int, high: int
) -> None:
    """Such as max(0, i - 1) < 1, by which an edge's padding chooses an operand, also where the extremum is 0 or 1."""
    i = var("i", 0, high)
    clamped = extremum(bound, i + shift)
    plain = min if extremum is s.minimum else max
    for number in (-1, 0, 1, 2):
        for compare, same in (
            (s.lt, operator.lt),
            (s.ge, operator.ge),
            (s.eq, operator.eq),
            (s.ne, operator.ne),
        ):
            for condition, holds in (
                (compare(clamped, number), True),
                (s.logical_not(compare(clamped, number)), False),
            ):
                found = [condition.evaluate({"i": k}) for k in range(high + 1)]
                assert found == [same(plain(bound, k + shift), number) == holds for k in range(high + 1)], (
                    condition
                )


@pytest.mark.parametrize("seed", range(4))
def test_numpy_evaluation_is_elementwise_evaluation(seed: int) -> None:
    rng = random.Random(2000 + seed)
    for twin in twins(100 + seed, 100):
        samples = [sample(rng) for _ in range(8)]
        arrays = {name: np.array([env[name] for env in samples], dtype=np.int32) for name in VARIABLES}
        got = np.broadcast_to(twin.expression.evaluate_numpy(arrays), 8)
        assert got.tolist() == [twin.compute(env) for env in samples], str(twin.expression)


@pytest.mark.parametrize("seed", range(4))
def test_substitution_is_evaluation_of_the_replacement(seed: int) -> None:
    rng = random.Random(3000 + seed)
    for twin in twins(200 + seed, 100):
        inner = grown(rng, 2)
        replaced = twin.expression.subs({U: inner.expression, N: 7})
        for _ in range(6):
            env = sample(rng)
            assert replaced.evaluate(env) == twin.compute(env | {"u": inner.compute(env), "n": 7})


@pytest.mark.parametrize("seed", range(6))
def test_proofs_have_no_counterexample(seed: int) -> None:
    """i in [0, n-1], io in [k, k+m]: random expressions, all sampled points of the ranges."""
    ranges = {I: (const(0), N - 1), IO: (K, K + M)}
    rng = random.Random(4000 + seed)
    points = [
        env
        for env in (sample(rng) for _ in range(400))
        if env["i"] < env["n"] and 0 <= env["io"] - env["k"] <= env["m"]
    ]
    assert len(points) > 20
    proved = 0
    for twin in twins(300 + seed, 120):
        values = [twin.compute(env) for env in points]
        if prove_ge0(twin.expression, ranges):
            proved += 1
            assert min(values) >= 0, str(twin.expression)
        truth = prove(s.ge0(twin.expression - 2), ranges)
        assert truth is None or all((value >= 2) == truth for value in values), str(twin.expression)
        simple = simplify(twin.expression, ranges)
        assert [simple.evaluate(env) for env in points] == values, f"{twin.expression} became {simple}"
    assert proved > 20


@pytest.mark.parametrize("seed", range(4))
def test_affine_split_reproduces_the_expression(seed: int) -> None:
    found = 0
    for twin in twins(400 + seed, 100):
        for v in twin.expression.vars:
            split = s.affine_in(twin.expression, v)
            if split is not None:
                coef, rest = split
                found += 1
                assert v not in coef.vars | rest.vars
                assert coef * v + rest is twin.expression
    assert found > 10


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ((6 * IO + I) // 6, IO),
        ((6 * IO + I) % 6, I),
        (16 * (N // 16) + N % 16, N),
        (M * (N // M) + N % M, N),
        (16 * M * (N // 16) + M * (N % 16), M * N),
        ((K + 1) * (N // (K + 1)) + N % (K + 1), N),
        (5 * (M + K + 1) * (N // (M + K + 1)) + 5 * (N % (M + K + 1)) + IO, 5 * N + IO),
        (N - 16 * (N // 16), N % 16),
        (N - N % 16, 16 * (N // 16)),
        (4 * ((N // 4) % 8) + N % 4, N % 32),
        ((N // 4) // 8, N // 32),
        ((N + 35) // 16, (N + 3) // 16 + 2),
        ((N % 16) % 4, N % 4),
        ((I // 2 + 24 * (I % 2)) % 48, I // 2 + 24 * (I % 2)),
        ((IO // 2 + 24 * (IO % 2)) % 16, (IO // 2 + 24 * IO) % 16),
        ((N * IO + N) // N, IO + 1),
        ((N + 1) * (IO + 2) // (N + 1), IO + 2),
        ((64 * N) // (8 * N), const(8)),
        ((32 * IO + 4 * I + 3) // 8, 4 * IO + I // 2),
        (I % 6, I),
        (I // 6, const(0)),
        (N // -4, -N // 4),
        (s.minimum(N, N + 3, s.minimum(N, IO)), s.minimum(IO, N)),
        (s.minimum(I, 5), I),
        (s.maximum(I, 7), const(7)),
        (s.lt(I, N), s.ge0(N - I - 1)),
        (s.ge(2 * N, 3), s.ge(N, 2)),
        (s.eq(2 * N, 3), const(0)),
        (s.eq(N, I), s.eq(I, N)),
        (s.lt(I, N) * s.lt(I, N), s.lt(I, N)),
        (s.eq(s.lt(I, N), 0), s.ge(I, N)),
        (s.ne(s.lt(I, N), 0), s.lt(I, N)),
        (s.logical_not(s.logical_and(s.lt(I, N), s.ne(K, 1))), s.logical_or(s.ge(I, N), s.eq(K, 1))),
        (s.logical_and(s.lt(I, 6), s.lt(I, N)), s.lt(I, N)),
        (s.select(s.lt(I, 6), N, K), N),
        (s.select(s.lt(I, N), K, K), K),
        (s.select(s.lt(I, N), 1, 0), s.lt(I, N)),
        (s.select(s.lt(I, N), 0, s.select(s.lt(K, N), 0, M)), s.select(s.logical_or(s.lt(I, N), s.lt(K, N)), 0, M)),
        (s.ceildiv(N, 16), (N - 1) // 16 + 1),
    ],
    ids=str,
)  # fmt: skip
def test_one_canonical_form(built: Sym, expected: Sym) -> None:
    assert built is expected


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (I + 6 * IO, "6*io + i"),
        (N // 16, "n // 16"),
        (s.ceildiv(N, 16), "(n + 15) // 16"),
        (16 * (N // 16) * M, "16*m*(n // 16)"),
        ((N // 4) % 2, "(n // 4) % 2"),
        (7 - N, "-n + 7"),
        (-N // 4, "-n // 4"),
        (s.minimum(K, N), "min(k, n)"),
        (s.lt(I, N), "i < n"),
        (s.ge(N, 3), "n >= 3"),
        (s.le(I, 3), "i < 4"),
        (s.eq(N, IO + 1), "io + 1 == n"),
        (s.ne(N, 4), "n != 4"),
        (s.logical_and(s.lt(I, N), s.logical_or(s.eq(K, 1), s.lt(K, IO))), "(k < io or k == 1) and i < n"),
        (s.select(s.lt(I, N), K, -1), "select(i < n, k, -1)"),
        (s.lt(I, N) + 1, "(i < n) + 1"),
    ],
)  # fmt: skip
def test_text(e: Sym, text: str) -> None:
    assert str(e) == text
    assert parse_sym(text, VARIABLES.__getitem__) is e


@pytest.mark.parametrize(
    ("text", "pos", "expected", "end"),
    [
        ("n + 1..5", 0, N + 1, 5),
        ("x[6*io + i, k]", 2, 6 * IO + I, 10),
        ("n parallel {", 0, N, 1),
        ("if i < n {", 3, s.lt(I, N), 8),
        ("n -> m", 0, N, 1),
        ("(n) ]", 0, N, 3),
        ("not n < 3", 0, s.ge(N, 3), 9),
        ("ceildiv(n, 6)", 0, s.ceildiv(N, 6), 13),
        ("--n", 0, N, 3),
        ("-n // 4", 0, (-N) // 4, 7),
        ("n - i - 1", 0, N - I - 1, 9),
    ],
)
def test_parser_stops_after_the_expression(text: str, pos: int, expected: Sym, end: int) -> None:
    assert parse_sym_prefix(text, pos, VARIABLES.__getitem__) == (expected, end)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected a number, a name or '\\(', found the end of the text"),
        ("n + * 3", "found '\\*'\n    n \\+ \\* 3\n        \\^\n  where: expression:1:5"),
        ("n +\nmin(i", "expected '\\)', found the end of the text(.|\n)*expression:2:6"),
        ("n )", "the expression ends here"),
        ("n ? i", "the expression ends here"),
        ("n // 0", "division by zero(.|\n)*expression:1:3"),
        ("n % (i - i)", "division by zero"),
        ("ceildiv(n, 0)", "division by zero"),
        ("select(n, 1)", "'select' takes 3 operands, not 2"),
        ("min", "expected '\\('"),
        ("and", "expected a number"),
        ("(" * 5000 + "n", "nests deeper"),
        ("9" * 5000, "more than 100 digits"),
    ],
)
def test_malformed_text(text: str, problem: str) -> None:
    with pytest.raises(TextError, match=problem):
        parse_sym(text, VARIABLES.__getitem__)


def test_unknown_names_are_the_affair_of_the_lookup() -> None:
    with pytest.raises(KeyError, match="zz"):
        parse_sym("n + zz", VARIABLES.__getitem__)


LOOP = {IO: (const(0), s.ceildiv(N, 16) - 1)}
EXACT = {IO: (const(0), N // 16 - 1), K: (const(0), const(15))}
NEST = {IO: (const(0), N - 1), U: (const(0), M - 1)}


@pytest.mark.parametrize(
    ("e", "ranges"),
    [
        (N - 16 * IO - 1, LOOP),
        (s.minimum(16, N - 16 * IO) - 1, LOOP),
        (N - N // 16 * 16, {}),
        (N // 16 * 16 - N + 15, {}),
        (N * M - N, {}),
        ((N + 3) // 4 - N // 4, {}),
        (N - 1 - 16 * IO - K, EXACT),
        (N * M - 1 - (M * IO + U), NEST),
        (N - 1, NEST),
        (IO // 4 - K // 4, {IO: (K, K + 5)}),
        (N - s.minimum(N, K), {}),
        (s.maximum(N, K) - N, {}),
        (s.ceildiv(N, 16) * 16 - N, {}),
        (N - N % M, {}),
        (s.select(s.lt(K, 0), N, M - 1), {}),
        (N - 1 - IO // M, {IO: (const(0), N * M - 1)}),
        (N - 1 - (IO + s.minimum(U * (N + 5), N * M - M)) // M, {IO: (const(0), M - 1)}),
        (N - 4 * ((IO + s.minimum(U, s.ceildiv(N, 4) * M - M)) // M) - 1, {IO: (const(0), M - 1)}),
        (4 * ((IO - s.minimum(U, -M)) // M) - 4, {IO: (const(0), M - 1)}),
    ],
)
def test_proves(e: Sym, ranges: s.Ranges) -> None:
    assert prove_ge0(e, ranges)
    assert prove(s.ge0(e), ranges) is True
    assert prove(s.lt(e, 0), ranges) is False


@pytest.mark.parametrize("e", [N - 1, N - I, K, U * U * U, N // M - 1, 3 - N % M, N - 1 - (N + 1) // 2])
def test_does_not_prove(e: Sym) -> None:
    assert not prove_ge0(e)
    assert prove(s.ge0(e)) is None


def test_counterexamples_that_are_no_corners() -> None:
    """Where the range of `k` is not empty, both have values of their own: at the ends of `io` each may be negative."""
    rows = (N - 1) // ((N + 63) // 64) + 1
    ranges = {IO: (const(0), (N - 1) // rows), K: (const(0), (rows % 8 + 3) // 4 - 1)}
    for e in (IO * rows - N + rows, N - IO * rows - rows):
        assert prove(s.ge0(e), ranges) is None


@pytest.mark.parametrize(
    ("e", "simple"),
    [
        ((M * IO + U) // M, IO),
        ((M * IO + U) % M, U),
        (s.minimum(N, IO), IO),
        (s.maximum(N - 1, IO, U), s.maximum(N - 1, U)),
        (s.logical_and(s.ge(U, 0), s.lt(IO, N), s.lt(IO, 9)), s.lt(IO, 9)),
        (s.select(s.lt(IO, N), U, K), U),
        (s.ne(IO, N), const(1)),
        (s.eq(IO, N) + K, K),
        (N % M, N % M),
    ],
)
def test_simplify(e: Sym, simple: Sym) -> None:
    assert simplify(e, NEST) is simple


def test_simplify_uses_numeric_ranges() -> None:
    wide = var("w")
    assert simplify((8 * IO + wide) // 8, {wide: (const(0), const(7))}) is IO


def test_same_names_of_other_bounds_are_not_mixed_up() -> None:
    small, large = var("i", 0, 3), var("i", 0, 9)
    ranges = {small: (const(0), const(3)), large: (const(0), const(3))}
    assert simplify(large - small, ranges) is large - small


def test_variables_and_constants() -> None:
    assert (N // 4 + I * K).vars == {N, I, K}
    assert const(3).value == int(const(3)) == 3
    assert const(3) == 3 and hash(const(3)) == hash(3) and {3: "x"}[const(3)] == "x"
    assert N != 3 and N != "n" and var("n", 1, None) is not N
    assert list(range(const(3))) == [0, 1, 2]
    assert N + np.int64(3) is N + 3 and s.sym(np.int32(2)) is const(2)
    assert np.int64(3) + N is N + 3


def test_interning_survives_copy_and_pickle() -> None:
    for twin in twins(500, 60):
        e = twin.expression
        assert pickle.loads(pickle.dumps(e)) is e
        assert copy.deepcopy(e) is e and copy.copy(e) is e


@pytest.mark.usefixtures("own_garbage")
def test_unused_expressions_are_forgotten() -> None:
    gc.collect()
    before = len(_INTERNED)
    for j in range(100_000):
        assert (N + 2000 + j).kind == "add"
    gc.collect()
    # a sum and its constant, for as long as they are remembered
    assert len(_INTERNED) <= before + 3 * REMEMBERED


@pytest.mark.usefixtures("own_garbage")
def test_long_expressions_are_not_remembered() -> None:
    long = sum((var(f"long{k}") for k in range(SHORT)), N)
    gc.collect()
    before = len(_INTERNED)
    for j in range(25):
        assert (long + j).kind == (long * (2000 + j)).kind == "add"
    gc.collect()
    assert len(_INTERNED) <= before + 10


def test_threads_agree_on_the_object() -> None:
    def build(offset: int) -> list[Sym]:
        return [(N * 1001 + j + offset) // 13 for j in range(300)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(build, [0] * 8))
    assert all(a is b for result in results[1:] for a, b in zip(results[0], result, strict=True))


def test_walk_gives_the_parts() -> None:
    e = 6 * IO * M + (N // 4) - 3
    assert e.kind == "add"
    assert [arg.kind for arg in e.args] == ["mul", "floordiv", "const"]
    assert e.args[0].args[0] == 6 and set(e.args[0].args[1:]) == {IO, M}
    assert reduce(operator.add, e.args) is e
    for twin in twins(600, 60):
        assert s.rebuild(twin.expression, twin.expression.args) is twin.expression


def test_order_of_construction_does_not_show() -> None:
    parts = [6 * IO, I, K * N, const(4), N // 3]
    texts = {str(reduce(operator.add, order)) for order in itertools.permutations(parts)}
    assert texts == {"k*n + 6*io + i + n // 3 + 4"}


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda: N.value, ValueError, "'n' is not a constant: it depends on n"),
        (lambda: int(N + K), ValueError, "depends on k, n"),
        (lambda: bool(N), TypeError, "truth of 'n' is not known"),
        (lambda: N // 0, ZeroDivisionError, "division of 'n' by zero"),
        (lambda: N % 0, ZeroDivisionError, "'n' modulo zero"),
        (lambda: var("3x"), ValueError, "'3x' cannot name a variable"),
        (lambda: var("min"), ValueError, "is none of"),
        (lambda: var("x", 3, 2), ValueError, "lower bound 3 exceeds its upper bound 2"),
        (lambda: N.subs({N: K, N + 1: K}), ValueError, "only variables can be substituted, not 'n \\+ 1'"),
        (lambda: N + 1.5, TypeError, "unsupported operand"),
        (lambda: N < 3, TypeError, "not supported"),
        (lambda: s.minimum(), ValueError, "at least one operand"),
        (lambda: N.evaluate({}), KeyError, "n"),
        (
            lambda: reduce(operator.mul, [var(f"x{j}") + 1 for j in range(40)]),
            ValueError,
            "too large to expand",
        ),
    ],
)
def test_misuse(action: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        action()


def test_a_weighted_sum_is_the_sum_of_its_products() -> None:
    factors, weights = (IO // 4, IO % 4, N, const(3), const(0)), (const(4), const(1), M + 1, N, U)
    assert weighted_sum(K, factors, weights) is K + IO + N * (M + 1) + 3 * N
    assert weighted_sum(const(0), (), ()) is const(0)
