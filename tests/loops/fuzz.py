"""Random programs under random schedules: whatever steps are accepted, the program computes the same.

Integers in f64 make every comparison exact. A refused step must leave the program as it was.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np

from tests.loops import programs
from tests.loops.random_programs import PROGRAMS
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.verify import verify_func
from tilewright.loops.cache import cache, cache_write
from tilewright.loops.clamp import clamp
from tilewright.loops.cost import iterations
from tilewright.loops.fission import fission
from tilewright.loops.fuse_at import fuse_at
from tilewright.loops.fuse_loops import fuse_loops, fuse_siblings
from tilewright.loops.interp import run_kernel
from tilewright.loops.jam import jam
from tilewright.loops.nest import body_of, is_loop, loops_in
from tilewright.loops.pack import pack, pack_argument
from tilewright.loops.packing import Packing, apply_packing
from tilewright.loops.parallel import parallel
from tilewright.loops.partial_sums import partial_sums
from tilewright.loops.reorder import reorder
from tilewright.loops.simplify import simplify
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.split import TAILS, split
from tilewright.loops.unroll import unroll
from tilewright.loops.vectorize import vectorize, vectorize_reduction

STEPS = 14
MOST_WORK = 20_000  # packing with large factors inside of loops multiplies the work


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
    vectorize_reduction(func, loop, r.randint(1, 5), within, r.choice(TAILS))


STEP_KINDS: dict[str, Callable[[Func, random.Random], object]] = {
    "split": lambda f, r: split(f, any_loop(f, r), r.randint(1, 5), r.choice(TAILS)),
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
    "partial_sums": lambda f, r: partial_sums(
        f, any_buffer(f, r), any_loop(f, r), r.choice(["reg", "scratch"])
    ),
    "pack": do_pack,
    "pack_argument": do_pack_argument,
    "vectorize": lambda f, r: vectorize(f, any_loop(f, r), r.choice([None, 2, 3, 4]), r.choice(TAILS)),
    "vectorize_reduction": do_reduction,
    "clamp": lambda f, r: clamp(f, any_loop(f, r)),
    "unroll": lambda f, r: unroll(f, any_loop(f, r)),
    "jam": lambda f, r: jam(f, split(f, any_loop(f, r), r.randint(2, 3), r.choice(TAILS)).inner),
    "parallel": lambda f, r: parallel(f, any_loop(f, r)),
    "simplify": lambda f, r: simplify(f),
}
RARE = ("unroll", "jam", "parallel", "vectorize", "vectorize_reduction")


def outputs(func: Func, arrays: list[np.ndarray], env: dict[str, int], backwards: bool) -> list[np.ndarray]:
    copies = [a.copy() for a in arrays]
    for index, packing in func.attrs.get("packed", {}).items():
        copies[index] = apply_packing(copies[index], packing)
    run_kernel(func, copies, env, backwards=backwards)
    return copies[len(copies) - func.attrs["outputs"] :]


def fuzz(seed: int) -> Counter[tuple[str, str]]:
    """Apply random steps to a random program; how often each step was accepted and refused."""
    r = random.Random(seed)
    func, env = PROGRAMS[seed % len(PROGRAMS)](r)
    arrays = programs.arguments(func, env, seed)
    expected = outputs(func, arrays, env, False)
    history: list[str] = []
    tried: Counter[tuple[str, str]] = Counter()
    weights = [0.3 if name in RARE else 1.0 for name in STEP_KINDS]
    try:
        for _ in range(STEPS):
            (name,) = r.choices(list(STEP_KINDS), weights)
            history.append(name)
            if iterations(func).evaluate(env) > MOST_WORK:
                break
            try:
                STEP_KINDS[name](func, r)
                tried[name, "accepted"] += 1
            except ScheduleError:
                history[-1] = f"({name})"
                tried[name, "refused"] += 1
            verify_func(func, LOOPS_SPEC)
            found = outputs(func, arrays, env, r.random() < 0.5)
            for want, got in zip(expected, found, strict=True):
                assert np.array_equal(want, got), "the result changed"
    except Exception as e:
        e.add_note(f"seed {seed}, steps: {' '.join(history)}")
        raise
    return tried
