"""Which kernels of a program are computed by rows so that it fits into some memory, at the least cost.

The ops of a fused program are taken in their order. Each is computed as a whole, or is part of a cascade of consecutive
ops; the cheapest sequence of both in which no step needs more than the limit is found by dynamic programming. A kernel
on whole tensors may have a quicker form that is not computed by rows (Winograd's algorithm): a cascade costs what that
saves, too. Scratch memory of the threads counts at the step of its kernel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from tilewright.cost.conv.cascades import (
    ALIGNMENT,
    CLOSE,
    CYCLES_OF_A_PIECE,
    MOST_KERNELS,
    MOST_OPS,
    PIECES,
    TOO_MUCH,
    cycles_of_copy,
    cycles_of_weights,
)
from tilewright.graph.cascades.links import FUSED, Link
from tilewright.graph.cascades.rows import NoRows
from tilewright.graph.cascades.steps import (
    Cascade,
    JoinRows,
    MakeRows,
    PlaceRows,
    Step,
    bytes_of,
    is_in_lines,
    peak_of,
)
from tilewright.ir.core import Func, Op, Value
from tilewright.target.target import Target

ChosenCascade = tuple[int, int, int]
"""A cascade of the ops from the first number to the second (inclusive), in so many pieces."""


@dataclass(frozen=True)
class Need:
    """The most bytes of a plan at once, for these tensors at this op and as memory of the threads."""

    bytes: int
    values: tuple[Value, ...]
    op: Op


@dataclass(frozen=True)
class Fitted:
    """The cascades of a plan, from the first op on; extra cycles; where it needs most; and the ops that have not their
    other form."""

    cascades: tuple[ChosenCascade, ...]
    cycles: float
    need: Need
    plain: frozenset[Op] = frozenset()


@dataclass(frozen=True)
class OtherForm:
    """How an op is computed as a whole where that is quicker: the cycles that it saves, bytes of further tensors, and
    scratch memory of the threads."""

    cycles: float
    bytes: int
    scratch: int


@dataclass(frozen=True)
class Kernels:
    """What is known of the kernels of ops on whole tensors: bytes of scratch memory of the threads, other forms, bytes
    of weights, and the machine whose caches these are read from."""

    scratch: Mapping[Op, int] = field(default_factory=dict)
    others: Mapping[Op, OtherForm] = field(default_factory=dict)
    weights: Mapping[Op, int] = field(default_factory=dict)
    target: Target | None = None


@dataclass(frozen=True)
class _Tried:
    """A cascade in so many pieces: its own bytes at most, and extra cycles."""

    bytes: int
    cycles: float
    values: tuple[Value, ...]


class FusedProgram:
    """The ops of a fused function, which tensors of the arena are alive at each, and what is known of its kernels."""

    def __init__(self, func: Func, kernels: Kernels | None = None) -> None:
        self.kernels = Kernels() if kernels is None else kernels
        self.ops = [op for op in func.body.ops if op.name not in ("constant", "return")]
        self.roots = _roots(self.ops)
        given = {self._root(v) for v in func.returns}
        self.returned = {v for op in self.ops for v in op.results if self._root(v) in given}
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        for n, op in enumerate(self.ops):
            for v in (*op.operands, *op.results):
                root = self._root(v)
                if root.op is not None and root.op.name != "constant" and root not in given:
                    self.first.setdefault(root, n)
                    self.last[root] = n
        self.size = {v: bytes_of(v) for v in self.first}
        self.alone = [self._alive(n) for n in range(len(self.ops))]
        self.links: dict[tuple[Op, int], Link | NoRows] = {}
        self.cascades: dict[tuple[int, int], Cascade | None] = {}
        self.tried: dict[tuple[int, int, int], _Tried] = {}

    def _root(self, value: Value) -> Value:
        while value in self.roots:
            value = self.roots[value]
        return value

    def _alive(self, n: int) -> tuple[Value, ...]:
        return tuple(v for v, first in self.first.items() if first <= n <= self.last[v])

    def bytes(self, values: Sequence[Value]) -> int:
        return sum(self.size[v] for v in values)

    @property
    def need(self) -> Need:
        """What it needs as it is."""
        if not self.ops:
            return Need(0, (), Op("return", [], []))
        return max((self.need_alone(n) for n in range(len(self.ops))), key=lambda need: need.bytes)

    def need_alone(self, n: int) -> Need:
        """What is needed while an op is computed as a whole, not in its other form."""
        bytes = self.bytes(self.alone[n]) + self.kernels.scratch.get(self.ops[n], 0)
        return Need(bytes, self.alone[n], self.ops[n])

    def form_alone(self, n: int, limit: int) -> tuple[float, bool] | None:
        """The extra cycles of an op as a whole within a limit, and whether it has its other form; None where neither
        fits."""
        other = self.kernels.others.get(self.ops[n])
        if other is not None and self.bytes(self.alone[n]) + other.bytes + other.scratch <= limit:
            return 0.0, True
        if self.need_alone(n).bytes > limit:
            return None
        return (0.0 if other is None else other.cycles), False

    # Cascades

    def cascade(self, i: int, j: int) -> Cascade | None:
        """The cascade of the ops from i to j, if they are one."""
        if (i, j) not in self.cascades:
            try:
                self.cascades[i, j] = self._cascade(i, j)
            except NoRows:
                self.cascades[i, j] = None
        return self.cascades[i, j]

    def _cascade(self, i: int, j: int) -> Cascade:
        ops, inside = self.ops[i : j + 1], set(self.ops[i : j + 1])
        needed = [v for op in ops for v in op.results if any(u not in inside for u in v.users)]
        found = Cascade(ops, needed, self.links)
        for v in needed:
            if v in self.returned and not is_in_lines(v, found.links[v].axis):
                raise NoRows("an output of the model is not written by rows")
        return found

    def outside(self, i: int, j: int) -> tuple[Value, ...]:
        """Tensors that are alive while a cascade runs, and that it does not compute."""
        return tuple(v for v, first in self.first.items() if first < i <= self.last[v])

    def least(self, i: int, j: int) -> int:
        """Bytes that a cascade takes in any number of pieces: what is outside, and what is needed of it as a whole."""
        inside = set(self.ops[i : j + 1])
        wholes = {self._root(v) for op in inside for v in op.results if any(u not in inside for u in v.users)}
        return self.bytes(self.outside(i, j)) + self.bytes([v for v in wholes if v in self.size])

    def trial(self, i: int, j: int, pieces: int) -> _Tried:
        """What a cascade takes in so many pieces."""
        cascade = self.cascade(i, j)
        assert cascade is not None
        if (i, j, pieces) not in self.tried:
            self.tried[i, j, pieces] = self._tried(cascade, pieces)
        return self.tried[i, j, pieces]

    def _tried(self, cascade: Cascade, pieces: int) -> _Tried:
        try:
            steps = cascade.steps(pieces)
        except NoRows:  # a kernel joins rows with others, and pieces would cut them
            return _Tried(TOO_MUCH, inf, ())
        peak = peak_of(cascade, steps, self.returned, self.kernels.scratch)
        values = tuple(dict.fromkeys(b.value for b in peak.buffers))
        return _Tried(peak.bytes, self._cycles(cascade, steps), values)

    def _cycles(self, cascade: Cascade, steps: Sequence[Step]) -> float:
        """Cycles that the steps take more than the kernels on whole tensors."""
        others, weights = self.kernels.others, self.kernels.weights
        total = sum(others[op].cycles for op in cascade.ops if op in others)
        read = sum(weights.get(op, 0) for op in cascade.ops)  # before any of them is read again
        of_call = {
            op: CYCLES_OF_A_PIECE + cycles_of_weights(weights.get(op, 0), read, self.kernels.target)
            for op in cascade.ops
            if op.name == FUSED
        }
        total -= sum(of_call.values())
        for step in steps:
            match step:
                case MakeRows():
                    total += of_call.get(step.link.op, 0)
                case JoinRows():
                    total += cycles_of_copy(step.result.size)
                case PlaceRows():
                    total += cycles_of_copy(step.new.size)
        return total


def _roots(ops: Sequence[Op]) -> Mapping[Value, Value]:
    """Views, and the values in whose memory they lie."""
    found: dict[Value, Value] = {}
    for op in ops:
        if op.name != FUSED and len(op.operands) == 1:
            found[op.result] = op.operands[0]
        elif op.name != FUSED:  # parts that are joined
            found |= dict.fromkeys(op.operands, op.result)
    return found


# The choice


def fitted(program: FusedProgram, limit: int) -> Fitted | None:
    """The cheapest plan that takes no more than `limit` bytes at once; None where none is found."""
    count = len(program.ops)
    alone = [program.form_alone(n, limit) for n in range(count)]
    before = [0]  # how many of the ops before one are dearer than they were, or do not fit
    for form in alone:
        before.append(before[-1] + (form is None or form[0] > 0))
    cost: list[float] = [0.0] + [inf] * count
    way: list[tuple[int, int]] = [(0, 0)] * (count + 1)
    for i in range(count):
        if cost[i] == inf:
            continue
        form = alone[i]
        if form is not None and cost[i] + form[0] < cost[i + 1]:
            cost[i + 1], way[i + 1] = cost[i] + form[0], (i, 0)
        for j in range(i + 1, min(count, i + MOST_OPS)):
            if before[j + 1] == before[i] or cost[i] >= cost[j + 1] or program.least(i, j) > limit:
                continue
            pieces, cycles = _cheapest(program, i, j, limit, cost[j + 1] - cost[i])
            if pieces and cost[i] + cycles < cost[j + 1]:
                cost[j + 1], way[j + 1] = cost[i] + cycles, (i, pieces)
    if cost[count] == inf:
        return None
    return _plan(program, way, cost[count], [form is not None and form[1] for form in alone])


def _cheapest(program: FusedProgram, i: int, j: int, limit: int, most: float) -> tuple[int, float]:
    """The fewest pieces in which a cascade fits, as more take less memory, and its extra cycles, of which there are
    fewer than `most`; 0 where there are none."""
    outside = program.bytes(program.outside(i, j))
    cascade = program.cascade(i, j)
    choices = [] if cascade is None else _choices(cascade, most, limit - outside)

    def fits(pieces: int) -> bool:
        return outside + program.trial(i, j, pieces).bytes <= limit

    if not choices or not fits(choices[-1]):
        return 0, inf
    pieces = choices[bisect_left(choices, True, hi=len(choices) - 1, key=fits)]
    return pieces, program.trial(i, j, pieces).cycles


def _choices(cascade: Cascade, most: float, limit: int) -> list[int]:
    """In how many pieces a cascade may be computed for fewer than `most` extra cycles, where no step needs more than
    `limit` bytes by itself."""
    found: list[int] = []
    for pieces in PIECES:
        kernels = cascade.kernels(pieces)
        if CYCLES_OF_A_PIECE * float(kernels - len(cascade.ops)) >= most or (found and kernels > MOST_KERNELS):
            break
        found.append(pieces)
    return [pieces for pieces in found if cascade.least_bytes(pieces) <= limit]


def _plan(
    program: FusedProgram, way: Sequence[tuple[int, int]], cycles: float, others: Sequence[bool]
) -> Fitted:
    found: list[ChosenCascade] = []
    plain: set[Op] = set()
    need = Need(0, (), program.ops[0])
    k = len(program.ops)
    while k > 0:
        i, pieces = way[k]
        if pieces:
            trial = program.trial(i, k - 1, pieces)
            found.append((i, k - 1, pieces))
            outside = program.outside(i, k - 1)
            own = Need(program.bytes(outside) + trial.bytes, (*outside, *trial.values), program.ops[k - 1])
        else:
            own = program.need_alone(i)
            if others[i]:
                form = program.kernels.others[program.ops[i]]
                own = replace(own, bytes=program.bytes(program.alone[i]) + form.bytes + form.scratch)
        if pieces or not others[i]:
            plain.update(op for op in program.ops[i:k] if op in program.kernels.others)
        need = max(need, own, key=lambda n: n.bytes)
        k = i
    return Fitted(tuple(reversed(found)), cycles, need, frozenset(plain))


def least(program: FusedProgram, above: int) -> Fitted:
    """The plan that needs the least bytes, which is more than `above`."""
    low, high = above, program.need.bytes
    best = Fitted((), 0.0, program.need)
    while high - low > max(ALIGNMENT, high // CLOSE):
        middle = (low + high) // 2
        found = fitted(program, middle)
        if found is None:
            low = middle
        else:
            best, high = found, min(middle, found.need.bytes)
    return best
