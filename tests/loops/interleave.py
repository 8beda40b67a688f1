"""Running a kernel as a machine may: threads between barriers and queues in a random order.

The order of what happens is that of `loops/analysis/happens_before.py`. A kernel that it accepts computes the same in
each order; one in which a barrier or a wait is missing does not, for some of them.

Where runs have numbers of events, these are what is waited for, and not the runs: a thread that starts a run clears its
events, and the run sets them at its end. Where a number serves two runs too early, somebody goes on too early, or waits
for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.sym import ZERO, Sym
from tilewright.loops.edit import body_of, extent_of, loop_var
from tilewright.ops.define.loop_programs import Elements, Run

Path = tuple[tuple[str, int], ...]
"""A thread: its number in each level of which it is not the first, by name of level."""


_Event = tuple[Path, str, str, int]
"""An event: the thread whose queues these are, the queue that sets it, the one that waits for it, and its number."""


@dataclass(eq=False)
class _Action:
    """A piece of work that is done as a whole, after others, and once these events are set."""

    work: Callable[[], None]
    after: list[_Action]
    events: tuple[_Event, ...] = ()
    done: bool = False


@dataclass(frozen=True)
class _Place:
    """Where in the program: variables by name, buffers, the loops of levels around, and the thread."""

    env: dict[str, Any]
    memory: dict[Value, Elements]
    levels: tuple[tuple[str, int], ...] = ()

    @property
    def thread(self) -> Path:
        return tuple(sorted((name, k) for name, k in self.levels if k))


@dataclass
class _Plan:
    """All actions in program order, and the last of each thread and queue."""

    actions: list[_Action] = field(default_factory=list)
    last: dict[Path, _Action] = field(default_factory=dict)
    barriers: list[tuple[tuple[tuple[str, int], ...], _Action]] = field(default_factory=list)
    queues: dict[tuple[str, Path], _Action] = field(default_factory=dict)
    tokens: dict[Value, _Action] = field(default_factory=dict)
    scalars: dict[Path, dict[Value, Any]] = field(default_factory=dict)
    allocated: dict[tuple[Op, Path], Elements] = field(default_factory=dict)
    given: dict[Value, list[_Event]] = field(default_factory=dict)
    set_events: set[_Event] = field(default_factory=set)

    def block(self, block: Block, place: _Place) -> None:
        """Plan the ops of a block; those without marks are done at a time."""
        plain: list[Op] = []
        for position, op in enumerate(block.ops):
            if op.name == "bind" and any(map(_is_marked, block.ops[position:])):
                self.plain(plain, place)
                self.whole(block.ops[position:], place)
                return
            if op.name != "alloc" and not _is_marked(op):
                plain.append(op)
                continue
            self.plain(plain, place)
            plain = []
            self.marked(op, place)
        self.plain(plain, place)

    def plain(self, ops: list[Op], place: _Place) -> None:
        if ops:
            self.act(self.work(list(ops), place), place)

    def marked(self, op: Op, place: _Place) -> None:
        match op.name:
            case "alloc":
                self.alloc(op, place)
            case "for":
                self.loop(op, place)
            case "if":
                self.condition(op, place)
            case "wait":
                self.act(lambda: None, place, self.awaited(op), self.events_for(op))
            case "run" if op.results:
                self.run(op, place)
            case "run":
                self.act(self.work(body_of(op).ops, place), place, self.awaited(op), self.events_for(op))
            case "barrier":
                self.barrier(place)

    def whole(self, ops: Sequence[Op], place: _Place) -> None:
        """What depends on data is done in order, when all threads have come together."""
        self.barrier(place)
        inside = [o for op in ops for o in op.walk()]
        awaited, events = ([x for o in inside for x in of(o)] for of in (self.awaited, self.events_for))
        self.act(self.work(ops, place), place, awaited, events)
        self.barrier(place)

    def loop(self, op: Op, place: _Place) -> None:
        level = op.attrs.get("level")
        iterations = range(_number(extent_of(op), place))
        for k in (
            reversed(iterations) if _number(op.attrs.get("boustrophedon", ZERO), place) % 2 else iterations
        ):
            levels = place.levels if level is None else (*place.levels, (level, k))
            self.block(body_of(op), _Place({**place.env, loop_var(op).name: k}, dict(place.memory), levels))

    def condition(self, op: Op, place: _Place) -> None:
        if op.operands:
            self.whole([op], place)
        elif all(_number(c, place) for c in op.attrs["guard"]):
            self.block(body_of(op), place)

    def alloc(self, op: Op, place: _Place) -> None:
        """A buffer lies at the same place in each iteration of a loop of its thread."""
        key = op, place.thread
        if key not in self.allocated:
            run = self.runner(place)
            run.alloc(op)
            self.allocated[key] = run.memory[op.result]
        place.memory[op.result] = self.allocated[key]

    # What is done, and after what

    def act(
        self,
        work: Callable[[], None],
        place: _Place,
        awaited: Sequence[_Action] = (),
        events: Sequence[_Event] = (),
    ) -> None:
        """Plan what the thread does itself."""
        self.last[place.thread] = self.add(work, [*self.before(place.thread), *awaited], events)

    def run(self, op: Op, place: _Place) -> None:
        own = [(place.thread, op.attrs["queue"], target, n) for target, n in op.attrs.get("events", ())]
        if own:
            self.act(lambda: self.set_events.difference_update(own), place)
            self.given[op.result] = own
        after = [*self.before(place.thread), *self.awaited(op)]
        queue = op.attrs["queue"], place.thread
        if queue in self.queues:
            after.append(self.queues[queue])
        work = self.work(body_of(op).ops, place)

        def do() -> None:
            work()
            self.set_events.update(own)

        action = self.add(do, after, self.events_for(op))
        self.queues[queue] = self.tokens[op.result] = action

    def barrier(self, place: _Place) -> None:
        """All threads of the level that have the same numbers in the levels around."""
        joined = [thread for thread in self.last if _is_below(thread, place.levels)]
        action = self.add(lambda: None, [a for thread in joined for a in self.before(thread)])
        self.barriers.append((place.levels, action))
        for thread in joined:
            self.last[thread] = action

    def before(self, thread: Path) -> list[_Action]:
        if thread in self.last:
            return [self.last[thread]]
        return [action for levels, action in self.barriers if _is_below(thread, levels)]

    def awaited(self, op: Op) -> list[_Action]:
        """The runs that an op waits for, but for those that have events."""
        return [self.tokens[v] for v in op.operands if v in self.tokens and v not in self.given]

    def events_for(self, op: Op) -> list[_Event]:
        queue = op.attrs.get("queue", "")
        return [event for v in op.operands for event in self.given.get(v, ()) if event[2] == queue]

    def add(self, work: Callable[[], None], after: list[_Action], events: Sequence[_Event] = ()) -> _Action:
        action = _Action(work, after, tuple(events))
        self.actions.append(action)
        return action

    def work(self, ops: Sequence[Op], place: _Place) -> Callable[[], None]:
        run = self.runner(place)

        def do() -> None:
            for op in ops:
                run.op(op)

        return do

    def runner(self, place: _Place) -> Run:
        run = Run(dict(place.env))
        run.memory = dict(place.memory)
        run.scalars = self.scalars.setdefault(place.thread, {})
        return run


def run_interleaved(
    func: Func, arrays: Sequence[np.ndarray], env: Mapping[str, int] | None, order: random.Random
) -> None:
    """Execute a kernel as `run_kernel` does, its threads and queues in a random order."""
    bound = Run(dict(env or {}))
    bound.bind(func, arrays)
    plan = _Plan()
    plan.block(func.body, _Place(dict(env or {}), bound.memory))
    left = list(plan.actions)
    with np.errstate(all="ignore"):
        while left:
            ready = [a for a in left if all(b.done for b in a.after) and plan.set_events.issuperset(a.events)]
            assert ready, "all wait for events that nobody sets"
            action = order.choice(ready)
            action.work()
            action.done = True
            left.remove(action)


def _is_marked(op: Op) -> bool:
    return any(
        o.name == "wait" or "level" in o.attrs or (o.name == "run" and (o.results or o.operands))
        for o in op.walk()
    )


def _is_below(thread: Path, levels: Sequence[tuple[str, int]]) -> bool:
    numbers = dict(thread)
    return all(numbers.get(name, 0) == k for name, k in levels)


def _number(e: Sym, place: _Place) -> int:
    return int(e.evaluate(place.env))
