"""Offsets as expressions, where sizes depend on dims that are not known.

A packing for some sizes says which tensors lie above which others; these orders hold for all sizes: each tensor begins
where the highest of those below it ends, so that nothing overlaps, whatever the dims are. Which packing needs little
memory depends on the dims, so several are compared at sizes far apart, with slots among them: a slot is as large as the
largest of the tensors that take turns in it. Where none is good everywhere, there are a few, and a call takes the one
that needs least for its sizes. What is on top of a step begins where the highest tensor of the step ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from math import inf
from types import MappingProxyType

import numpy as np

from tilewright.ir.sym import Sym, ge, maximum, minimum, select, sym
from tilewright.program.memory.packing.boxes import TimedBox
from tilewright.program.memory.packing.occupancy import Occupancy
from tilewright.program.memory.packing.pack import pack

_SAMPLES = (64, 1, 512, 8, 160, 2048)
"""Sizes of unknown dims for which packings are made, as far as a dim's bounds allow them; the first one counts as
typical."""

_COMPARED = (1, 3, 5, 8, 18, 33, 65, 127, 160, 512, 2048)
"""Sizes of two dims at which plans are compared."""

_ROUNDS = 12
"""So many packings more are made, each for the point where those before need most beside what is alive."""

_VARIED = 6
"""Of more dims, those on which most sizes depend are looked at by themselves."""

_SIMPLE = 1.005
"""A plan of slots, whose offsets are sums, is taken where no other one is smaller than by this factor."""

_CLOSE = 1.02
"""Where plans need no more than by this factor than what is alive, no other one is taken beside them."""

_TOGETHER = 3
"""So many plans are in one program at most: a call takes the one that takes least."""

_LONGEST = 4000
"""Parts of which the expression of a plan's size may consist."""

_UNIT = 64
"""Of the packings that are made for points, which need not fit exactly."""


NOTHING: Mapping[int, Sym] = MappingProxyType({})
"""On top of tensors."""


@dataclass(frozen=True)
class PlacedTensors:
    """Where each tensor begins, where what is on top of steps does, and what all take."""

    offsets: list[Sym]
    tops: dict[int, Sym]
    total: Sym


def pack_symbolic(
    sizes: Sequence[Sym], spans: Sequence[tuple[int, int]], budget: int, on_top: Mapping[int, Sym] = NOTHING
) -> PlacedTensors:
    """Places of tensors of `sizes`, multiples of what they are aligned to, of which each is needed from one step to
    another (inclusive), and of so many bytes `on_top` of all tensors of some steps; `budget` as for `pack`, for all
    packings that are compared."""
    compared = _Comparison(sizes, spans, on_top)
    slots, chosen = _slots(compared), _searched(compared, budget)
    if compared.excess(slots) <= compared.excess(*chosen) * _SIMPLE:
        return slots.place(sizes, on_top)
    return _least(*(plan.place(sizes, on_top) for plan in chosen))


def _searched(compared: _Comparison, budget: int) -> tuple[_Stack, ...]:
    """The best of the packings for the points to begin with; as long as these are not good at some other point, with
    one that is made for that."""
    share = budget // (compared.starts + _ROUNDS)
    known: dict[tuple[int, ...], _Stack] = {}
    points, chosen = [*range(compared.starts)], tuple[_Stack, ...]()
    for _ in range(1 + _ROUNDS):
        for point in points:
            found = _stacked(compared, point, share)
            if _length(found) <= _LONGEST:
                known.setdefault(tuple(compared.totals(found)), found)
        chosen = _chosen(compared, [*known.values()])
        if not chosen or compared.excess(*chosen) <= _CLOSE:
            break
        points = [int(compared.ratios(*chosen).argmax())]
    return chosen


def _least(first: PlacedTensors, *others: PlacedTensors) -> PlacedTensors:
    """The places of the plan that takes least, whatever the dims are."""
    found = first
    for other in others:
        is_enough = ge(other.total, found.total)
        offsets = [select(is_enough, a, b) for a, b in zip(found.offsets, other.offsets, strict=True)]
        tops = {step: select(is_enough, top, other.tops[step]) for step, top in found.tops.items()}
        found = PlacedTensors(offsets, tops, minimum(found.total, other.total))
    return found


def _chosen(compared: _Comparison, stacks: Sequence[_Stack]) -> tuple[_Stack, ...]:
    """The plan that is best at its worst point; where that one is not good, a few of which a call takes the least."""
    if not stacks:
        return ()
    ratios = np.stack([compared.ratios(stack) for stack in stacks])
    chosen: list[int] = []

    def best_beside(others: Sequence[int]) -> int:
        beside = ratios[list(others)].min(axis=0, initial=inf)
        return int(np.minimum(ratios, beside).max(axis=1).argmin())

    def excess() -> float:
        return float(ratios[chosen].min(axis=0, initial=inf).max())

    while len(chosen) < _TOGETHER and (before := excess()) > _CLOSE:
        chosen.append(best_beside(chosen))
        for k in range(len(chosen)):  # what was best without the others need not be so beside them
            chosen[k] = best_beside(chosen[:k] + chosen[k + 1 :])
        if excess() * _SIMPLE >= before:
            chosen.pop()
            break
    return tuple(stacks[n] for n in dict.fromkeys(chosen))


@dataclass(frozen=True, eq=False)
class _Stack:
    """For each tensor, in an order of placing, those whose ends it lies above; tensors of a slot are one here. `tops`
    are the highest tensors of the steps that have something on top (-1: none)."""

    below: list[list[int]]
    order: list[int]
    tops: dict[int, int] = field(default_factory=dict)

    def place(self, sizes: Sequence[Sym], on_top: Mapping[int, Sym]) -> PlacedTensors:
        ends: dict[int, Sym] = {-1: sym(0)}
        offsets = [sym(0)] * len(sizes)
        for n in self.order:
            offsets[n] = maximum(0, *(ends[k] for k in self.below[n]))
            ends[n] = offsets[n] + sizes[n]
        covered = {k for row in self.below for k in row}
        last = [end for n, end in ends.items() if n not in covered]
        return _placed(offsets, {step: ends[top] for step, top in self.tops.items()}, on_top, last)

    def totals(self, sizes: np.ndarray, on_top: Mapping[int, np.ndarray]) -> np.ndarray:
        """What all take at each of some points (rows of `sizes`)."""
        ends = np.zeros((len(sizes), 1 + sizes.shape[1]), np.int64)  # the last column is that of no tensor
        for n in self.order:
            start = ends[:, self.below[n]].max(axis=1) if self.below[n] else 0
            ends[:, n] = start + sizes[:, n]
        above = (ends[:, top] + on_top[step] for step, top in self.tops.items())
        return np.maximum.reduce([ends.max(axis=1), *above])


@dataclass(frozen=True, eq=False)
class _Slots:
    """The slot of each tensor, and how many slots lie below what is on top of steps."""

    slots: list[int]
    tops: dict[int, int]

    def place(self, sizes: Sequence[Sym], on_top: Mapping[int, Sym]) -> PlacedTensors:
        members: list[list[Sym]] = [[] for _ in range(1 + max(self.slots, default=-1))]
        for slot, size in zip(self.slots, sizes, strict=True):
            members[slot].append(size)
        starts = list(accumulate((maximum(*sizes) for sizes in members), initial=sym(0)))
        tops = {step: starts[count] for step, count in self.tops.items()}
        return _placed([starts[slot] for slot in self.slots], tops, on_top, [starts[-1]])

    def totals(self, sizes: np.ndarray, on_top: Mapping[int, np.ndarray]) -> np.ndarray:
        largest = np.zeros((len(sizes), 1 + max(self.slots, default=-1)), np.int64)
        for n, slot in enumerate(self.slots):
            largest[:, slot] = np.maximum(largest[:, slot], sizes[:, n])
        above = (largest[:, :count].sum(axis=1) + on_top[step] for step, count in self.tops.items())
        return np.maximum.reduce([largest.sum(axis=1), *above])


def _placed(
    offsets: list[Sym], tops: dict[int, Sym], on_top: Mapping[int, Sym], ends: Sequence[Sym]
) -> PlacedTensors:
    above: dict[Sym, dict[Sym, None]] = {}  # what is on top of the same place is there once
    for step, top in tops.items():
        above.setdefault(top, {})[on_top[step]] = None
    total = maximum(0, *ends, *(top + maximum(0, *sizes) for top, sizes in above.items()))
    return PlacedTensors(offsets, tops, total)


class _Comparison:
    """Tensors at some points: rows of sizes, what is on top of steps, and the most that is alive at a step."""

    def __init__(self, sizes: Sequence[Sym], spans: Sequence[tuple[int, int]], on_top: Mapping[int, Sym]) -> None:
        self.spans = spans
        every = [*sizes, *on_top.values()]
        starts = _starts(every)
        points = [*starts, *(point for point in _pairs(every) if point not in starts)]
        self.starts = len(starts)
        env = {name: np.array([point[name] for point in points], np.int64) for name in points[0]}
        columns = [np.broadcast_to(_evaluated(size, env), len(points)) for size in sizes]
        self.sizes = np.stack(columns, axis=1).clip(0) if columns else np.zeros((len(points), 0), np.int64)
        self.on_top = {step: np.broadcast_to(_evaluated(n, env), len(points)).clip(0) for step, n in on_top.items()}
        self.bounds = _most_alive(self.sizes, spans, self.on_top)
        self._totals: dict[_Stack | _Slots, np.ndarray] = {}

    def totals(self, plan: _Stack | _Slots) -> np.ndarray:
        """What a plan takes at each point."""
        if plan not in self._totals:
            self._totals[plan] = plan.totals(self.sizes, self.on_top)
        return self._totals[plan]

    def ratios(self, *plans: _Stack | _Slots) -> np.ndarray:
        """How many times what is alive the least that one of some plans takes, at each point."""
        least = np.minimum.reduce([self.totals(plan) for plan in plans])
        return np.where(self.bounds > 0, least / np.maximum(self.bounds, 1), 1.0)

    def excess(self, *plans: _Stack | _Slots) -> float:
        """The same where it is most; infinite where there is no plan."""
        return float(self.ratios(*plans).max()) if plans else inf


def _starts(sizes: Sequence[Sym]) -> list[dict[str, int]]:
    """Points for which packings are made: of several dims each has each size once beside typical ones, and all have
    the same."""
    bounds = _bounds(sizes)
    points = []
    for size in _SAMPLES:
        points.append(_point(bounds, size, {}))
        points += [_point(bounds, _SAMPLES[0], {name: size}) for name in _varied(sizes)]
    return _once(points)


def _pairs(sizes: Sequence[Sym]) -> list[dict[str, int]]:
    """Points at which plans are compared: each two dims have all pairs of sizes, beside usual and least others."""
    bounds, points = _bounds(sizes), []
    varied = _varied(sizes)
    for usual in (_SAMPLES[0], 1):
        for a, b in combinations(varied, 2):
            points += [_point(bounds, usual, {a: n, b: m}) for n in _COMPARED for m in _COMPARED]
        points += [_point(bounds, usual, {name: n}) for name in varied for n in _COMPARED]
    return _once(points)


_Bounds = Sequence[tuple[str, tuple[int | None, int | None]]]


def _bounds(sizes: Sequence[Sym]) -> _Bounds:
    return sorted({(v.name, v.bounds) for size in sizes for v in size.vars})


def _point(dims: _Bounds, usual: int, others: Mapping[str, int]) -> dict[str, int]:
    """Usual sizes, but for some, as far as the bounds of dims allow them."""
    chosen = {name: others.get(name, usual) for name, _ in dims}
    return {name: max(lo or 0, min(chosen[name], chosen[name] if hi is None else hi)) for name, (lo, hi) in dims}


def _once(points: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    return list({tuple(point.values()): point for point in points}.values())


def _varied(sizes: Sequence[Sym]) -> list[str]:
    """The names of dims that differ from the others at some points, in alphabetical order."""
    counts = Counter(name for size in sizes for name in {v.name for v in size.vars})
    return sorted(sorted(counts, key=lambda name: (-counts[name], name))[:_VARIED])


def _evaluated(size: Sym, env: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(size.evaluate_numpy(env), np.int64)


def _most_alive(
    sizes: np.ndarray, spans: Sequence[tuple[int, int]], on_top: Mapping[int, np.ndarray]
) -> np.ndarray:
    changes = np.zeros((len(sizes), 2 + max((*(last for _, last in spans), *on_top), default=0)), np.int64)
    for n, (first, last) in enumerate(spans):
        changes[:, first] += sizes[:, n]
        changes[:, last + 1] -= sizes[:, n]
    alive = changes.cumsum(axis=1)
    for step, bytes in on_top.items():
        alive[:, step] += bytes
    return alive.max(axis=1)


def _slots(compared: _Comparison) -> _Slots:
    """Largest at the first point first, each into the first slot that is free for all of its life."""
    spans, typical = compared.spans, compared.sizes[0]
    taken = Occupancy(1 + max((last for _, last in spans), default=0))
    slots = [0] * len(spans)
    for n in sorted(range(len(spans)), key=lambda n: (-typical[n], spans[n][0])):
        slots[n] = taken.take(*spans[n], 1)
    tops = dict.fromkeys(compared.on_top, 0)
    for step in tops:
        alive = (1 + slot for slot, (first, last) in zip(slots, spans, strict=True) if first <= step <= last)
        tops[step] = max(alive, default=0)
    return _Slots(slots, tops)


def _stacked(compared: _Comparison, point: int, budget: int) -> _Stack:
    """The order of tensors above each other in a packing for a point."""
    spans = compared.spans
    sizes = [-(-int(size) // _UNIT) for size in compared.sizes[point]]
    boxes = [TimedBox(size, first, last) for size, (first, last) in zip(sizes, spans, strict=True)]
    on_top = {step: -(-int(sizes[point]) // _UNIT) for step, sizes in compared.on_top.items()}
    offsets = pack(boxes, budget, on_top).offsets
    order = sorted(range(len(boxes)), key=lambda n: (offsets[n], sizes[n] > 0, n))
    rank = {n: k for k, n in enumerate(order)}
    below: list[list[int]] = [[] for _ in boxes]
    under = [0] * len(boxes)  # sets of all that lies below, as bits
    skyline = _Skyline()
    for n in order:
        covered = 0
        for k in sorted(skyline.cover(*spans[n], n), key=rank.__getitem__, reverse=True):
            if not covered >> k & 1:
                below[n].append(k)
                covered |= under[k] | 1 << k
        under[n] = covered
    return _Stack(below, order, {step: skyline.top(step) for step in compared.on_top})


class _Skyline:
    """The tensor that was placed last at each step: all others of the step lie below it."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # of the steps in a row that have the same one, or none (-1)
        self._tops: list[int] = []

    def cover(self, first: int, last: int, n: int) -> set[int]:
        """Place a tensor; those that it hides at one of its steps."""
        begin, end = bisect_left(self._starts, first), bisect_right(self._starts, last)
        before = self._tops[begin - 1] if begin else -1
        at_end = self._tops[end - 1] if end else -1
        goes_on = end < len(self._starts) and self._starts[end] == last + 1
        hidden = {*self._tops[begin:end]}
        if begin == len(self._starts) or self._starts[begin] != first:
            hidden.add(before)
        self._starts[begin:end] = [first] if goes_on else [first, last + 1]
        self._tops[begin:end] = [n] if goes_on else [n, at_end]
        return hidden - {-1}

    def top(self, step: int) -> int:
        """The tensor that was placed last at a step; -1 where there is none."""
        at = bisect_right(self._starts, step)
        return self._tops[at - 1] if at else -1


def _length(plan: _Stack) -> int:
    """About how many parts the expression of all bytes has, written out."""
    lengths: dict[int, int] = {}
    for n in plan.order:
        lengths[n] = 1 + sum(lengths[k] for k in plan.below[n])
    return max(lengths.values(), default=0) + sum(lengths[k] for k in {*plan.tops.values()} - {-1})
