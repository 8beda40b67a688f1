"""Schedules as text, and what they do in time.

    schedule in 4096 bytes {
      L x at 0
      L w at 1024
      R conv -> y at 2048
      F w
      S y
    }

`L` loads a tensor to an address of the scratchpad, `R` runs an operation, whose results get addresses, `S` stores a
tensor, and `F` frees its bytes. Loads, operations and stores are three queues, each in the order of the text. An action
waits, besides for its queue, for what made its tensors, and where it fills bytes for the last action on the tensors
that were freed there: these are its tokens, and no action waits for anything else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.program.memory.scratchpad.problem import ScratchpadProblem
from tilewright.runtime.errors import InputError

Kind = Literal["L", "R", "S", "F"]


@dataclass(frozen=True)
class Action:
    """One action: the number of its tensor, or of its operation for "R"; `offsets` are where a load, or the results of
    an operation, begin."""

    kind: Kind
    index: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stay:
    """A tensor in the scratchpad: its bytes, and the cycles between which they are its own."""

    tensor: int
    offset: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class TimeLine:
    """When each action starts and ends, in cycles; the actions for whose tokens each waits; what lies in the scratchpad
    when, and its highest byte."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    stays: tuple[Stay, ...]
    peak: int

    @property
    def cycles(self) -> int:
        """When all is done."""
        return max(self.ends, default=0)


class ScheduleFault(InputError):
    """A schedule that breaks a rule of the scratchpad: the action, and what is wrong."""


@dataclass
class _Held:
    """A tensor in the scratchpad during the simulation."""

    offset: int
    size: int
    start: int
    ready: int
    made_by: int
    users: list[int]


def simulate(problem: ScratchpadProblem, actions: Sequence[Action]) -> TimeLine:
    """The time line of a schedule. ScheduleFault where it uses what is not in the scratchpad, fills bytes that are not
    free or that there are not, loads what the large memory does not have, or leaves something undone."""
    return _Simulation(problem, actions).run()


class _Simulation:
    def __init__(self, problem: ScratchpadProblem, actions: Sequence[Action]) -> None:
        self.problem = problem
        self.actions = actions
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.tokens: list[tuple[int, ...]] = []
        self.stays: list[Stay] = []
        self.held: dict[int, _Held] = {}
        self.freed: list[tuple[int, int, tuple[int, ...]]] = []  # ranges of bytes, and the last actions on them
        self.outside: dict[int, tuple[int, ...]] = {n: () for n, t in enumerate(problem.tensors) if t.given}
        self.queues = {"L": 0, "R": 0, "S": 0}
        self.done: set[int] = set()
        self.peak = 0

    def run(self) -> TimeLine:
        for action in self.actions:
            getattr(self, f"_{_STEPS[action.kind]}")(action)
        self._check_all_done()
        for tensor, held in list(self.held.items()):
            self._leave(tensor, held)
        return TimeLine(tuple(self.starts), tuple(self.ends), tuple(self.tokens), tuple(self.stays), self.peak)

    def _load(self, action: Action) -> None:
        tensor = action.index
        if tensor in self.held:
            raise self._fault(f"loads '{self._name(tensor)}', which is in the scratchpad already")
        if tensor not in self.outside:
            raise self._fault(f"loads '{self._name(tensor)}', which was never stored")
        size = self.problem.bytes_of(tensor)
        tokens = [*self.outside[tensor], *self._fill(tensor, action.offsets[0], size)]
        self._begin("L", tokens, self.problem.load_cycles(tensor))
        self._hold(tensor, action.offsets[0])

    def _run(self, action: Action) -> None:
        op = self.problem.operations[action.index]
        if action.index in self.done:
            raise self._fault(f"runs '{op.name}' a second time")
        tokens = [self._used(t, f"runs '{op.name}' on").made_by for t in op.reads]
        for tensor, offset in zip(op.writes, action.offsets, strict=True):
            tokens += self._fill(tensor, offset, self.problem.bytes_of(tensor))
            self.held[tensor] = _Held(offset, self.problem.bytes_of(tensor), 0, 0, 0, [])
        self._begin("R", tokens, op.cycles)
        for tensor, offset in zip(op.writes, action.offsets, strict=True):
            self._hold(tensor, offset)
        for tensor in op.reads:
            self.held[tensor].users.append(len(self.starts) - 1)
        self.done.add(action.index)

    def _store(self, action: Action) -> None:
        tensor = action.index
        held = self._used(tensor, "stores")
        self._begin("S", [held.made_by], self.problem.store_cycles(tensor))
        held.users.append(len(self.starts) - 1)
        self.outside[tensor] = (len(self.starts) - 1,)

    def _free(self, action: Action) -> None:
        held = self._used(action.index, "frees")
        del self.held[action.index]
        end = self._leave(action.index, held)
        users = tuple(held.users or [held.made_by])
        self.freed.append((held.offset, held.offset + held.size, users))
        self._note(end, end, users)

    def _leave(self, tensor: int, held: _Held) -> int:
        end = max(self.ends[n] for n in (*held.users, held.made_by))
        self.stays.append(Stay(tensor, held.offset, held.size, held.start, end))
        return end

    def _fill(self, tensor: int, offset: int, size: int) -> list[int]:
        """The last actions on what was in bytes that are filled now."""
        problem, end = self.problem, offset + size
        if offset < 0 or offset % problem.align or end > problem.capacity:
            raise self._fault(
                f"puts '{self._name(tensor)}' to bytes {offset} to {end} of {problem.capacity}, aligned to "
                f"{problem.align}"
            )
        for other, held in self.held.items():
            if _meet(offset, end, held.offset, held.offset + held.size):
                raise self._fault(
                    f"puts '{self._name(tensor)}' to bytes {offset} to {end}, where '{self._name(other)}' is: "
                    f"{held.offset} to {held.offset + held.size}"
                )
        self.peak = max(self.peak, end)
        return [n for a, b, users in self.freed if _meet(offset, end, a, b) for n in users]

    def _begin(self, queue: str, tokens: Iterable[int], cycles: int) -> None:
        waits = tuple(dict.fromkeys(tokens))
        start = max([self.queues[queue], *(self.ends[n] for n in waits)])
        self.queues[queue] = start + cycles
        self._note(start, start + cycles, waits)

    def _note(self, start: int, end: int, tokens: tuple[int, ...]) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.tokens.append(tokens)

    def _hold(self, tensor: int, offset: int) -> None:
        n = len(self.starts) - 1
        self.held[tensor] = _Held(offset, self.problem.bytes_of(tensor), self.starts[n], self.ends[n], n, [])

    def _used(self, tensor: int, how: str) -> _Held:
        held = self.held.get(tensor)
        if held is None:
            raise self._fault(f"{how} '{self._name(tensor)}', which is not in the scratchpad")
        return held

    def _check_all_done(self) -> None:
        for n, op in enumerate(self.problem.operations):
            if n not in self.done:
                raise ScheduleFault(f"the schedule never runs operation '{op.name}'")
        for n in self.problem.stored:
            if n not in self.outside:
                raise ScheduleFault(f"the schedule never stores '{self._name(n)}', which is wanted")

    def _name(self, tensor: int) -> str:
        return self.problem.tensors[tensor].name

    def _fault(self, what: str) -> ScheduleFault:
        n = len(self.starts)
        return ScheduleFault(f"action {n + 1}, '{text_of(self.problem, self.actions[n])}', {what}")


_STEPS = {"L": "load", "R": "run", "S": "store", "F": "free"}


def _meet(a: int, b: int, c: int, d: int) -> bool:
    return a < d and c < b


# Text


def text_of(problem: ScratchpadProblem, action: Action) -> str:
    """The line of an action."""
    if action.kind == "R":
        op = problem.operations[action.index]
        results = ", ".join(
            f"{_quoted(problem.tensors[t].name)} at {o}" for t, o in zip(op.writes, action.offsets, strict=True)
        )
        return f"R {_quoted(op.name)}" + (f" -> {results}" if results else "")
    name = _quoted(problem.tensors[action.index].name)
    return f"{action.kind} {name} at {action.offsets[0]}" if action.kind == "L" else f"{action.kind} {name}"


def print_schedule(problem: ScratchpadProblem, actions: Sequence[Action]) -> str:
    """The text of a schedule."""
    lines = [f"  {text_of(problem, action)}" for action in actions]
    return "\n".join([f"schedule in {problem.capacity} bytes {{", *lines, "}", ""])


_PLAIN = re.compile(r"[A-Za-z_][\w.]*")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|->|[^\s,]+|,')


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name != "at" else json.dumps(name)


def parse_schedule(problem: ScratchpadProblem, text: str) -> tuple[Action, ...]:
    """The actions of a text that `print_schedule` made, or that somebody wrote. InputError with the line that is no
    action, or that names what the problem does not have."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1] != f"schedule in {problem.capacity} bytes {{" or lines[-1][1] != "}":
        raise InputError(f"the text is no 'schedule in {problem.capacity} bytes {{ ... }}'")
    return tuple(_Line(problem, n, line).action() for n, line in lines[1:-1])


class _Line:
    """A line, read word by word."""

    def __init__(self, problem: ScratchpadProblem, number: int, text: str) -> None:
        self.problem = problem
        self.number, self.text = number, text
        self.words: Iterator[str] = iter(_WORD.findall(text))

    def action(self) -> Action:
        kind = self._word()
        match kind:
            case "L":
                return self._ended(Action("L", self._tensor(), (self._address(),)))
            case "S":
                return self._ended(Action("S", self._tensor()))
            case "F":
                return self._ended(Action("F", self._tensor()))
            case "R":
                return self._operation()
        raise self._fault("begins with none of L, R, S and F")

    def _operation(self) -> Action:
        index = self._number_of("operation", [op.name for op in self.problem.operations])
        offsets = []
        for n, tensor in enumerate(self.problem.operations[index].writes):
            self._expect("," if n else "->")
            if self._tensor() != tensor:
                raise self._fault(f"lacks the result '{self.problem.tensors[tensor].name}' at its place")
            offsets.append(self._address())
        return self._ended(Action("R", index, tuple(offsets)))

    def _tensor(self) -> int:
        return self._number_of("tensor", [t.name for t in self.problem.tensors])

    def _number_of(self, what: str, names: Sequence[str]) -> int:
        word = self._word()
        name = json.loads(word) if word.startswith('"') else word
        if name not in names:
            raise self._fault(f"names {what} '{name}', which there is not")
        return names.index(name)

    def _address(self) -> int:
        self._expect("at")
        word = self._word()
        if not word.isdecimal():
            raise self._fault(f"has '{word}' in the place of an address")
        return int(word)

    def _expect(self, wanted: str) -> None:
        if (found := self._word()) != wanted:
            raise self._fault(f"has '{found}' in the place of '{wanted}'")

    def _word(self) -> str:
        return next(self.words, "")

    def _ended(self, action: Action) -> Action:
        if more := self._word():
            raise self._fault(f"has '{more}' behind its end")
        return action

    def _fault(self, what: str) -> InputError:
        return InputError(f"line {self.number}, '{self.text}', {what}")
