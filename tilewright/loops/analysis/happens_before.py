"""What happens before what on a machine with parallel levels and queues: a check that all that meets is ordered.

A kernel means what it computes in order, on one thread, without its marks. A machine runs more at the same time:

- iterations of a parallel loop of a level run on threads of that level (equal iterations of two such loops on the same
  thread), and threads of a level wait for each other only at a `barrier` of it or of a level around it. What is in no
  loop of the level is done by its first thread;
- a `run` on a queue is done beside the thread that starts it: after all that this thread has done before, after the
  runs whose tokens it takes, and after earlier runs on the same queue. It has ended for whoever waits for its token;
- a parallel loop without a level (a task of the CPU's pool) counts as a serial one: it ends before what follows begins,
  and its iterations are independent.

The check goes through the program once as a data flow analysis, and through loops until nothing changes. It errs on the
safe side: accesses are apart only where that is proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym, eq
from tilewright.loops.analysis.bounds import Ranges, holds
from tilewright.loops.analysis.deps import Access, accesses, conflicts, disjoint, never_meet
from tilewright.loops.edit import (
    body_of,
    describe,
    enclosing_loops,
    extent_of,
    is_loop,
    loop_var,
    ranges_of,
)
from tilewright.loops.spec import versions_of

Loops = frozenset[Op]
_MARKS = ("run", "wait", "barrier")


@dataclass(frozen=True, slots=True)
class _Seen:
    """An access that something may not be ordered with; `same` are the loops whose current iteration made it, `run` the
    run on a queue that makes it and that nobody has waited for yet."""

    access: Access
    same: Loops
    run: Op | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A run on a queue that may not have ended."""

    run: Op
    same: Loops


@dataclass(frozen=True, slots=True)
class _State:
    """Runs that may not have ended, and for each level the accesses since its threads waited for each other."""

    pending: frozenset[_Pending] = frozenset()
    open: dict[str, frozenset[_Seen]] = field(default_factory=dict)

    def joined(self, other: _State) -> _State:
        """Either of two states."""
        levels = {**self.open, **other.open}
        opened = {k: self.open.get(k, frozenset()) | other.open.get(k, frozenset()) for k in levels}
        return _State(self.pending | other.pending, opened)

    def left(self, loop: Op) -> _State:
        """After an iteration of `loop`, or the loop."""
        return self.left_all(frozenset((loop,)))

    def left_all(self, loops: Loops) -> _State:
        """After an iteration of a nest of these loops, or the nest."""
        pending = frozenset(replace(p, same=p.same - loops) if p.same & loops else p for p in self.pending)
        opened = {
            k: frozenset(replace(s, same=s.same - loops) if s.same & loops else s for s in v)
            for k, v in self.open.items()
        }
        return _State(pending, opened)


class _Unordered(Exception):
    """Two accesses that nothing orders, or a run that nobody waits for: the op, and what is wrong."""

    def __init__(self, op: Op, message: str) -> None:
        super().__init__(message)
        self.found = message, op


class Order:
    """The order of a kernel whose machine has these levels, outermost first. It may be asked for again after waits and
    barriers have been taken out of the kernel or put in: what has been proven of its accesses is kept."""

    def __init__(self, func: Func, levels: Sequence[str]) -> None:
        self._check = _Check(func, levels)

    def why_not(self) -> tuple[str, Op] | None:
        """What is wrong, and the op that it is about; None when all accesses that may meet are ordered."""
        try:
            self._check.run()
        except _Unordered as problem:
            return problem.found
        return None

    @property
    def running_at(self) -> Mapping[Op, frozenset[Op]]:
        """For each run on a queue the runs of which the thread that starts it may not know yet that they have ended.
        Precondition: `why_not` has found nothing wrong."""
        return self._check.running_at


def missing_barriers(func: Func, levels: Sequence[str], *choices: str) -> list[tuple[Op, str]]:
    """The ops before which threads must wait for each other, in the order of the program, each with the first of the
    `choices` of levels that does, so that all that meets in a kernel without barriers is in order: as late, and so as
    few, as one way through the program lets them be. ScheduleError where barriers of these levels are not enough."""
    check = _Placement(func, levels, choices)
    try:
        check.run()
    except _Unordered as problem:
        message, op = problem.found
        raise ScheduleError(f"{describe(op)}: {message}") from None
    return [(op, check.places[op]) for op in func.body.walk() if op in check.places]


class _Check:
    """One analysis: accesses by op, what each run implies to have ended, and pairs that have been compared."""

    def __init__(self, func: Func, levels: Sequence[str]) -> None:
        self.func = func
        self.levels = tuple(levels)
        self.accesses = {a.op: a for a in accesses(func.body)}
        self.ended_with: dict[Op, frozenset[_Pending]] = {}
        self.running_at: dict[Op, frozenset[Op]] = {}
        self.proven: dict[tuple[object, ...], bool] = {}
        self.inside: dict[Op, list[Access]] = {}
        self.running: Op | None = None

    def run(self) -> None:
        self.ended_with, self.running_at, self.running = {}, {}, None
        for body in versions_of(self.func.body):  # of which one runs
            self._all_waited(self._block(body, _State()), frozenset(), "the kernel")

    def _block(self, block: Block, state: _State) -> _State:
        for op in block.ops:
            state = self._op(op, state)
        return state

    def _op(self, op: Op, state: _State) -> _State:
        if op in self.accesses:
            return self._access(self.accesses[op], state)
        if is_loop(op):
            return self._parallel(op, state) if "level" in op.attrs else self._serial(op, state)
        match op.name:
            case "if":
                return state.joined(self._block(body_of(op), state))
            case "wait":
                return self._waited(op, state)
            case "run":
                return self._queued(op, state) if op.results else self._block(body_of(op), self._waited(op, state))
            case "barrier":
                return self._barrier(op, state)
        return state

    # Loops

    def _serial(self, loop: Op, before: _State) -> _State:
        if not any(op.name in _MARKS or "level" in op.attrs for op in loop.walk()):
            return self._nest(loop, before)
        head = before
        while True:
            after = self._block(body_of(loop), head).left(loop)
            again = head.joined(after)
            if again == head:
                break
            head = again
        runs = extent_of(loop).bounds[0]
        return after if runs is not None and runs >= 1 else before.joined(after)

    def _nest(self, loop: Op, before: _State) -> _State:
        """Loops without marks: two accesses of other iterations of any of them must be in order, and nothing in them
        makes an order."""
        ops = list(loop.walk())
        loops = frozenset(filter(is_loop, ops))
        state = before
        for _ in range(2):
            for op in ops:
                if op in self.accesses:
                    state = self._access(self.accesses[op], state)
            state = state.left_all(loops)
        return before.joined(state)

    def _parallel(self, loop: Op, before: _State) -> _State:
        after = self._block(body_of(loop), before).left(loop)
        self._all_waited(after, frozenset(p.run for p in before.pending), describe(loop))
        return before.joined(after)

    def _all_waited(self, state: _State, others: frozenset[Op], end: str) -> None:
        for pending in state.pending:
            if pending.run not in others:
                message = f"nobody waits for this run on queue '{_queue(pending.run)}' before the end of {end}"
                raise _Unordered(pending.run, f"{message}; wait for its token")

    # Queues and barriers

    def _closure(self, op: Op, state: _State) -> frozenset[_Pending]:
        """The runs that have ended when the tokens that `op` takes are there."""
        runs = {v.op for v in op.operands if v.op is not None}
        own = frozenset(p for p in state.pending if p.run in runs)
        return own.union(*(self.ended_with[r] for r in runs if r in self.ended_with))

    def _waited(self, op: Op, state: _State) -> _State:
        return _without(state, self._closure(op, state))

    def _queued(self, run: Op, state: _State) -> _State:
        self.running_at[run] = self.running_at.get(run, frozenset()).union(p.run for p in state.pending)
        before = frozenset(p for p in state.pending if _queue(p.run) == _queue(run))
        self.ended_with[run] = before | self._closure(run, state)
        self.running = run
        inside = self._block(body_of(run), _without(state, self.ended_with[run]))
        self.running = None
        own = {level: frozenset(s for s in seen if s.run is run) for level, seen in inside.open.items()}
        return state.joined(_State(frozenset({_Pending(run, frozenset(enclosing_loops(run)))}), own))

    def _barrier(self, op: Op, state: _State) -> _State:
        """Threads of this level and of those below are together; what runs beside them goes on."""
        depth = self.levels.index(op.attrs["level"]) if op.attrs["level"] in self.levels else len(self.levels)
        kept = {level: state.open.get(level, frozenset()) for level in self.levels[:depth]}
        for level in self.levels[depth:]:
            kept[level] = frozenset(s for s in state.open.get(level, ()) if s.run is not None)
        return _State(state.pending, kept)

    # Accesses

    def _access(self, here: Access, state: _State) -> _State:
        for pending in state.pending:
            for there in self._of_run(pending.run):
                if _meet_at_all(there, here) and not self._apart(there, here, pending.same):
                    does = "writes" if there.write else "reads"
                    raise _Unordered(
                        here.op,
                        f"the run on queue '{_queue(pending.run)}' that {does} {describe(here.buffer)} may not have "
                        f"ended before this {here.place}; wait for its token before",
                    )
        opened = dict(state.open)
        seen = _Seen(here, frozenset(here.loops), self.running)
        for level in self.levels:
            if self._is_private(here.buffer, level):
                continue
            others = opened.get(level, frozenset()) | {seen}
            for other in others:
                self._check_threads(other, here, level)
            opened[level] = others
        return _State(state.pending, opened)

    def _check_threads(self, seen: _Seen, here: Access, level: str) -> None:
        there = seen.access
        if not _meet_at_all(there, here) or self._same_threads(there, here, level, seen.same):
            return
        raise _Unordered(
            here.op,
            f"threads of level '{level}' may meet in {describe(here.buffer)}: this {here.place}, and the "
            f"{there.place} of another thread, with no barrier between them; put `barrier {level}` between",
        )

    def _same_threads(self, there: Access, here: Access, level: str, same: Loops) -> bool:
        """Whether no two threads of a level touch one element by these two accesses."""
        key = there.op, here.op, level, same
        if key not in self.proven:
            self.proven[key] = self._prove(there, here, level, same)
        return self.proven[key]

    def _prove(self, there: Access, here: Access, level: str, same: Loops) -> bool:
        first, second = _loop_of(there, level), _loop_of(here, level)
        if first is None and second is None:
            return True
        if first is second and first is not None and first.attrs.get("overlap") and there.op is here.op:
            return True  # both write the same
        for outer in self.levels[: self.levels.index(level)]:
            there, here, same = _aligned(there, here, outer, same)
        if first is None or second is None:
            return _disjoint(there, here, same)
        there, here, same = _aligned(there, here, level, same)
        loop = _loop_of(there, level)
        assert loop is not None
        around = here.loops[: here.loops.index(loop)]  # in loops inside of it, threads are at different iterations
        outside = ranges_of(o for o in around if o in same and o in there.loops)
        return never_meet(there, here, loop, outside)

    def _apart(self, there: Access, here: Access, same: Loops) -> bool:
        key = there.op, here.op, same
        if key not in self.proven:
            self.proven[key] = _disjoint(there, here, same)
        return self.proven[key]

    def _of_run(self, run: Op) -> list[Access]:
        if run not in self.inside:
            self.inside[run] = [self.accesses[o] for o in run.walk() if o in self.accesses]
        return self.inside[run]

    def _is_private(self, buffer: Value, level: str) -> bool:
        """Whether each thread of a level has a buffer of its own."""
        return buffer.op is not None and any(o.attrs.get("level") == level for o in enclosing_loops(buffer.op))


class _Placement(_Check):
    """The analysis of a kernel that lacks barriers, of one of the levels `choices` each, before `places`."""

    def __init__(self, func: Func, levels: Sequence[str], choices: Sequence[str]) -> None:
        super().__init__(func, levels)
        self.choices = choices
        self.places: dict[Op, str] = {}

    def _block(self, block: Block, state: _State) -> _State:
        holder = block.parent
        around = [*enclosing_loops(holder), holder] if isinstance(holder, Op) else []
        is_uniform = all(is_loop(o) for o in around)
        inside = {o.attrs.get("level") for o in around}
        for op in block.ops:
            tried = [""] if op not in self.places else []
            tried += [c for c in self.choices if is_uniform and c not in inside]
            if op in self.places:
                tried = tried[tried.index(self.places[op]) :]
            state = self._after(op, state, tried)
        return state

    def _after(self, op: Op, state: _State, tried: Sequence[str]) -> _State:
        """The state after an op, with the first barrier before it that does."""
        known = dict(self.places)
        for level in tried:
            try:
                before = self._barrier(Op("barrier", attrs={"level": level}), state) if level else state
                after = self._op(op, before)
            except _Unordered:
                self.places = dict(known)  # with a barrier around, those inside may be none
                if level == tried[-1]:
                    raise
                continue
            if level:
                self.places[op] = level
            return after
        raise AssertionError("something is tried")


def _queue(run: Op) -> str:
    queue: str = run.attrs["queue"]
    return queue


def _without(state: _State, ended: frozenset[_Pending]) -> _State:
    """After runs have ended for the thread that waits: what they did is then done by this thread."""

    def waited(seen: _Seen) -> _Seen:
        has_ended = seen.run is not None and _Pending(seen.run, seen.same) in ended
        return replace(seen, run=None) if has_ended else seen

    return _State(state.pending - ended, {level: frozenset(map(waited, seen)) for level, seen in state.open.items()})


def _loop_of(access: Access, level: str) -> Op | None:
    return next((o for o in access.loops if o.attrs.get("level") == level), None)


def _meet_at_all(a: Access, b: Access) -> bool:
    return any(conflicts([a], [b]))


def _aligned(there: Access, here: Access, level: str, same: Loops) -> tuple[Access, Access, Loops]:
    """Two accesses on one thread of a level, or on two: with one variable for the loops of it."""
    first, second = _loop_of(there, level), _loop_of(here, level)
    if first is None or second is None:
        return there, here, same
    if first is not second:
        longer = first if _is_longer(first, second) else second
        renamed = {loop_var(first): loop_var(longer), loop_var(second): loop_var(longer)}
        there, here = (_renamed(a, o, longer, renamed) for a, o in ((there, first), (here, second)))
        return there, here, same | {longer}
    return there, here, same | {first}


def _renamed(access: Access, old: Op, new: Op, variables: dict[Sym, Sym]) -> Access:
    idx = tuple(i.subs(variables) for i in access.idx)
    return replace(access, idx=idx, loops=tuple(new if o is old else o for o in access.loops))


def _is_longer(first: Op, second: Op) -> bool:
    lengths = [extent_of(o) for o in (first, second)]
    return lengths[0] == lengths[1] or (all(n.is_const for n in lengths) and lengths[0].value >= lengths[1].value)


def _disjoint(a: Access, b: Access, same: Loops) -> bool:
    """Whether two accesses never touch one element where these loops are in the same iteration for both."""
    band = [o for o in a.loops if o in same and o in b.loops]
    if disjoint(a, b, band):
        return True
    known = ranges_of(band)
    pairs = zip(a.idx, b.idx, strict=True)
    return any(_fixed(i, known) and _fixed(j, known) and holds(eq(i, j), known) is False for i, j in pairs)


def _fixed(index: Sym, known: Ranges) -> bool:
    return index.vars <= known.keys()
