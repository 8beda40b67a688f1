"""The lowest free range of numbers at some steps, against a search through all that was taken."""

from __future__ import annotations

import random

import pytest

from tilewright.program.memory.packing.occupancy import Occupancy


def lowest(taken: list[tuple[int, int, int, int]], first: int, last: int, size: int) -> int:
    """The lowest start of `size` numbers that nothing takes at a time; `taken` has first, last, start, end."""
    start = 0
    for _, _, from_, end in sorted((t for t in taken if t[0] <= last and first <= t[1]), key=lambda t: t[2]):
        if start + size <= from_:
            break
        start = max(start, end)
    return start


@pytest.mark.parametrize("seed", range(40))
def test_the_lowest_free_numbers_are_taken(seed: int) -> None:
    rng = random.Random(seed)
    steps = rng.choice((1, 8, 9, 64, 700))
    found = Occupancy(steps)
    taken: list[tuple[int, int, int, int]] = []
    for _ in range(80):
        first = rng.randrange(steps)
        last = min(steps - 1, first + rng.choice((0, 1, 7, 8, rng.randrange(steps))))
        size = rng.choice((0, 1, 2, 10, rng.randrange(1, 100)))
        start = lowest(taken, first, last, size)
        assert found.take(first, last, size) == start
        taken.append((first, last, start, start + size))
