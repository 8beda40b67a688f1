"""A bound below which no schedule ends: each of the three queues has its work, and cannot begin or end alone."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.program.memory.ordering.tasks import members
from tilewright.program.memory.scratchpad.overlap import most_beside
from tilewright.program.memory.scratchpad.problem import Operation, ScratchpadProblem
from tilewright.program.memory.scratchpad.windows import least_idle


def least_cycles(problem: ScratchpadProblem) -> int:
    """Cycles that every schedule takes at least: the longest of

    - all operations, after the loads without which none can start, and before the store of what the last one makes;
    - all stores, after the first operation that makes what is stored;
    - for each operation all that it waits for, by loads and by operations, and all that waits for it;
    - loads and operations, and operations and stores, as two machines in a row in the best order (Johnson, "Optimal
      two- and three-stage production schedules with setup times included", 1954), whatever waits for what;
    - all operations, and those cycles of loads that fit beside no operation, by room and by order;
    - bytes times cycles of the scratchpad that loads, operations and stores take, over its bytes."""
    if not problem.operations:
        return 0
    return max(
        _of_operations(problem), _of_stores(problem), _of_chains(problem), _of_rows(problem),
        _of_overlap(problem), _of_capacity(problem),
    )  # fmt: skip


def in_a_row(jobs: Iterable[tuple[int, int]], first: int, second: int) -> int:
    """When the last of these jobs ends on the second of two machines, which are free from `first` and `second` on, in
    the best order: those that are shorter on the first machine in its order, then the others from the longest on the
    second. What takes nothing of the first machine does not wait for it."""
    jobs = list(jobs)
    ahead = sorted((a, b) for a, b in jobs if a <= b)
    behind = sorted(((a, b) for a, b in jobs if a > b), key=lambda job: -job[1])
    for a, b in (*ahead, *behind):
        first += a
        second = (max(first, second) if a else second) + b
    return second


def areas(problem: ScratchpadProblem) -> list[int]:
    """Bytes times cycles that each operation takes of the scratchpad, with the stores of results that none reads: what
    is read may be stored meanwhile."""
    stored = {t for t in problem.stored if not problem.readers[t]}
    return [
        op.cycles * sum(map(problem.bytes_of, {*op.reads, *op.writes}))
        + sum(problem.bytes_of(t) * problem.store_cycles(t) for t in op.writes if t in stored)
        for op in problem.operations
    ]


def _loads_of(problem: ScratchpadProblem, op: Operation) -> int:
    return sum(problem.load_cycles(t) for t in dict.fromkeys(op.reads) if problem.tensors[t].given)


def _stores_of(problem: ScratchpadProblem, op: Operation) -> int:
    return sum(problem.store_cycles(t) for t in op.writes if t in problem.stored)


def _of_operations(problem: ScratchpadProblem) -> int:
    first = min(_loads_of(problem, op) for n, op in enumerate(problem.operations) if not problem.before[n])
    return first + sum(op.cycles for op in problem.operations) + _last_store(problem)


def _last_store(problem: ScratchpadProblem) -> int:
    """The cycles of stores behind whichever operation is the last."""
    followed = {n for before in problem.before for n in before}
    return min(_stores_of(problem, op) for n, op in enumerate(problem.operations) if n not in followed)


def _of_stores(problem: ScratchpadProblem) -> int:
    if not problem.stored:
        return 0
    until = _until(problem)
    return min(until[problem.maker[t]] for t in problem.stored) + sum(map(problem.store_cycles, problem.stored))


def _of_capacity(problem: ScratchpadProblem) -> int:
    area = sum(problem.bytes_of(t) * problem.load_cycles(t) for t in problem.loaded) + sum(areas(problem))
    return -(-area // problem.capacity) if problem.capacity else 0


def _of_rows(problem: ScratchpadProblem) -> int:
    own = own_loads(problem)
    stores = [_stores_of(problem, op) for op in problem.operations]
    cycles = [op.cycles for op in problem.operations]
    return max(in_a_row(zip(own, cycles, strict=True), 0, 0), in_a_row(zip(cycles, stores, strict=True), 0, 0))


def beside(problem: ScratchpadProblem) -> dict[int, int]:
    """For each given tensor that is read the operations that leave room for it beside them, as bits."""
    held = [{*op.reads, *op.writes} for op in problem.operations]
    room = [problem.capacity - sum(map(problem.bytes_of, tensors)) for tensors in held]
    return {
        t: sum(1 << n for n, tensors in enumerate(held) if t not in tensors and problem.bytes_of(t) <= room[n])
        for t in problem.loaded
    }


MOST_PAIRS = 40_000
"""Of loads and operations that are looked at for how much of them may overlap; for more only loads are counted that
nothing overlaps."""


def _of_overlap(problem: ScratchpadProblem) -> int:
    """All operations, and what cannot run beside them of one load of each tensor, the last before it is first read:
    of all together, and between operations that all others are before or behind (`windows`), where the last result is
    stored besides. None runs beside an operation that leaves no room for it, nor beside one that waits for all readers
    of the tensor, nor beside one before an operation that leaves no room for it and that all its readers wait for."""
    loads = {t: bits for t, bits in beside(problem).items() if problem.bytes_of(t)}
    cycles = [problem.load_cycles(t) for t in loads]
    total = sum(op.cycles for op in problem.operations)
    if len(loads) * len(problem.operations) > MOST_PAIRS:
        return total + sum(c for c, bits in zip(cycles, loads.values(), strict=True) if not bits)
    after, ahead = _followers(problem), [sum(1 << k for k in ops) for ops, _ in waits_of(problem)]
    every = (1 << len(problem.operations)) - 1
    allowed: dict[int, int] = {}
    for t, bits in loads.items():
        late = early = every
        for n in problem.readers[t]:
            late &= after[n]
            early &= ahead[n] & ~(1 << n)
        for m in members(early & ~bits):  # it would lie there when m runs
            bits &= ~ahead[m]
        allowed[t] = bits & ~late
    operations = [op.cycles for op in problem.operations]
    alone = sum(cycles) - most_beside(cycles, operations, [members(bits) for bits in allowed.values()])
    before = [bits & ~(1 << n) for n, bits in enumerate(ahead)]
    still = least_idle(problem, before, after, allowed) + _last_store(problem)
    return total + max(alone, still)


def _followers(problem: ScratchpadProblem) -> list[int]:
    """The operations that wait for each operation, as bits."""
    found = [0] * len(problem.operations)
    for n in reversed(range(len(found))):
        for k in problem.before[n]:
            found[k] |= found[n] | 1 << n
    return found


def own_loads(problem: ScratchpadProblem) -> list[int]:
    """The cycles of loads that no operation but this one needs."""
    found = [0] * len(problem.operations)
    for t in problem.loaded:
        if len(problem.readers[t]) == 1:
            found[problem.readers[t][0]] += problem.load_cycles(t)
    return found


def waits_of(problem: ScratchpadProblem) -> list[tuple[frozenset[int], frozenset[int]]]:
    """The operations that each operation waits for, itself among them, and the given tensors that these read."""
    found: list[tuple[frozenset[int], frozenset[int]]] = []
    for n, op in enumerate(problem.operations):
        before = [found[k] for k in problem.before[n]]
        given = {t for t in op.reads if problem.tensors[t].given}
        found.append((frozenset({n}).union(*(a for a, _ in before)), frozenset(given).union(*(b for _, b in before))))
    return found


def _of_chains(problem: ScratchpadProblem) -> int:
    rest = behind(problem)
    return max(
        rest[n] + max(
            sum(map(problem.load_cycles, given)),
            sum(problem.operations[k].cycles for k in ops if k != n),
        )
        for n, (ops, given) in enumerate(waits_of(problem))
    )  # fmt: skip


def _until(problem: ScratchpadProblem) -> list[int]:
    """The earliest end of each operation."""
    found: list[int] = []
    for n, op in enumerate(problem.operations):
        found.append(max([_loads_of(problem, op), *(found[k] for k in problem.before[n])]) + op.cycles)
    return found


def behind(problem: ScratchpadProblem) -> list[int]:
    """The cycles from the start of each operation to the end of all that waits for it."""
    found = [0] * len(problem.operations)
    followers: list[list[int]] = [[] for _ in problem.operations]
    for n, before in enumerate(problem.before):
        for k in before:
            followers[k].append(n)
    for n in reversed(range(len(found))):
        op = problem.operations[n]
        after = max((found[k] for k in followers[n]), default=0)
        found[n] = op.cycles + max(after, _stores_of(problem, op))
    return found
