"""What more threads gain: Amdahl's law for a call that stays the same, Gustafson's for one that grows with them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.profiling.records import ScalingPoint


def serial_share(points: Sequence[ScalingPoint]) -> float:
    """The share s of the time T on one thread that threads do not make less, by T(n) = T (s + (1 - s) / n) (Amdahl,
    1967), fitted to the points by least squares of the times over that of one thread; 0 to 1. Points of one thread say
    nothing; 1.0 without others."""
    one = next(p.median_ms for p in points if p.threads == 1)
    rows = [(1 - 1 / p.threads, p.median_ms / one - 1 / p.threads) for p in points if p.threads > 1]
    weight = sum(x * x for x, _ in rows)
    share = sum(x * y for x, y in rows) / weight if weight else 1.0
    return min(max(share, 0.0), 1.0)


def most_speedup(share: float) -> float | None:
    """What any number of threads gains at most; None where nothing limits it."""
    return 1 / share if share > 0 else None


def speedup(share: float, threads: int) -> float:
    """What so many threads gain by Amdahl's law."""
    return 1 / (share + (1 - share) / threads)


def scaled_speedups(growing: Sequence[ScalingPoint]) -> tuple[float, ...]:
    """How much more work is done in a time (Gustafson, 1988): n times the work in T(n), beside once in T(1)."""
    one = next(p.median_ms for p in growing if p.threads == 1)
    return tuple(round(p.threads * one / p.median_ms, 4) for p in growing)
