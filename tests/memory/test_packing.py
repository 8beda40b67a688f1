"""Boxes above one another: none overlap, and the highest ends at the bound or near."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.memory.boxes import cut, random_boxes
from tilewright.program.memory.effort import FAST
from tilewright.program.memory.packing.boxes import PackedBoxes, TimedBox, most_alive, overlapping
from tilewright.program.memory.packing.pack import by_size, pack
from tilewright.program.memory.packing.search import search


@pytest.mark.fresh_seeds(1)
def test_no_boxes_overlap_and_none_lies_beyond_the_end(fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    for count in (0, 1, 2, 10, 60):
        boxes = random_boxes(rng, count, 30)
        found = pack(boxes, 200_000)
        assert overlapping(boxes, found) is None
        assert found.total == max((o + b.size for o, b in zip(found.offsets, boxes, strict=True)), default=0)
        assert most_alive(boxes) <= found.total <= by_size(boxes).total
        assert min(found.offsets, default=0) == 0


@pytest.mark.parametrize("count", [8, 20, 40])
def test_boxes_that_fill_a_rectangle_are_put_back_nearly(count: int) -> None:
    """Greedily by size such boxes end up to a third higher than they need to."""
    rng = random.Random(count)
    for _ in range(4):
        boxes = cut(rng, 1000, 20, count)
        assert most_alive(boxes) == 1000
        assert pack(boxes, FAST.offsets).total <= 1100


@pytest.mark.fresh_seeds(1)
def test_a_plan_does_not_depend_on_time(fresh_seed: int) -> None:
    boxes = cut(random.Random(fresh_seed), 500, 20, 30)
    assert pack(boxes, 100_000) == pack(boxes, 100_000)


def test_what_no_search_can_pay_for_takes_no_memory() -> None:
    """What crosses each step of a program of thousands of tensors that live long would take gigabytes."""
    boxes = [TimedBox(1 + n % 7, n, n + 4000) for n in range(6000)]
    tracemalloc.start()
    found = search(boxes, PackedBoxes((0,) * len(boxes), 1 << 40), 1, FAST.offsets)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.total == 1 << 40 and most < 1 << 22


def test_what_lies_over_something_else_is_found() -> None:
    boxes = [TimedBox(4, 0, 2), TimedBox(4, 2, 3), TimedBox(4, 3, 5)]
    assert overlapping(boxes, PackedBoxes((0, 3, 0), 7)) == (0, 1)
    assert overlapping(boxes, PackedBoxes((0, 4, 0), 8)) is None


SMALL = {  # with which MiniMalloc is tested: the optimum; sizes, first steps, steps after the last
    "a": (6, [(2, 0, 3), (2, 2, 5), (3, 0, 2), (3, 3, 5), (1, 1, 4)]),
    "d": (9, [(3, 0, 5), (3, 3, 8), (4, 0, 3), (4, 5, 8), (1, 2, 6), (1, 1, 7)]),
    "f": (14, [(4, 0, 5), (3, 0, 6), (2, 1, 6), (5, 5, 8), (4, 2, 8), (5, 1, 2)]),
    "input": (12, [(4, 0, 3), (4, 3, 9), (4, 0, 9), (4, 9, 21), (4, 0, 21)]),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_instances_reach_their_optimum(name: str) -> None:
    best, boxes = SMALL[name]
    assert pack([TimedBox(size, first, end - 1) for size, first, end in boxes], FAST.offsets).total == best
