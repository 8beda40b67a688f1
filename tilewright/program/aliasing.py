"""What may be read and written of states in which order.

`read` gives the memory of a state itself, so that whoever reads its result reads what is there then. A program is right
when no reader can tell that nothing was copied:

1. What was read of a state, also under the name of a view, is not read after an `update` of it.
2. A state has one writer: updates of it, in whatever blocks, are of elements that provably differ.
3. What one way of a branch updates, the other does not touch.
4. A body of a loop that updates a state reads nothing of it that was read before this trip: it would read what the
   trip before has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.sym import Sym, le
from tilewright.ir.text import line_of
from tilewright.ops.define.staged import BRANCH, HOST, LOOP
from tilewright.runtime.staged.functions import HANDS_ON


def broken_aliasing(func: Func) -> tuple[str, Op] | None:
    """The first access that breaks a rule, and what is wrong with it; None for a program that obeys them all."""
    try:
        _Accesses(func).block(func.body)
    except _Broken as broken:
        return broken.message, broken.op
    return None


def states_held(func: Func) -> Mapping[Value, frozenset[Value]]:
    """Of which states each value may be the memory, or hold it, in a program that updates none."""
    accesses = _Accesses(func)
    accesses.block(func.body)
    return accesses.states


class _Broken(Exception):
    def __init__(self, message: str, op: Op) -> None:
        super().__init__(message)
        self.message, self.op = message, op


@dataclass
class _Touched:
    """Accesses of states in some ops: the first of any kind, and the updates."""

    any: dict[Value, Op] = field(default_factory=dict)
    updates: dict[Value, list[Op]] = field(default_factory=dict)

    def add(self, other: _Touched) -> None:
        self.any = other.any | self.any
        for state, ops in other.updates.items():
            self.updates.setdefault(state, []).extend(ops)


class _Accesses:
    """One walk over a program: of which states each value may be the memory, and the updates so far."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.states: dict[Value, frozenset[Value]] = {}
        self.stale: dict[Value, Op] = {}

    def states_of(self, value: Value) -> frozenset[Value]:
        return self.states.get(value, frozenset())

    def block(self, block: Block) -> _Touched:
        touched = _Touched()
        for op in block.ops:
            inner = self.op(op)
            for state, updates in inner.updates.items():
                self.one_writer(state, [*touched.updates.get(state, ()), *updates])
            touched.add(inner)
        return touched

    def op(self, op: Op) -> _Touched:
        for value in op.operands:
            if (update := self.stale.get(value)) is not None:
                self.fail(value, op, update, "read", "it no longer holds what was read before this update")
        for value in op.results:  # in the next trip of a loop it is another one
            self.stale.pop(value, None)
        held = frozenset[Value]().union(*map(self.states_of, op.operands))
        found = _Touched(dict.fromkeys(held, op))
        if op.name == "read":
            self.states[op.result] = frozenset(op.operands)
            found.any[op.operands[0]] = op
        elif op.name == "update":
            found.any[op.operands[0]] = op
            found.updates[op.operands[0]] = [op]
            self.outdate(op.operands[0], op)
        elif op.name == BRANCH:
            self.branch(op, found)
        elif op.name == LOOP:
            self.loop(op, found)
        elif op.blocks:  # it runs once
            (body,) = op.blocks
            found.add(self.block(body))
            self.yielded(op.results, body.ops[-1].operands)
        elif held and _hands_on(op):
            self.states |= dict.fromkeys(op.results, held)
        return found

    def outdate(self, state: Value, update: Op) -> None:
        self.stale |= {v: update for v, states in self.states.items() if state in states and v not in self.stale}

    def branch(self, op: Op, found: _Touched) -> None:
        before = dict(self.stale)
        stale: dict[Value, Op] = {}
        ways = []
        for block in op.blocks:
            self.stale = dict(before)
            ways.append(self.block(block))
            self.yielded(op.results, block.ops[-1].operands)
            stale |= self.stale
        self.stale = stale
        for one, other in (ways, ways[::-1]):
            for state, updates in one.updates.items():
                if (access := other.any.get(state)) is not None:
                    why = "one way of a branch updates a state, and the other touches it, too"
                    self.fail(state, updates[0], access, "updated", why)
        for way in ways:
            found.add(way)

    def loop(self, op: Op, found: _Touched) -> None:
        """The body, again as long as there is something new in what a trip hands to the next one."""
        (block,) = op.blocks
        before = dict(self.states)
        self.yielded(block.args[2:], op.operands[2:])
        while True:
            known = list(map(self.states_of, block.args))
            inner = self.block(block)
            self.check_trips(block, inner, before)
            self.yielded(block.args[2:], block.ops[-1].operands[1:])
            if known == list(map(self.states_of, block.args)):
                break
        self.yielded(op.results, op.operands[2:])  # where there is no trip
        self.yielded(op.results, block.ops[-1].operands[1:])
        found.add(inner)

    def check_trips(self, block: Block, inner: _Touched, before: Mapping[Value, frozenset[Value]]) -> None:
        """Nothing that a trip reads of a state is older than the last update by the trip before."""
        for state, updates in inner.updates.items():
            for reader, value in _reads_within(block):
                is_older = state in before.get(value, ()) or value in block.args or reader is block.ops[-1]
                if is_older and state in self.states_of(value):
                    why = "the next trip would read what this one has written"
                    self.fail(value, reader, updates[0], "read in a loop", why)

    def yielded(self, results: Iterable[Value], operands: Iterable[Value]) -> None:
        """What is handed on is the same memory."""
        for result, value in zip(results, operands, strict=False):
            if held := self.states_of(value):
                self.states[result] = self.states_of(result) | held

    def one_writer(self, state: Value, updates: list[Op]) -> None:
        *before, last = updates
        for other in before:
            if not _are_apart(other, last):
                self.fail(state, last, other, "written", "both may write the same elements")

    def fail(self, value: Value, op: Op, other: Op, what: str, why: str) -> None:
        number, line = line_of(self.func, other)
        name = f"'{value.name}'" if value.name else "a value"
        names = " or ".join(f"'{state.name}'" for state in sorted(self.states_of(value), key=lambda state: state.name))
        whose = f" of state {names}" if names else ""
        raise _Broken(f"{name}{whose} is {what} here, and line {number} has `{line}`: {why}", op)


def _hands_on(op: Op) -> bool:
    """Whether results may be the memory of operands: of views they are, and of some functions of the host."""
    return op.attrs["function"] in HANDS_ON if op.name == HOST else op.name != "call"


def _reads_within(block: Block) -> Iterator[tuple[Op, Value]]:
    for op in block.walk():
        for value in op.operands:
            yield op, value


def _are_apart(one: Op, other: Op) -> bool:
    """Whether two updates of a state provably write different elements."""
    if one is other or "at" not in one.attrs or "at" not in other.attrs:
        return False
    boxes = [[(i, i + n) for i, n in zip(op.attrs["at"], op.operands[1].tensor.shape, strict=True)]
             for op in (one, other)]  # fmt: skip
    return any(_holds(le(a[1], b[0])) or _holds(le(b[1], a[0])) for a, b in zip(*boxes, strict=True))


def _holds(condition: Sym) -> bool:
    return condition.is_const and bool(condition.value)
