"""Random problems of planning memory: orders of tasks against trying all, boxes, and offsets as expressions."""

from __future__ import annotations

import random
from collections import Counter

from tests.memory.boxes import cut, random_boxes
from tests.memory.tasks import least_peak, random_tasks
from tilewright.ir.sym import Sym, sym, var
from tilewright.program.memory.ordering.search import best_order
from tilewright.program.memory.ordering.tasks import is_possible
from tilewright.program.memory.packing.boxes import TimedBox, most_alive, overlapping
from tilewright.program.memory.packing.pack import by_size, pack
from tilewright.program.memory.packing.symbolic import pack_symbolic

Tried = Counter[tuple[str, str]]


def fuzz(seed: int) -> Tried:
    """One problem of each kind."""
    rng = random.Random(seed)
    order_of_few(rng)
    order_of_many(rng)
    boxes(rng)
    expressions(rng)
    return Counter({("memory", "problems"): 4})


def order_of_few(rng: random.Random) -> None:
    """The best order is as good as the best of all."""
    tasks = random_tasks(rng, rng.randint(0, 10))
    found = best_order(tasks, 1 << 60)
    assert found.is_best and is_possible(tasks, found.order)
    assert found.peak == tasks.peak(found.order) == least_peak(tasks), f"{found} of {tasks}"
    assert tasks.bound <= found.peak


def order_of_many(rng: random.Random) -> None:
    """What a budget allows is never worse than what was given, and nothing less once it is called the best."""
    tasks = random_tasks(rng, rng.randint(10, 80))
    found, more = (best_order(tasks, budget) for budget in (rng.randint(0, 3000), 20_000))
    assert is_possible(tasks, found.order)
    assert tasks.bound <= found.peak == tasks.peak(found.order) <= tasks.peak(range(len(tasks.tasks)))
    assert more.peak == found.peak if found.is_best else more.peak <= tasks.peak(range(len(tasks.tasks)))


def boxes(rng: random.Random) -> None:
    """No two overlap, all lie below what is on top of their steps, and none ends higher than it does greedily."""
    some = random_boxes(rng, rng.randint(0, 80), 30) if rng.random() < 0.5 else cut(rng, 500, 20, rng.randint(1, 60))
    on_top = {rng.randrange(40): rng.randint(0, 300) for _ in range(rng.choice((0, 1, 12)))}
    found = pack(some, rng.choice((0, 20_000, 100_000)), on_top)
    assert (wrong := overlapping(some, found)) is None, f"{wrong} of {some}: {found}"
    ends = [start + box.size for start, box in zip(found.offsets, some, strict=True)]
    above = [0, *on_top.values()]
    for step, size in on_top.items():
        above += [end + size for end, box in zip(ends, some, strict=True) if box.first <= step <= box.last and box.size]
    assert max((*above, *ends)) == found.total and min(found.offsets, default=0) >= 0
    assert most_alive(some, on_top) <= found.total <= by_size(some, on_top=on_top).total


def expressions(rng: random.Random) -> None:
    """No two overlap for any dims, also huge ones and those that make a tensor empty, and none lies above what is on
    top of a step of it."""
    dims = [var("n", rng.choice((0, 1))), var("m", 1, rng.choice((None, 40)))]
    spans = [(first := rng.randrange(20), first + rng.randrange(5)) for _ in range(rng.randint(1, 40))]
    sizes = [random_size(rng, dims) for _ in spans]
    on_top = {rng.randrange(26): random_size(rng, dims) for _ in range(rng.choice((0, 1, 12)))}
    found = pack_symbolic(sizes, spans, 50_000, on_top)
    offsets = found.offsets
    for n, m in ((1, 1), (64, 40), (1, 40), (5000, 2), (7, 13), (0 if dims[0].bounds[0] == 0 else 3, 5)):
        env = {"n": n, "m": m}
        known = [TimedBox(size.evaluate(env), *span) for size, span in zip(sizes, spans, strict=True)]
        places = [offset.evaluate(env) for offset in offsets]
        total = found.total.evaluate(env)
        assert all(place % 64 == 0 for place in places)
        for a, box in enumerate(known):
            assert places[a] >= 0 and places[a] + box.size <= total
            for b in range(a):
                other = known[b]
                if box.first <= other.last and other.first <= box.last and box.size and other.size:
                    apart = places[a] + box.size <= places[b] or places[b] + other.size <= places[a]
                    assert apart, f"{a} and {b} of {sizes} at {spans} overlap for {env}: {offsets}"
        for step, size in on_top.items():
            top = found.tops[step].evaluate(env)
            here = [n for n, box in enumerate(known) if box.first <= step <= box.last and box.size]
            below = [places[n] + known[n].size for n in here]
            assert max(below, default=0) <= top <= total - size.evaluate(env), f"{step} of {on_top}, {sizes}, {env}"


def random_size(rng: random.Random, dims: list[Sym]) -> Sym:
    """Bytes in a multiple of 64: a constant, or a product of dims and a number, sometimes rounded."""
    size = sym(rng.randint(1, 40))
    for dim in dims:
        if rng.random() < 0.5:
            size = size * (dim if rng.random() < 0.8 else (dim + 1) // 2)
    return (size * 4 + 63) // 64 * 64 if rng.random() < 0.5 else size * 64
