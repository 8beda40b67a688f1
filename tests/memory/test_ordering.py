"""Orders of tasks: the best one, as trying all of them shows, and within a budget never a worse one than given."""

from __future__ import annotations

import random

import pytest

from tests.memory.tasks import least_peak, random_tasks
from tilewright.program.memory.ordering.search import best_order
from tilewright.program.memory.ordering.tasks import Task, Tasks, is_possible


def branches() -> Tasks:
    """1 feeds 2 and 4, 2 feeds 3, 4 feeds 5, 3 and 5 feed 6, in the order 1, 2, 4, 5, 3, 6; 2 and 4 make much."""
    made = {"1": 10, "2": 80, "4": 70, "5": 10, "3": 5, "6": 1}
    feeds = {"1": "", "2": "1", "4": "1", "5": "4", "3": "2", "6": "35"}
    number = {name: n for n, name in enumerate(made)}
    reads = {name: tuple(number[r] for r in feeds[name]) for name in made}
    return Tasks(tuple(Task((number[n], *reads[n]), reads[n]) for n in made), tuple(made.values()))


def test_a_branch_is_finished_before_the_next_one_begins() -> None:
    tasks = branches()
    given = tasks.peak(range(6))
    found = best_order(tasks, 1000)
    assert [("1", "2", "4", "5", "3", "6")[n] for n in found.order] == ["1", "2", "3", "4", "5", "6"]
    assert (given, found.peak, found.is_best) == (10 + 80 + 70, 10 + 80 + 5, True)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 11, 14])
@pytest.mark.fresh_seeds(1)
def test_the_best_order_is_what_trying_all_finds(count: int, fresh_seed: int) -> None:
    rng = random.Random(fresh_seed + count)
    for _ in range(12 if count < 12 else 2):
        tasks = random_tasks(rng, count)
        found = best_order(tasks, 1 << 60)
        assert found.is_best
        assert is_possible(tasks, found.order)
        assert found.peak == tasks.peak(found.order) == least_peak(tasks)
        assert tasks.bound <= found.peak <= tasks.peak(range(count))


@pytest.mark.fresh_seeds(1)
def test_within_a_budget_no_order_is_worse_than_the_one_given(fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    for _ in range(20):
        tasks = random_tasks(rng, 60)
        found = best_order(tasks, rng.choice((0, 60, 200, 2000)))
        assert is_possible(tasks, found.order)
        assert found.peak == tasks.peak(found.order) <= tasks.peak(range(60))
        assert best_order(tasks, 300) == best_order(tasks, 300)


def test_what_a_budget_allows_is_not_passed_where_many_tasks_can_run() -> None:
    """One set of tasks that are done has as many next ones as there are branches, each of which looks at all others."""
    rng = random.Random(1)
    sizes, tasks = [10], [Task((0,))]
    for _ in range(200):
        sizes += [rng.randint(5, 50), rng.randint(1, 5)]
        tasks += [Task((0, len(sizes) - 2), (0,)), Task((len(sizes) - 2, len(sizes) - 1), (len(tasks),))]
    ends = tuple(range(2, 401, 2))
    wide = Tasks((*tasks, Task((*ends, 401), ends)), (*sizes, 1))
    assert wide.bound < wide.peak(range(402))
    assert best_order(wide, 2000).looked_at <= 2000 + 2 * 402


@pytest.mark.fresh_seeds(1)
def test_the_bound_is_what_no_order_avoids(fresh_seed: int) -> None:
    tasks = random_tasks(random.Random(fresh_seed), 40)
    found = []
    for n, task in enumerate(tasks.tasks):
        before, behind = tasks.before[n] | 1 << n, tasks.behind[n] | 1 << n
        alive = [b for b, by in enumerate(tasks.touching) if by & before and by & behind]
        given: set[int] = set()
        for old, new in task.reuses:
            if not given & {old, new} and not tasks.touching[old] & tasks.behind[n]:
                given |= set() if tasks.touching[new] & tasks.before[n] else {old, new}
        twice = {new for _, new in task.reuses} & given
        found.append(sum(tasks.sizes[b] for b in alive) - sum(tasks.sizes[b] for b in twice))
    assert tasks.bound == max(found)


def test_a_good_order_costs_nothing() -> None:
    chain = Tasks(tuple(Task((n, n + 1), (n - 1,) if n else ()) for n in range(300)), (8,) * 301)
    found = best_order(chain, 1 << 60)
    assert found.order == tuple(range(300)) and found.looked_at == 300


def test_no_tasks_have_an_order() -> None:
    assert best_order(Tasks((), ()), 10).order == ()
