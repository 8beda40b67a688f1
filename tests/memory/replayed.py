"""A planned program run on memory that holds, instead of elements, which value wrote each byte: the places that were
planned are right if every call finds its operands, and the caller the results, whole where they are said to lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.loops.kernel_info import kernel_info
from tilewright.program.memory.places import arena_of
from tilewright.program.memory.storage import Place

Home = tuple[str, int | str]
Piece = tuple[Value, int, int]
"""Bytes from one number to another of what a value has at first."""


class UnfitSizesError(Exception):
    """There are no such tensors: a program refuses these sizes when it is called."""


@dataclass
class _Memory:
    """Pieces of values by where they begin; what is written replaces what lay there."""

    pieces: dict[int, tuple[int, Value, int]] = field(default_factory=dict)

    def write(self, start: int, content: list[Piece]) -> None:
        end = start + sum(to - begin for _, begin, to in content)
        kept: dict[int, tuple[int, Value, int]] = {}
        for at, (stop, value, shift) in self.pieces.items():
            if at < start:
                kept[at] = (min(stop, start), value, shift)
            if stop > end and max(at, end) < stop:
                kept[max(at, end)] = (stop, value, shift)
        for value, begin, to in content:
            if to > begin:
                kept[start] = (start + to - begin, value, begin - start)
                start += to - begin
        self.pieces = {at: piece for at, piece in kept.items() if piece[0] > at}

    def read(self, start: int, end: int) -> list[Piece]:
        """What lies there, without what was never written."""
        found = []
        for at, (stop, value, shift) in sorted(self.pieces.items()):
            begin, to = max(at, start), min(stop, end)
            if begin < to:
                found.append((value, begin + shift, to + shift))
        return found


def replay(module: Module, sizes: Mapping[str, int]) -> None:
    """AssertionError where a byte is overwritten that is still needed, or lies outside of its memory. UnfitSizesError
    for sizes of dims (2 where none is given) that the program refuses."""
    _Replay(module, sizes).run()


class _Replay:
    def __init__(self, module: Module, sizes: Mapping[str, int]) -> None:
        self.module, self.sizes = module, sizes
        self.main: Func = module.main
        self.memories: dict[Home, _Memory] = {}
        self.content: dict[Value, list[Piece]] = {}
        self.at: dict[Value, Place] = {}
        self.room: dict[Home, int] = {("arena", 0): self._number(arena_of(self.main))}

    def _number(self, size: Sym) -> int:
        known = {v.name: self.sizes.get(v.name, 2) for v in size.vars}
        for v in size.vars:
            low, high = v.bounds
            if (low is not None and known[v.name] < low) or (high is not None and known[v.name] > high):
                raise UnfitSizesError(f"{v.name} is {known[v.name]}")
        try:
            return size.evaluate(known)
        except ZeroDivisionError as error:
            raise UnfitSizesError(str(size)) from error

    def _bytes(self, value: Value) -> int:
        size = value.tensor.dtype.bytes
        for dim in value.tensor.shape:
            if (n := self._number(dim)) < 0:
                raise UnfitSizesError(f"{value.type}")
            size *= n
        return size

    def run(self) -> None:
        for k, value in enumerate(self.main.args):
            self._begin(value, Place("input", k))
        for k, value in enumerate(self.main.returns):
            self.room["output", k] = self._bytes(value)
        states = (op for op in self.main.body.ops if op.name == "state")
        for k, op in enumerate(states):
            held = op.result.buffer
            size = held.dtype.bytes
            for dim in held.shape:
                size *= self._number(dim)
            self.room["state", k] = self.room["next", k] = size
            self.at[op.result] = Place("state", k)
        for alike, ops in groupby(self.main.body.ops, lambda op: op.attrs.get("concurrent", op.name)):
            together = list(ops)
            if isinstance(alike, int):
                self._calls(together)
            else:
                for op in together:
                    self._run(op)
        for k, value in enumerate(self.main.returns):
            self._holds(value, f"output {k}")
            self._home(value, {"output"})

    def _run(self, op: Op) -> None:
        match op.name:
            case "call":
                self._calls([op])
            case "constant":
                self._begin(op.result, Place("constant", constant=op.attrs["name"]))
            case "read":
                place = self.at[op.operands[0]]
                if not self._memory(place).pieces:
                    self._begin(op.result, place)
                self.at[op.result] = place
                self.content[op.result] = self._memory(place).read(0, self._bytes(op.result))
            case "update":
                self._holds(op.operands[1], "update")
                self._home(op.operands[1], {"state", "next"})
            case "reshape":
                (source,) = op.operands
                self.at[op.result], self.content[op.result] = self.at[source], self.content[source]
                if self._bytes(op.result) != self._bytes(source):
                    raise UnfitSizesError(str(op))
            case "slice":
                self._slice(op)
            case "concat":
                self._concat(op)
            case "state" | "return" | "assume" | "measure":
                pass
            case name:
                raise AssertionError(f"what does {name} do?")

    def _begin(self, value: Value, place: Place) -> None:
        size = self._bytes(value)
        self.at[value] = place
        self.room.setdefault(_home_of(place), size)
        self.content[value] = [(value, 0, size)]
        self._memory(place).write(self._number(place.offset), self.content[value])

    def _memory(self, place: Place) -> _Memory:
        return self.memories.setdefault(_home_of(place), _Memory())

    def _slice(self, op: Op) -> None:
        (source,) = op.operands
        start, step = 0, source.tensor.dtype.bytes
        axes = zip(op.attrs["starts"], op.result.tensor.shape, source.tensor.shape, strict=True)
        for first, size, whole in reversed(list(axes)):
            begin, count, room = (self._number(sym(n)) for n in (first, size, whole))
            if begin < 0 or begin + count > room:
                raise UnfitSizesError(str(op))
            start += begin * step
            step *= room
        size = self._bytes(op.result)
        place = self.at[source]
        self.at[op.result] = Place(place.base, place.index, place.offset + start, place.constant)
        self.content[op.result] = _part(self.content[source], start, start + size)

    def _concat(self, op: Op) -> None:
        first = self.at[op.operands[0]]
        start = self._number(first.offset)
        whole: list[Piece] = []
        for part in op.operands:
            place = self.at[part]
            size = sum(to - begin for _, begin, to in whole)
            if self._bytes(part):
                assert _home_of(place) == _home_of(first), f"{op} has parts in several memories"
                assert self._number(place.offset) == start + size, f"{op}: a part lies elsewhere"
            self._holds(part, str(op))
            whole += self.content[part]
        self.at[op.result], self.content[op.result] = first, _merged(whole)
        if self._bytes(op.result) != sum(to - begin for _, begin, to in whole):
            raise UnfitSizesError(str(op))

    def _calls(self, together: list[Op]) -> None:
        """Calls whose kernels may run at the same time, in any order, or one after another."""
        for op in together:
            assert op.name == "call", op
            for value in op.operands:
                self._holds(value, str(op.attrs["kernel"]))
        for op in together:
            self.at |= dict(zip(op.results, op.attrs["at"], strict=True))
            for n, value in enumerate(op.results):
                self._is_free(op, n, value, together)
        for op in together:
            for value in op.results:
                size = self._bytes(value)
                self.content[value] = [(value, 0, size)]
                place = self.at[value]
                start = self._number(place.offset)
                assert start >= 0 and (not size or start + size <= self.room[_home_of(place)]), (
                    f"{op.attrs['kernel']} writes {start} to {start + size} of {place.base} {place.index}, which has "
                    f"{self.room[_home_of(place)]} for {self.sizes}"
                )
                assert place.base in ("arena", "output", "state", "next")
                self._memory(place).write(start, self.content[value])

    def _is_free(self, op: Op, n: int, value: Value, together: list[Op]) -> None:
        """What a call writes lies apart from all that it and those beside it read and write, but for an operand that
        its kernel may overwrite."""
        pairs = kernel_info(self.module.funcs[op.attrs["kernel"]]).inplace
        for other in together:
            for k, read in enumerate(other.operands):
                may = other is op and (k, len(op.operands) + n) in pairs and self._range(read) == self._range(value)
                assert may or not self._cross(read, value), f"{op.attrs['kernel']} writes over an operand: {self.sizes}"
            for k, written in enumerate(other.results):
                is_same = other is op and k == n
                assert is_same or not self._cross(written, value), f"{op.attrs['kernel']}: results overlap"

    def _range(self, value: Value) -> tuple[Home, int, int]:
        start = self._number(self.at[value].offset)
        return _home_of(self.at[value]), start, start + self._bytes(value)

    def _cross(self, one: Value, other: Value) -> bool:
        if one not in self.at or other not in self.at:
            return False  # written by a call beside, which looks at both later
        (home, begin, end), (its, first, last) = self._range(one), self._range(other)
        return home == its and begin < last and first < end and begin < end and first < last

    def _holds(self, value: Value, who: str) -> None:
        place = self.at[value]
        start = self._number(place.offset)
        found = self._memory(place).read(start, start + self._bytes(value))
        assert _merged(found) == _merged(self.content[value]), (
            f"{who} for {self.sizes}: '{value.name}' is not at {place.base} {place.index}, {start}: "
            f"{[(v.name, a, b) for v, a, b in found]}, not {[(v.name, a, b) for v, a, b in self.content[value]]}"
        )

    def _home(self, value: Value, bases: set[str]) -> None:
        assert self.at[value].base in bases, f"'{value.name}' is in the {self.at[value].base}"


def _home_of(place: Place) -> Home:
    return place.base, place.constant if place.base == "constant" else place.index


def _part(content: list[Piece], start: int, end: int) -> list[Piece]:
    found, at = [], 0
    for value, begin, to in content:
        first, last = max(start, at), min(end, at + to - begin)
        if first < last:
            found.append((value, begin + first - at, begin + last - at))
        at += to - begin
    return found


def _merged(content: list[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for value, begin, to in content:
        if found and found[-1][0] is value and found[-1][2] == begin:
            found[-1] = value, found[-1][1], to
        elif to > begin:
            found.append((value, begin, to))
    return found
