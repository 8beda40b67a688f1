"""Random programs under random schedules: whatever steps are accepted, the program computes the same.

Integers in f64 make every comparison exact. A refused step must leave the program as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.loops import programs
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import ge0, var
from tilewright.ir.verify import verify_func
from tilewright.loops.cache import cache, cache_write
from tilewright.loops.cost import iterations
from tilewright.loops.fission import fission
from tilewright.loops.fuse_at import fuse_at
from tilewright.loops.fuse_loops import fuse_loops, fuse_siblings
from tilewright.loops.interp import run_kernel
from tilewright.loops.nest import body_of, is_loop, loops_in
from tilewright.loops.pack import pack, pack_argument
from tilewright.loops.packing import Packing, apply_packing
from tilewright.loops.parallel import parallel
from tilewright.loops.reorder import reorder
from tilewright.loops.simplify import simplify
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.split import split
from tilewright.loops.unroll import unroll
from tilewright.loops.vectorize import vectorize, vectorize_reduction
from tilewright.ops.trace import Array, Trace

ROUNDS = 160
STEPS = 14
MOST_WORK = 20_000  # packing with large factors inside of loops multiplies the work


# Programs


def chain(r: random.Random) -> tuple[Func, dict[str, int]]:
    """t0 = x0 + 1; t1 = t0 * x0 (shifted); y = t1 - t0."""
    m, n = r.randint(1, 9), r.randint(2, 11)
    rows = var("m", 1)

    def body(t: Trace, x: Array, y: Array) -> None:
        first = t.alloc(x.dtype, (rows, n))
        second = t.alloc(x.dtype, (rows, n))
        with t.loop(rows, "a") as i, t.loop(n, "b") as j:
            first.store((i, j), x[i, j] + 1)
        with t.loop(rows, "c") as i, t.loop(n, "d") as j:
            guard = [ge0(j - 1)]
            second.store((i, j), first.load((i, j - 1), guard) * x[i, j])
        with t.loop(rows, "e") as i, t.loop(n, "f") as j:
            y.store((i, j), second[i, j] - first[i, n - 1 - j])

    return programs.kernel([(rows, n)], [(rows, n)], body, [rows]), {"m": m}


def product(r: random.Random) -> tuple[Func, dict[str, int]]:
    m, n, k = r.randint(1, 9), r.randint(1, 9), r.randint(1, 6)
    if r.random() < 0.5:
        size = var("m", 1)
        return programs.matmul(size, n, k, [size]), {"m": m}
    return (programs.matmul if r.random() < 0.5 else programs.plain_matmul)(m, n, k), {}


def rows_normalised(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Row maximum, row sum of the differences, result of both: three reductions and maps over the same
    rows."""
    m, n = r.randint(1, 7), r.randint(1, 9)

    def body(t: Trace, x: Array, y: Array) -> None:
        top, total = t.alloc(x.dtype, (m, 1)), t.alloc(x.dtype, (m,))
        with t.loop(m, "a") as i:
            top.store((i, 0), -100)
            with t.loop(n, "b") as j:
                top.store((i, 0), t.apply("max", top[i, 0], x[i, j]))
        with t.loop(m, "c") as i:
            total.store((i,), 0)
            with t.loop(n, "d") as j:
                total.store((i,), total[i] + (x[i, j] - top[i, 0]))
        with t.loop(m, "e") as i, t.loop(n, "f") as j:
            y.store((i, j), (x[i, j] - top[i, 0]) * total[i])

    return programs.kernel([(m, n)], [(m, n)], body), {}


def stencil(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Two three-point stencils with zeros beyond the ends, the second on every other point."""
    n = r.randint(2, 14)
    half = (n + 1) // 2

    def point(source: Array, i: object, size: int) -> object:
        total = source.load((i,))  # type: ignore[list-item]
        for d in (-1, 1):
            total = total + source.load((i + d,), [ge0(i + d), ge0(size - 1 - i - d)])  # type: ignore[operator]
        return total

    def body(t: Trace, x: Array, y: Array) -> None:
        once = t.alloc(x.dtype, (n,))
        with t.loop(n, "a") as i:
            once.store((i,), point(x, i, n))  # type: ignore[arg-type]
        with t.loop(half, "b") as i:
            y.store((i,), point(once, 2 * i, n))  # type: ignore[arg-type]

    return programs.kernel([(n,)], [(half,)], body), {}


def carried(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Programs with dependences between iterations: running sums, shifts in place, overwriting."""
    n, m = r.randint(2, 9), r.randint(2, 6)
    which = r.randrange(4)

    def body(t: Trace, x: Array, y: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            if which == 0:
                y.store((i, j), x[i, j] + y.load((i, j - 1), [ge0(j - 1)]))
            elif which == 1:
                y.store((i, j), y.load((i, j + 1), [ge0(n - 2 - j)]) - x[i, j])
            elif which == 2:
                y.store((i, j), x[i, j] + y.load((i - 1, j + 1), [ge0(i - 1), ge0(n - 2 - j)]))
            else:
                y.store((i, j // 2), x[i, j])
        with t.loop(m, "c") as i, t.loop(n, "d") as j:
            y.store((i, j), y[i, j] * 2 + y.load((m - 1 - i, j), [ge0(which - 2)]))

    return programs.kernel([(m, n)], [(m, n)], body), {}


def transposed(r: random.Random) -> tuple[Func, dict[str, int]]:
    """A permuted copy through a buffer, and column sums of it, in one flat loop."""
    m, n = r.randint(1, 6), r.randint(1, 6)

    def body(t: Trace, x: Array, y: Array, s: Array) -> None:
        copy = t.alloc(x.dtype, (n, m))
        with t.loop(m * n, "a") as i:
            copy.store((i % n, i // n), x[i // n, i % n])
        with t.loop(m, "e") as i:
            s.store((i,), 0)
        with t.loop(n, "b") as j, t.loop(m, "c") as i:
            y.store((j, i), copy[j, i] * 3)
            s.store((i,), s[i] + copy[j, i])

    return programs.kernel([(m, n)], [(n, m), (m,)], body), {}


def gathered(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Rows picked by data: y[i, j] = x[i', j] with i' computed from the elements."""
    m, n = r.randint(2, 6), r.randint(1, 8)

    def body(t: Trace, x: Array, y: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            row = t.bind(t.apply("abs", x[i, 0]).cast(dt.i64), "row", 0, 8)
            y.store((i, j), x.load((row, j), [ge0(m - 1 - row)], -1))

    return programs.kernel([(m, n)], [(m, n)], body), {}


def convolution(r: random.Random) -> tuple[Func, dict[str, int]]:
    func = programs.convolution(
        r.randint(1, 3), r.randint(1, 4), r.randint(3, 5), r.choice([1, 3]), r.choice([0, 1])
    )
    return func, {}


PROGRAMS = (chain, product, rows_normalised, stencil, carried, transposed, gathered, convolution)


# Steps


def any_loop(func: Func, r: random.Random) -> Op:
    loops = loops_in(func.body)
    if not loops:
        raise ScheduleError("no loops are left")
    return r.choice(loops)


def any_buffer(func: Func, r: random.Random, *, local: bool = False) -> Value:
    buffers = [op.result for op in func.body.walk() if op.name == "alloc"]
    return r.choice(buffers if local and buffers else [*buffers, *func.args])


def do_reorder(func: Func, r: random.Random) -> None:
    nest = [any_loop(func, r)]
    while is_loop(nest[-1]):
        inside = [op for op in body_of(nest[-1]).walk() if is_loop(op)]
        if not inside:
            break
        nest.append(inside[0])
    picked = r.sample(nest, r.randint(1, len(nest)))
    reorder(func, picked)


def do_fuse_siblings(func: Func, r: random.Random) -> None:
    first = any_loop(func, r)
    following = [op for op in first.parent.ops if is_loop(op) and op is not first] if first.parent else []
    if following:
        fuse_siblings(func, first, r.choice(following))


def do_fission(func: Func, r: random.Random) -> None:
    ops = [op for loop in loops_in(func.body) for op in body_of(loop).ops]
    if ops:
        fission(func, r.choice(ops), r.randint(1, 3))


def do_pack(func: Func, r: random.Random) -> None:
    buffer = any_buffer(func, r)
    rank = len(buffer.type.shape)  # type: ignore[union-attr]
    pack(func, buffer, any_loop(func, r), random_packing(r, rank) if r.random() < 0.7 else None)


def do_pack_argument(func: Func, r: random.Random) -> None:
    buffer = r.choice(func.args)
    pack_argument(func, buffer, random_packing(r, len(buffer.type.shape)))  # type: ignore[union-attr]


def random_packing(r: random.Random, rank: int) -> Packing:
    factors = tuple(tuple(r.randint(1, 4) for _ in range(r.choice([0, 0, 1, 2]))) for _ in range(rank))
    pieces = list(range(sum(1 + len(f) for f in factors)))
    r.shuffle(pieces)
    return Packing(factors, tuple(pieces))


def do_cache(func: Func, r: random.Random) -> None:
    loop = any_loop(func, r)
    after = loop.parent.ops[loop.parent.ops.index(loop) :] if loop.parent else [loop]
    last = r.choice([op for op in after if op.name != "return"])
    cache(func, any_buffer(func, r), loop, last, r.choice(["reg", "scratch"]))


def do_reduction(func: Func, r: random.Random) -> None:
    loop = any_loop(func, r)
    within = any_loop(func, r) if r.random() < 0.4 else None
    vectorize_reduction(func, loop, r.randint(1, 5), within, r.choice(["guard", "peel", "branch"]))


STEP_KINDS: dict[str, Callable[[Func, random.Random], object]] = {
    "split": lambda f, r: split(f, any_loop(f, r), r.randint(1, 5), r.choice(["guard", "peel", "branch"])),
    "reorder": do_reorder,
    "fuse_loops": lambda f, r: [
        fuse_loops(f, o, body_of(o).ops[0]) for o in [any_loop(f, r)] if body_of(o).ops
    ],
    "fuse_siblings": do_fuse_siblings,
    "fission": do_fission,
    "fuse_at": lambda f, r: fuse_at(
        f,
        any_buffer(f, r, local=True),
        any_loop(f, r),
        r.choice(["reg", "scratch"]),
        r.choice(["if", "loads"]),
    ),
    "cache": do_cache,
    "cache_write": lambda f, r: cache_write(f, any_buffer(f, r)),
    "pack": do_pack,
    "pack_argument": do_pack_argument,
    "vectorize": lambda f, r: vectorize(
        f, any_loop(f, r), r.choice([None, 2, 3, 4]), r.choice(["guard", "peel"])
    ),
    "vectorize_reduction": do_reduction,
    "unroll": lambda f, r: unroll(f, any_loop(f, r)),
    "parallel": lambda f, r: parallel(f, any_loop(f, r)),
    "simplify": lambda f, r: simplify(f),
}
RARE = ("unroll", "parallel", "vectorize", "vectorize_reduction")


def outputs(func: Func, arrays: list[np.ndarray], env: dict[str, int], backwards: bool) -> list[np.ndarray]:
    copies = [a.copy() for a in arrays]
    for index, packing in func.attrs.get("packed", {}).items():
        copies[index] = apply_packing(copies[index], packing)
    run_kernel(func, copies, env, backwards=backwards)
    return copies[len(copies) - func.attrs["outputs"] :]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_accepted_schedule_keeps_the_meaning(seed: int) -> None:
    r = random.Random(seed)
    func, env = PROGRAMS[seed % len(PROGRAMS)](r)
    arrays = programs.arguments(func, env, seed)
    expected = outputs(func, arrays, env, False)
    history: list[str] = []
    weights = [0.3 if name in RARE else 1.0 for name in STEP_KINDS]
    try:
        for _ in range(STEPS):
            (name,) = r.choices(list(STEP_KINDS), weights)
            history.append(name)
            if iterations(func).evaluate(env) > MOST_WORK:
                break
            try:
                STEP_KINDS[name](func, r)
            except ScheduleError:
                history[-1] = f"({name})"
            verify_func(func, LOOPS_SPEC)
            found = outputs(func, arrays, env, r.random() < 0.5)
            for want, got in zip(expected, found, strict=True):
                assert np.array_equal(want, got), "the result changed"
    except Exception as e:
        e.add_note(f"seed {seed}, steps: {' '.join(history)}")
        raise
