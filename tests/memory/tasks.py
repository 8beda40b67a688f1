"""Tasks for tests of orders: random ones, and the best order by trying all."""

from __future__ import annotations

import random
from functools import cache

from tilewright.program.memory.ordering.tasks import Task, Tasks

SIZES = (0, 1, 1, 2, 3, 5, 8, 20, 50)


def random_tasks(rng: random.Random, count: int) -> Tasks:
    """Tasks of which each makes a buffer or two, reads some of before, may write a part of an earlier one, and may give
    the memory of what it reads to what it makes."""
    tasks: list[Task] = []
    sizes: list[int] = []
    makers: list[int] = []
    for n in range(count):
        reads = rng.sample(range(len(sizes)), min(len(sizes), rng.choice((0, 1, 1, 2, 2, 3))))
        made = [len(sizes) + k for k in range(rng.choice((0, 1, 1, 1, 2)))]
        sizes += [rng.choice(SIZES) for _ in made]
        makers += [n for _ in made]
        after = tuple({makers[b] for b in reads} | ({rng.randrange(n)} if n and rng.random() < 0.1 else set()))
        parts = rng.sample(range(len(sizes)), 1) if sizes and rng.random() < 0.1 else []
        reuses = [(r, m) for r in reads for m in made if sizes[r] == sizes[m]]
        tasks.append(Task(tuple(dict.fromkeys([*reads, *made, *parts])), after, tuple(reuses)))
    kept = frozenset(b for b in range(len(sizes)) if rng.random() < 0.1)
    return Tasks(tuple(tasks), tuple(sizes), kept)


def least_peak(tasks: Tasks) -> int:
    """The fewest bytes with which all tasks can run, by trying every order; says itself what is alive."""
    touching = [{n for n, t in enumerate(tasks.tasks) if b in t.touches} for b in range(len(tasks.sizes))]

    def is_alive(buffer: int, done: frozenset[int]) -> bool:
        began = bool(touching[buffer] & done)
        return began and (buffer in tasks.kept or bool(touching[buffer] - done))

    def alive(done: frozenset[int]) -> set[int]:
        return {b for b in range(len(tasks.sizes)) if is_alive(b, done)}

    def during(n: int, done: frozenset[int]) -> int:
        task, before, after = tasks.tasks[n], alive(done), alive(done | {n})
        there = before | set(task.touches)
        shared: set[int] = set()
        for old, new in task.reuses:
            fits = old in there - after and not touching[new] & done
            if fits and old not in shared and new not in shared:
                there.discard(new)
                shared |= {old, new}
        return sum(tasks.sizes[b] for b in there)

    @cache
    def least(done: frozenset[int]) -> int:
        ready = [n for n, t in enumerate(tasks.tasks) if n not in done and done.issuperset(t.after)]
        return min((max(during(n, done), least(done | {n})) for n in ready), default=0)

    return least(frozenset())
