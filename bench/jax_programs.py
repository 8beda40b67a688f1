"""Programs of JAX, compiled by XLA and by tilewright from the same export, in turns within one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.turns import shortest_ms


@dataclass(frozen=True)
class Pair:
    """One program: shortest calls in ms, seconds to compile (ours with the export), and how far ours is off, as a
    fraction of the largest output."""

    name: str
    xla_ms: float
    ours_ms: float
    xla_s: float
    ours_s: float
    error: float


def measure(name: str, threads: int, rounds: int) -> Pair:
    """The process must have been told XLA's number of threads (XLA_FLAGS) before."""
    import jax

    import tilewright
    from bench.zoo.programs import program

    made = program(name)
    arrays = [jax.numpy.asarray(x) for x in made.inputs]
    start = time.perf_counter()
    xla = jax.jit(made.function).lower(*arrays).compile()
    xla_s = time.perf_counter() - start
    start = time.perf_counter()
    exported = jax.export.export(jax.jit(made.function))(*arrays)
    ours = tilewright.compile(exported, threads=threads, cache=False)
    ours_s = time.perf_counter() - start
    expected, (found,) = np.asarray(xla(*arrays)), ours(*made.inputs)
    error = float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())
    calls: list[Callable[[], Any]] = [
        lambda: jax.block_until_ready(xla(*arrays)),
        lambda: ours(*made.inputs),
    ]
    best = [math.inf, math.inf]
    for _ in range(rounds):
        for k, call in enumerate(calls):
            best[k] = min(best[k], shortest_ms(call))
    return Pair(name, *best, xla_s, ours_s, error)


def table(pairs: Sequence[Pair]) -> str:
    lines = ["| program | XLA ms | tilewright ms | XLA / ours | compiling: XLA s | tilewright s | error |"]
    lines.append("|---" * 7 + "|")
    for p in pairs:
        ratio = p.xla_ms / p.ours_ms
        times = f"{p.xla_ms:.3g} | {p.ours_ms:.3g} | {ratio:.2f} | {p.xla_s:.1f} | {p.ours_s:.1f}"
        lines.append(f"| {p.name} | {times} | {p.error:.1e} |")
    mean = math.exp(sum(math.log(p.xla_ms / p.ours_ms) for p in pairs) / len(pairs)) if pairs else math.nan
    return "\n".join([*lines, f"\nXLA / ours: {mean:.2f} (geometric mean of {len(pairs)})"])
