"""Kernels that differ in numbers only: the lengths of outer loops, and the distances that these step over in memory.

The layers of a network are often one kernel with other numbers of channels, and LLVM's time for each is as long. The
first kernel of such a family has its numbers in its code. The next gets a function that takes those in which it differs
as parameters, and is the code of all later kernels that differ in nothing else.

A number that is a parameter is in a register, where it costs nothing that is noticed: it is added or compared once for
each iteration of a loop around others. Numbers of innermost loops stay in the code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MOST_PARAMETERS = 6
"""Of a function: each needs a register, of which loops of many addresses have none left."""

_FEWEST_ITERATIONS = 4
"""Of a loop whose length may be a parameter: LLVM may write shorter ones out."""

_NUMBER = re.compile(r"= (?:mul nsw|(icmp slt)) i64 (%v\d+), (\d+)$", re.MULTILINE)
_INNERMOST = re.compile(
    r"^(loop\.[\w.]+):\n  (%v\d+) = phi i64 .*\n(?:  .*\n)*?  br i1 %v\d+, label %\1,", re.MULTILINE
)
"""A loop of one block, and its counter."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The lines of a kernel's function, and the values of its further parameters, whose names are `parameter(k)`."""

    body: str
    numbers: tuple[int, ...] = ()


def parameter(k: int) -> str:
    """The name of a number in a function that takes it."""
    return f"%number{k}"


@dataclass(frozen=True, slots=True)
class _Function:
    """Code of a family: its numbers in order, and which of them is which parameter."""

    numbers: tuple[int, ...]
    parameters: Mapping[int, int] = field(default_factory=dict)

    def taken(self, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """The parameters for which it is a kernel of these numbers; None where it is for none."""
        found: dict[int, int] = {}
        for place, (own, wanted) in enumerate(zip(self.numbers, numbers, strict=True)):
            k = self.parameters.get(place)
            if (own != wanted) if k is None else (found.setdefault(k, wanted) != wanted):
                return None
        return tuple([found[k] for k in range(len(found))])

    def wider(self, numbers: tuple[int, ...]) -> _Function:
        """What takes its parameters, and all numbers in which these differ: equal ones as one."""
        kinds: dict[tuple[int | None, int, int], int] = {}
        parameters: dict[int, int] = {}
        for place, (own, wanted) in enumerate(zip(self.numbers, numbers, strict=True)):
            k = self.parameters.get(place)
            if k is not None or own != wanted:
                parameters[place] = kinds.setdefault((k, own, wanted), len(kinds))
        return _Function(numbers, parameters)

    @property
    def count(self) -> int:
        """Of its parameters."""
        return len(set(self.parameters.values()))


class Families:
    """The kernels of one artefact, by what is left without their numbers. Which function a kernel gets depends on the
    kernels before it alone."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[_Function]] = {}

    def shared(self, body: str, rest: str) -> Shared:
        """The lines `body` of a kernel, of whose module `rest` is all else but its name."""
        spans = list(_numbers(body))
        if not spans:
            return Shared(body)
        numbers = tuple(int(body[a:b]) for a, b in spans)
        key = hashlib.blake2b("#".join((rest, *_between(body, spans))).encode()).digest()
        known = self._known.setdefault(key, [])
        for function in known:
            if (values := function.taken(numbers)) is not None:
                return Shared(_written(body, spans, function.parameters), values)
        function = _Function(numbers)
        if known:
            wider = min((f.wider(numbers) for f in known), key=lambda f: f.count)
            if wider.count <= MOST_PARAMETERS:
                function = wider
        known.append(function)
        values = function.taken(numbers)
        assert values is not None
        return Shared(_written(body, spans, function.parameters), values)


def _numbers(body: str) -> Iterator[tuple[int, int]]:
    """Where the numbers stand that may be parameters."""
    inner = {m.group(2): m.span() for m in _INNERMOST.finditer(body)}
    ends = {end: begin for begin, end in inner.values()}
    for m in _NUMBER.finditer(body):
        compares, register, number = m.groups()
        if not compares:
            if register not in inner:
                yield m.span(3)
        elif int(number) >= _FEWEST_ITERATIONS and not _ends_a_loop(body, m.end(), ends):
            yield m.span(3)


def _ends_a_loop(body: str, place: int, ends: Mapping[int, int]) -> bool:
    """Whether the line after a place is the end of an innermost loop."""
    line = body.find("\n", place + 1)
    stop = body.find(",", body.find(",", place + 1) + 1) + 1
    return stop in ends and (line < 0 or stop < line)


def _between(body: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    starts = [0, *(b for _, b in spans)]
    return [body[a:b] for a, b in zip(starts, [*(a for a, _ in spans), len(body)], strict=True)]


def _written(body: str, spans: Sequence[tuple[int, int]], parameters: Mapping[int, int]) -> str:
    """The lines with parameters in place of some numbers."""
    if not parameters:
        return body
    parts = _between(body, spans)
    named = [parameter(parameters[k]) if k in parameters else body[a:b] for k, (a, b) in enumerate(spans)]
    return "".join(part + name for part, name in zip(parts, [*named, ""], strict=True))
