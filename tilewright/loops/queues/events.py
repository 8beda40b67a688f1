"""Events of pairs of queues: which number each token has, and whether no two runs need one at the same time.

A token that the thread or another queue waits for is an event of this pair. It is in use from the start of the run that
sets it until all that wait for it have begun: the thread passes its waits in order, and a run on a queue has begun for
certain where the thread knows that it has ended. Where a pair has too few, the thread waits for a token earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Func, Op, insert_before
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.edit import ancestor_in, block_of
from tilewright.target.machine import Machine

THREAD = ""
"""Who waits for a token where it is no queue."""


@dataclass(frozen=True, eq=False)
class Crossing:
    """A token that `waiting` ops of another queue, or the thread, wait for; `start` and `end` are the positions in the
    program between which they do."""

    run: Op
    target: str
    waiting: tuple[Op, ...]
    start: int
    end: int

    @property
    def pair(self) -> tuple[str, str]:
        return self.run.attrs["queue"], self.target


def crossings(func: Func) -> list[Crossing]:
    """What needs an event, in the order of the program."""
    ops = list(func.body.walk())
    position = {op: k for k, op in enumerate(ops)}
    found = []
    for run in ops:
        if run.name != "run" or not run.results:
            continue
        waiting: dict[str, list[Op]] = {}
        for user in sorted(set(run.result.users), key=position.__getitem__):
            waiting.setdefault(user.attrs.get("queue", THREAD), []).append(user)
        for target, users in waiting.items():
            if target != run.attrs["queue"]:
                ends = (_end(run, user, position) for user in users)
                found.append(Crossing(run, target, tuple(users), position[run], max(ends)))
    return found


def _end(run: Op, user: Op, position: Mapping[Op, int]) -> int:
    """Where a token is waited for the last time: in a loop, at its end."""
    around = ancestor_in(user, block_of(run))
    assert around is not None, "a token is seen in its block"
    return position[user] if around is user else max(position[op] for op in around.walk())


Running = Mapping[Op, frozenset[Op]]


def _is_used_at(crossing: Crossing, run: Op, start: int, running: Running) -> bool:
    """Whether a token may be in use where a run is started, which would clear it."""
    if crossing.run is not run and crossing.start < start < crossing.end:
        return True
    return any(op in running.get(run, ()) for op in crossing.waiting)


def _clash(first: Crossing, second: Crossing, running: Running) -> bool:
    return _is_used_at(first, second.run, second.start, running) or _is_used_at(
        second, first.run, first.start, running
    )


def assign_events(func: Func, machine: Machine) -> None:
    """Give each token that crosses queues its numbers, as few as the program needs. Where there are too few for a pair
    of queues, the thread waits in the place of the queue; where the thread has too few, it waits before the run that
    lacks one. A kernel that is not ordered, which the verifier refuses, has none."""
    for op in func.body.walk():
        op.attrs.pop("events", None)
    if not machine.events:
        return
    order = Order(func, [level.name for level in machine.levels])
    while order.why_not() is None:
        found = crossings(func)
        numbers: dict[Crossing, int] = {}
        late = _number(found, machine, order.running_at, numbers)
        if late is None:
            for crossing, number in sorted(numbers.items(), key=lambda each: each[0].target):
                crossing.run.attrs["events"] = (*crossing.run.attrs.get("events", ()), (crossing.target, number))
            return
        if not machine.event_count(late.pair[0], THREAD):
            return
        _wait_earlier(late, found, order.running_at)


def _number(
    found: Sequence[Crossing], machine: Machine, running: Running, numbers: dict[Crossing, int]
) -> Crossing | None:
    """Number all tokens, those of pairs of queues first; the first for which there is no event."""
    for crossing in sorted(found, key=lambda c: c.target == THREAD):
        count = machine.event_count(*crossing.pair)
        beside = (c for c in numbers if c.pair == crossing.pair and _clash(c, crossing, running))
        taken = {numbers[c] for c in beside}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        if (count is not None and number >= count) or _clash(crossing, crossing, running):
            return crossing
        numbers[crossing] = number
    return None


def _wait_earlier(late: Crossing, found: Sequence[Crossing], running: Running) -> None:
    """Let the thread wait for a token that a queue waits for, or for the oldest one that it would wait for later."""
    if late.target != THREAD:
        _wait_before(late.run, late.waiting)
        return
    oldest = next(c for c in found if c.pair == late.pair and c is not late and _clash(c, late, running))
    _wait_before(oldest.run, [late.run])


def _wait_before(run: Op, places: Iterable[Op]) -> None:
    """Let the thread wait for a run before the first of these places, after which nothing else has to."""
    block = block_of(run)
    around = [op for place in places if (op := ancestor_in(place, block)) is not None]
    first = min(around, key=block.ops.index)
    later = {op for after in block.ops[block.ops.index(first) :] for op in after.walk()}
    for user in [op for op in run.result.users if op in later]:
        user.set_operands([v for v in user.operands if v is not run.result])
        if user.name == "wait" and not user.operands and user is not first:
            user.erase()
    if first.name == "wait" and not run.result.users and not first.operands:
        first.set_operands([run.result])
        return
    insert_before(first, [Op("wait", [run.result])])


def why_no_events(func: Func, machine: Machine, running: Running) -> tuple[str, Op] | None:
    """What is wrong with the events of an ordered kernel, and the op that it is about. `running` are the runs that may
    not have ended where another one is started."""
    found = crossings(func)
    for op in func.body.walk():
        if "events" in op.attrs:
            needed = {c.target for c in found if c.run is op}
            extra = [to for to, _ in op.attrs["events"] if to not in needed]
            if not machine.events:
                return f"machine '{machine.name}' has no events", op
            if extra:
                return f"it sets an event for {_who(extra[0])}, which does not wait for it", op
    if not machine.events:
        return None
    given = {c: dict(c.run.attrs.get("events", ())).get(c.target) for c in found}
    for k, crossing in enumerate(found):
        wrong = _why_not_given(crossing, given[crossing], machine)
        if wrong:
            return wrong, crossing.run
        for other in found[: k + 1]:
            same = other.pair == crossing.pair and given[other] == given[crossing]
            if same and _clash(other, crossing, running):
                return (
                    f"it sets event {given[crossing]} for {_who(crossing.target)}, which may still wait for the event "
                    f"of {'this run as it was started before' if other is crossing else 'an earlier run'}; take "
                    "another number, or wait before"
                ), crossing.run
    return None


def _why_not_given(crossing: Crossing, number: int | None, machine: Machine) -> str | None:
    who, count = _who(crossing.target), machine.event_count(*crossing.pair)
    if number is None:
        return f"{who} waits for it, and it sets no event for that"
    if count is not None and number >= count:
        return f"it sets event {number} for {who}, and there are {count} from queue '{crossing.pair[0]}'"
    return None


def _who(target: str) -> str:
    return f"queue '{target}'" if target else "the thread"


def events_used(func: Func) -> dict[str, int]:
    """How many events of each pair of queues a kernel uses, as "load -> array", or "load -> thread"."""
    most: dict[str, int] = {}
    for op in func.body.walk():
        for target, number in op.attrs.get("events", ()):
            pair = f"{op.attrs['queue']} -> {target or 'thread'}"
            most[pair] = max(most.get(pair, 0), number + 1)
    return dict(sorted(most.items()))
