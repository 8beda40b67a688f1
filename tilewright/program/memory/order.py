"""The order of execution: kernels are moved to where the fewest bytes are alive, if that makes the arena smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.ir.core import Block, Func, Op, Value, replace_in_block
from tilewright.ir.diag import Remark
from tilewright.ir.sym import Sym
from tilewright.program.memory.effort import FAST, PlanEffort
from tilewright.program.memory.ordering.search import best_order
from tilewright.program.memory.ordering.tasks import Task, Tasks
from tilewright.program.memory.plan import aligned_units, plan_arena, typical
from tilewright.program.memory.storage import NO_SCRATCH, NONE_INPLACE, Assignment, Pairs
from tilewright.program.memory.views import bytes_of, is_view

_OF_STATES = frozenset({"state", "read"})
"""Ops that name memory of states, which is there before the first kernel."""

_AT_LAST = frozenset({"update", "return"})
"""Ops that say what becomes of results when all kernels are done."""

MOST_TASKS = 4096
"""Programs of more kernels keep their order: what all of a task's predecessors are takes the square of their number."""


def reorder(
    func: Func, inplace: Mapping[str, Pairs] = NONE_INPLACE, effort: PlanEffort = FAST,
    scratch: Mapping[Op, Sym] = NO_SCRATCH,
) -> list[Remark]:  # fmt: skip
    """Give `func` another order of its kernels if it needs less memory then, with a remark; `inplace` and `scratch` as
    for `assign_storage`."""
    program = _Program(func, inplace, scratch)
    if not program.may_move:
        return []
    tasks = program.tasks()
    found = best_order(tasks, effort.order)
    if found.peak >= tasks.peak(range(len(tasks.tasks))):
        return []
    ops = program.with_kernels(found.order)
    before, after = (_planned_bytes(f, inplace, effort, scratch) for f in (func, _with(func, ops)))
    if after >= before:
        return []
    replace_in_block(func.body, ops)
    best = ", and no order needs less" if found.is_best else ""
    return [Remark("order", "kernels", f"{before - after} bytes less are alive at a time{best}", "applied")]


def tasks_of(func: Func, inplace: Mapping[str, Pairs] = NONE_INPLACE) -> Tasks:
    """The kernels of `func` as tasks, in its order; sizes are in units of the alignment, for typical dims."""
    return _Program(func, inplace).tasks()


def _planned_bytes(
    func: Func, inplace: Mapping[str, Pairs], effort: PlanEffort, scratch: Mapping[Op, Sym]
) -> int:
    """Bytes of the arena, and of the memory beside states, for typical dims."""
    assignment = Assignment(func, inplace, scratch=scratch)
    lifetimes = assignment.lifetimes(assignment.overwrites())
    beside = sum(typical(bytes_of(root)) for root, place in assignment.fixed.items() if place.base == "next")
    return typical(plan_arena(tuple(lifetimes.values()), effort, assignment.scratch_at_steps()).total) + beside


def _with(func: Func, ops: list[Op]) -> Func:
    """A function that looks like `func` with its ops in another order, to plan with; it shares them."""
    body = Block()
    body.args, body.ops = func.args, ops
    return replace(func, body=body)


class _Program:
    """The kernels of a function as tasks."""

    def __init__(self, func: Func, inplace: Mapping[str, Pairs], scratch: Mapping[Op, Sym] = NO_SCRATCH) -> None:
        self.scratch = scratch
        self.body = func.body.ops
        self.assignment = Assignment(func, inplace)
        self.views = {op for op in self.body if is_view(op)}
        self.kernels = [op for op in self.body if not (op in self.views or self._is_given(op) or op.name in _AT_LAST)]

    def _is_given(self, op: Op) -> bool:
        """Whether an op names memory that is there before the first kernel."""
        places = [self.assignment.fixed.get(v) for v in op.results]
        is_constant = bool(places) and all(p is not None and p.base == "constant" for p in places)
        return is_constant or op.name in _OF_STATES

    @property
    def may_move(self) -> bool:
        """Whether there is a choice, and what is said at last stands there."""
        ends = [op.name in _AT_LAST for op in self.body]
        return 2 < len(self.kernels) <= MOST_TASKS and not any(a and not b for a, b in pairwise(ends))

    def tasks(self) -> Tasks:
        assignment = self.assignment
        number_of = {op: n for n, op in enumerate(self.kernels)}
        buffers: dict[Value | Op, int] = {}  # of an op, its scratch memory
        made_by: dict[Value, tuple[int, ...]] = {}  # for each value the kernels that it waits for
        found: list[Task] = []
        for op in self.body:
            own: tuple[int, ...] = _after(op, made_by)
            if op in number_of:
                touched = [assignment.locations[v].root for v in (*op.operands, *op.results)]
                numbers = [buffers.setdefault(r, len(buffers)) for r in touched if r not in assignment.fixed]
                numbers += [buffers.setdefault(op, len(buffers))] if op in self.scratch else []
                reuses = [(buffers[a], buffers[b]) for a, b in assignment.reusable(op)]
                found.append(Task(_once(numbers), own, tuple(reuses)))
                own = (number_of[op],)
            made_by |= dict.fromkeys(op.results, own)
        sizes = (self.scratch[b] if isinstance(b, Op) else bytes_of(b) for b in buffers)
        return Tasks(tuple(found), tuple(map(aligned_units, sizes)))

    def with_kernels(self, order: Sequence[int]) -> list[Op]:
        """All ops, with the kernels in another order, and each view behind the last of its operands."""
        waiting = {op: len({v.op for v in op.operands if v.op is not None}) for op in self.views}
        found: list[Op] = []
        first = [op for op in self.body if self._is_given(op) or waiting.get(op) == 0]
        for op in (*first, *(self.kernels[n] for n in order)):
            ready = [op]
            while ready:
                found.append(ready.pop())
                for user in dict.fromkeys(u for v in found[-1].results for u in v.users if u in waiting):
                    waiting[user] -= 1
                    if not waiting[user]:
                        ready.append(user)
        return [*found, *(op for op in self.body if op.name in _AT_LAST)]


def _after(op: Op, made_by: Mapping[Value, tuple[int, ...]]) -> tuple[int, ...]:
    return _once(n for v in op.operands for n in made_by.get(v, ()))


def _once(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(numbers))
