"""The time of a kernel on an accelerator whose queues work in order, cycle by cycle of its facts.

A thread does what stands in no run itself, in the order of the program, and starts runs on queues. A run begins when
its queue has done all before it, its tokens have come, and the thread has got there. `wait` lets the thread stand still
until tokens have come. Threads of a level have clocks and queues of their own; a barrier brings their clocks together.

Loops are taken iteration by iteration until one begins with queues as far ahead of the thread as the one before it did,
and costs nothing that depends on the iteration: all that follow then take as long, which is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import Sym, parse_sym, var
from tilewright.loops.edit import body_of, extent_of, is_loop, loop_var
from tilewright.loops.machine.copies import Copy, copy_in, route_of
from tilewright.loops.machine.match_intrinsic import IntrinsicMatch, match_intrinsic
from tilewright.loops.machine.vector_unit import unit_cycles
from tilewright.loops.queues.events import events_used
from tilewright.target.machine import COPY, Accelerator

SCALAR = "scalar"
"""The name under which the work of threads themselves is counted."""

Thread = tuple[tuple[str, int], ...]
Busy = dict[tuple[str, Thread], float]


@dataclass(frozen=True, slots=True)
class Event:
    """A run: what ran on which queue, from when to when in cycles. Of the runs of equal iterations some are told."""

    queue: str
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Timed:
    """How long a kernel takes: `cycles`, those in which each queue is busy (of several the one that is longest), the
    bytes that move along each route (as "global -> l1"), the runs, and the events that each pair of queues needs (as
    "load -> array") where the machine has a number of them."""

    cycles: float = 0
    busy: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    used_events: Mapping[str, int] = field(default_factory=dict)

    @property
    def bound(self) -> float:
        """Cycles of the busiest queue, which no order of the same runs goes below."""
        return max((n for name, n in self.busy.items()), default=0)


def time_kernel(func: Func, machine: Accelerator, dims: Mapping[str, int] | None = None) -> Timed:
    """How long one call of a scheduled kernel takes; `dims` are the sizes that it is called with. Work under a
    condition that data decide counts. UnsupportedError where a size is not known."""
    missing = [d.name for d in func.dims if d.name not in (dims or {})]
    if missing:
        raise UnsupportedError(
            f"the time of kernel '{func.name}' depends on the size '{missing[0]}'", hint="give the dims with shapes="
        )
    clock = _Clock(machine)
    clock.block(func.body, dict(dims or {}), ())
    end = max([*clock.now.values(), *clock.free.values(), 0.0])
    busy: dict[str, float] = {}
    for (queue, _), cycles in clock.busy.items():  # of several instances the one that does most
        busy[queue] = max(busy.get(queue, 0), cycles)
    return Timed(end, busy, dict(clock.bytes), tuple(clock.events), events_used(func))


MOST_EVENTS = 10_000


@dataclass
class _Clock:
    """When each thread is where, and each queue free."""

    machine: Accelerator
    now: dict[Thread, float] = field(default_factory=dict)
    free: dict[tuple[str, Thread], float] = field(default_factory=dict)
    tokens: dict[tuple[Value, Thread], float] = field(default_factory=dict)
    busy: Busy = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    runs: dict[Op, _Run] = field(default_factory=dict)
    marked: dict[Op, bool] = field(default_factory=dict)
    varying: dict[Op, bool] = field(default_factory=dict)

    def block(self, block: Block, env: dict[str, int], thread: Thread) -> None:
        for op in block.ops:
            self.op(op, env, thread)

    def op(self, op: Op, env: dict[str, int], thread: Thread) -> None:
        unit = self.machine.scalar
        if op.name == "run":
            self.run(op, env, thread)
        elif op.name == "wait":
            self.spend(unit.issue, thread)
            self.now[thread] = max([self.time(thread), *(self.token(v, thread) for v in op.operands)])
        elif op.name == "barrier":
            self.barrier(thread)
        elif not self.is_marked(op):
            self.spend(self.plain(op, env), thread)
        elif op.name == "for":
            self.loop(op, env, thread)
        elif op.operands or all(_number(c, env) for c in op.attrs["guard"]):
            self.block(body_of(op), env, thread)

    def time(self, thread: Thread) -> float:
        """Where a thread is; one that has done nothing yet is where those around it are."""
        while thread and thread not in self.now:
            thread = thread[:-1]
        return self.now.get(thread, 0.0)

    def spend(self, cycles: float, thread: Thread) -> None:
        self.now[thread] = self.time(thread) + cycles
        self.count(SCALAR, thread, cycles)

    def count(self, queue: str, thread: Thread, cycles: float) -> None:
        self.busy[queue, thread] = self.busy.get((queue, thread), 0) + cycles

    def token(self, value: Value, thread: Thread) -> float:
        while thread and (value, thread) not in self.tokens:
            thread = thread[:-1]
        return self.tokens.get((value, thread), 0.0)

    def barrier(self, thread: Thread) -> None:
        joined = [t for t in self.now if t[: len(thread)] == thread]
        latest = max([self.time(thread), *(self.now[t] for t in joined)])
        for t in [*joined, thread]:
            self.now[t] = latest

    # Loops

    def loop(self, op: Op, env: dict[str, int], thread: Thread) -> None:
        count = _number(extent_of(op), env)
        level = op.attrs.get("level")
        if level is not None:
            most = self.machine.levels[self.machine.level(level) or 0].count
            start = self.time(thread)
            for k in range(1, min(count, most)):  # all begin where the first thread does
                self.now.setdefault((*thread, (level, k)), start)
            for k in range(count):
                own = (*thread, (level, k % most)) if k % most else thread
                self.block(body_of(op), {**env, loop_var(op).name: k}, own)
            return
        steady = not self.is_varying(op) and not any("level" in o.attrs for o in op.walk())
        before: tuple[float, ...] | None = None
        for k in range(count):
            counted = (self.time(thread), dict(self.busy), dict(self.bytes))
            self.spend(self.machine.scalar.issue, thread)
            self.block(body_of(op), {**env, loop_var(op).name: k}, thread)
            state = self.ahead(thread)
            if steady and state == before:
                self.repeat(count - k - 1, counted, thread)
                return
            before = state

    def ahead(self, thread: Thread) -> tuple[float, ...]:
        """How far queues and tokens are ahead of a thread."""
        now = self.time(thread)
        ends = [*self.free.values(), *self.tokens.values()]
        return tuple(max(0.0, round(end - now, 6)) for end in ends)

    def repeat(self, times: int, before: tuple[float, Busy, dict[str, int]], thread: Thread) -> None:
        """Further iterations as the last one was."""
        start, busy, moved = before
        step = (self.time(thread) - start) * times
        self.busy = {q: n + (n - busy.get(q, 0)) * times for q, n in self.busy.items()}
        self.bytes = {r: n + (n - moved.get(r, 0)) * times for r, n in self.bytes.items()}
        self.now[thread] = self.time(thread) + step
        self.free = {key: end + step for key, end in self.free.items()}
        self.tokens = {key: end + step for key, end in self.tokens.items()}

    def is_varying(self, loop: Op) -> bool:
        """Whether what an iteration costs may depend on its number."""
        if loop not in self.varying:
            v = loop_var(loop)
            inside = list(body_of(loop).walk())
            bounds = [extent_of(o) for o in inside if is_loop(o)]
            bounds += [c for o in inside if o.name == "if" for c in o.attrs.get("guard", ())]
            self.varying[loop] = any(v in e.vars for e in bounds)
        return self.varying[loop]

    # Work

    def run(self, op: Op, env: dict[str, int], thread: Thread) -> None:
        if op not in self.runs:
            self.runs[op] = _run_of(op, self.machine)
        run = self.runs[op]
        cycles = run.cycles(op, self.machine, env)
        self.spend(self.machine.scalar.issue, thread)
        ready = max([self.time(thread), *(self.token(v, thread) for v in op.operands)])
        queue = op.attrs["queue"]
        if queue:
            start = max(ready, self.free.get((queue, thread), 0.0))
            self.free[queue, thread] = self.tokens[op.result, thread] = start + cycles
        else:
            start = ready
            self.now[thread] = start + cycles
        self.count(queue or SCALAR, thread, cycles)
        if run.copy is not None:
            self.bytes[run.name] = self.bytes.get(run.name, 0) + _number(run.copy.bytes, env)
        if len(self.events) < MOST_EVENTS:
            self.events.append(Event(queue or SCALAR, run.name, start, start + cycles))

    def plain(self, op: Op, env: dict[str, int]) -> float:
        """Cycles of what a thread does itself."""
        unit = self.machine.scalar
        if op.name == "for":
            count = _number(extent_of(op), env)
            if not self.is_varying(op):
                return count * (unit.issue + self.plain_block(body_of(op), {**env, loop_var(op).name: 0}))
            steps = ({**env, loop_var(op).name: k} for k in range(count))
            return sum(unit.issue + self.plain_block(body_of(op), step) for step in steps)
        if op.name == "if":
            holds = bool(op.operands) or all(_number(c, env) for c in op.attrs["guard"])
            return unit.operation + (self.plain_block(body_of(op), env) if holds else 0)
        if op.name in COMPUTING:
            return unit.operation
        return {"load": unit.load, "store": unit.store}.get(op.name, 0)

    def plain_block(self, block: Block, env: dict[str, int]) -> float:
        return sum(self.plain(op, env) for op in block.ops)

    def is_marked(self, op: Op) -> bool:
        if op not in self.marked:
            self.marked[op] = any(o.name in ("run", "wait", "barrier") or "level" in o.attrs for o in op.walk())
        return self.marked[op]


@dataclass(frozen=True)
class _Run:
    """What a run is: a copy, a match of an intrinsic, or work of a vector unit."""

    name: str
    copy: Copy | None = None
    time: Sym | None = None

    def cycles(self, op: Op, machine: Accelerator, env: dict[str, int]) -> float:
        if self.copy is not None:
            route = route_of(self.copy, machine)
            assert route is not None, "the verifier has looked at that"
            total, run = _number(self.copy.bytes, env), _number(self.copy.run_bytes, env)
            return route.start + (total // run * ceil(run / route.unit) * route.cycles if total else 0)
        if self.time is not None:
            return _number(self.time, env)
        unit = machine.unit(self.name)
        assert unit is not None
        return unit_cycles(unit, body_of(op).ops, env)


def _run_of(op: Op, machine: Accelerator) -> _Run:
    name = op.attrs["intrinsic"]
    if name == COPY:
        copy = copy_in(body_of(op).ops)
        assert isinstance(copy, Copy), "the verifier has looked at that"
        return _Run(f"{copy.source.buffer.space} -> {copy.target.buffer.space}", copy)
    intrinsic = machine.intrinsic(name)
    if intrinsic is None:
        return _Run(name)
    found = match_intrinsic(intrinsic, body_of(op))
    assert isinstance(found, IntrinsicMatch), "the verifier has looked at that"
    return _Run(name, None, parse_sym(intrinsic.cycles, lambda d: found.dims.get(d, var(d))))


def _number(e: Sym, env: Mapping[str, int]) -> int:
    """The value of an expression; of what data decide the most that is known."""
    unknown = [v for v in e.vars if v.name not in env]
    if unknown:
        env = {**env, **{v.name: v.bounds[1] or 1 for v in unknown}}
    return int(e.evaluate(dict(env)))
