"""Sizes as strangers have them: log-uniform, seldom the multiples of vectors and blocks that kernels like."""

from __future__ import annotations

import math
import random


def between(rng: random.Random, low: int, high: int) -> int:
    """Log-uniform."""
    return min(high, max(low, round(math.exp(rng.uniform(math.log(low), math.log(high + 1))))))


def width(rng: random.Random, low: int = 8, high: int = 512) -> int:
    """A number of channels or features: half of them multiples of 16, a quarter of 4, a quarter any."""
    step = rng.choice((16, 16, 4, 1))
    return max(step, between(rng, low, high) // step * step)


def batch(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 1, 2, 3, 8))


def edges(rng: random.Random, rank: int, most: int = 112) -> tuple[int, ...]:
    """Height and width, a length, or three; mostly equal."""
    first = between(rng, 5, most)
    return tuple(first if rng.random() < 0.7 else between(rng, 5, most) for _ in range(rank))


def divisor(rng: random.Random, number: int, least: int = 1) -> int:
    """One of the divisors from `least` on, the number itself if there is no other."""
    return rng.choice([d for d in range(least, number + 1) if number % d == 0] or [number])
