"""Boxes for tests of packings."""

from __future__ import annotations

import random

from tilewright.program.memory.packing.boxes import TimedBox


def random_boxes(rng: random.Random, count: int, steps: int) -> list[TimedBox]:
    found = []
    for _ in range(count):
        first = rng.randrange(steps)
        found.append(TimedBox(rng.choice((0, 1, 3, 10, 100)) * rng.randint(1, 9), first, first + rng.randrange(8)))
    return found


def cut(rng: random.Random, height: int, steps: int, count: int) -> list[TimedBox]:
    """A rectangle cut into boxes, which fit into it by this."""
    parts = [(0, height, 0, steps)]
    while len(parts) < count:
        parts.sort(key=lambda p: (p[1] - p[0]) * (p[3] - p[2]))
        low, high, first, end = parts.pop(rng.randrange(len(parts) // 2, len(parts)))
        across = end - first < 2 or (high - low > 1 and rng.random() < 0.5)
        if across:
            at = rng.randint(low + 1, high - 1)
            parts += [(low, at, first, end), (at, high, first, end)]
        else:
            at = rng.randint(first + 1, end - 1)
            parts += [(low, high, first, at), (low, high, at, end)]
    rng.shuffle(parts)
    return [TimedBox(high - low, first, end - 1) for low, high, first, end in parts]
