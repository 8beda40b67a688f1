"""Measured times: of the kernels of a model for each of its units, and of whole models beside each other.

Models take turns, in an order that rotates, and what counts are the shortest times: what else the machine does only
adds to them. A form has to be faster in most rounds too.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.ir.core import Module, Op
from tilewright.ops.traits.derive import traits_of
from tilewright.quantization.network import Network
from tilewright.runtime import Model
from tilewright.runtime.errors import TilewrightError

ROUNDS = 7
RUNS = 3
"""Runs of a model in a round at least; a round takes 0.05 s or more."""

LEAST_GAIN = 0.03
"""Of a unit's time, that a smaller type has to save, and in `MOST_ROUNDS` of the rounds it must be faster at all."""

MOST_ROUNDS = 0.8

TURN_S = 0.08
TURN_CALLS = 3
"""Seconds of a turn of a whole model, and calls, at least. What else the machine does only adds to a call: the shortest
counts."""

LEAST_WHOLE_GAIN = 0.01

WHOLE_ROUNDS = 9

PRODUCTS = ("matmul", "conv", "winograd", "depthwise", "dot", "gemm")
"""Words in the names of kernels that multiply."""

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class UnitTimes:
    """Seconds of the kernels of each unit, and of all kernels that belong to none."""

    units: dict[str, float]
    others: float


def unit_times(compiled: Model, module: Module, network: Network, feeds: Sequence[Feed]) -> UnitTimes:
    """Of one round: the sum over the feeds."""
    owner = _owners(module, network)
    units = {unit.name: 0.0 for unit in network.units}
    others = 0.0
    for feed in feeds:
        for found in compiled.profile(dict(feed), RUNS):
            unit = owner.get(found.node) if any(word in found.kernel for word in PRODUCTS) else None
            if unit is None:
                others += found.seconds
            else:
                units[unit] += found.seconds
    return UnitTimes(units, others)


def _owners(module: Module, network: Network) -> dict[str, str]:
    """The unit of each node: of the layer that it is, or the next one above it, unless other products lie between. A
    layer that another one above it reads is further away: `x + layer(x)` belongs to the layer, not to what made x."""
    layers = {layer.node: unit.name for unit in network.units for layer in unit.layers}
    found: dict[str, str] = {}
    for start in module.main.body.ops:
        above = _layers_above(start, layers)
        if len(above) > 1:
            above = [a for a in above if not any(a in _operators_above(b) for b in above)]
        if above:
            found.setdefault(start.loc.node, layers[above[0].loc.node])
    return found


def _layers_above(start: Op, layers: Mapping[str, str]) -> list[Op]:
    """It, or the layers that are reached from it through no other product, the nearest first."""
    found = []
    pending, seen = deque([start]), set[Op]()
    while pending:
        op = pending.popleft()
        if op in seen:
            continue
        seen.add(op)
        if op.loc.node in layers:
            found.append(op)
        elif not traits_of(op).sums_products:
            pending.extend(_producers(op))
    return found


def _operators_above(start: Op) -> set[Op]:
    """All that its operands are computed from."""
    pending, found = _producers(start), set[Op]()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending.extend(_producers(op))
    return found


def _producers(op: Op) -> list[Op]:
    return [value.op for value in op.operands if value.op is not None]


def gains(base: Sequence[UnitTimes], other: Sequence[UnitTimes]) -> dict[str, tuple[float, float]]:
    """For each unit the seconds that the other form saves (0 where it does not for sure), and those of its float32
    form, both of the shortest rounds. What kernels between units take longer is charged to the units by their times."""
    extra = min(t.others for t in other) - min(t.others for t in base)
    shortest = {name: min(t.units[name] for t in base) for name in base[0].units}
    total = sum(shortest.values()) or 1.0
    found = {}
    for name, before in shortest.items():
        charge = max(extra, 0.0) * before / total
        saved = before - min(t.units[name] for t in other) - charge
        wins = sum(a.units[name] > b.units[name] + charge for a, b in zip(base, other, strict=True))
        is_sure = wins >= MOST_ROUNDS * len(base)
        found[name] = (saved if is_sure and saved > LEAST_GAIN * before else 0.0, before)
    return found


def time_kinds(
    models: Mapping[str, Module],
    network: Network,
    feeds: Sequence[Feed],
    threads: int | None,
    progress: Callable[[str, int, int], None],
) -> tuple[dict[str, dict[str, tuple[float, float]]], list[str]]:
    """`gains` of models in which all layers have a kind, by kind, against the one named "float32"; and which could not
    be compiled. A kind in which every unit was slower too often to be faster for sure is timed no further."""
    compiled: dict[str, Model] = {}
    remarks = []
    for place, (kind, model) in enumerate(models.items()):
        progress("compiling variants", place, len(models))
        try:
            compiled[kind] = compile_model(model, threads=threads, cache=False, profile=True)
        except TilewrightError as error:
            if kind == "float32":
                raise
            remarks.append(f"{kind} cannot be compiled: {error.what}")
    rounds: dict[str, list[UnitTimes]] = {kind: [] for kind in compiled}
    hopeless: set[str] = set()
    for number in range(ROUNDS):
        progress("timing", number, ROUNDS)
        turn = [kind for kind in compiled if kind not in hopeless]
        for kind in turn[number % len(turn) :] + turn[: number % len(turn)]:
            rounds[kind].append(unit_times(compiled[kind], models[kind], network, feeds))
        hopeless |= {k for k in turn if k != "float32" and _is_hopeless(rounds["float32"], rounds[k])}
    base = rounds.pop("float32")
    return {kind: gains(base[: len(found)], found) for kind, found in rounds.items()}, remarks


def _is_hopeless(base: Sequence[UnitTimes], other: Sequence[UnitTimes]) -> bool:
    """Whether no unit can win in `MOST_ROUNDS` any more."""
    most = ROUNDS - math.ceil(MOST_ROUNDS * ROUNDS)
    lost = {
        name: sum(b.units[name] >= a.units[name] for a, b in zip(base, other, strict=True))
        for name in base[0].units
    }
    return min(lost.values(), default=0) > most


@dataclass(frozen=True)
class Comparison:
    """Seconds of a call of two models, the shortest that were seen, and in which share of how many rounds the second
    was faster."""

    before: float
    after: float
    wins: float
    rounds: int = WHOLE_ROUNDS

    @property
    def has_gain(self) -> bool:
        return self.after < (1 - LEAST_WHOLE_GAIN) * self.before

    @property
    def is_faster(self) -> bool:
        """Also by two standard deviations of rounds that chance decides."""
        return self.has_gain and self.wins * self.rounds >= self.rounds / 2 + math.sqrt(self.rounds)


def compare(before: Model, after: Model, feeds: Sequence[Feed]) -> Comparison:
    """Whole models, in turns; in more of them where the second has the shorter times, but not often enough."""
    times: tuple[list[float], list[float]] = ([], [])
    found = _compared(before, after, feeds, WHOLE_ROUNDS + 1, times)  # the first round warms caches
    if found.is_faster or not found.has_gain:
        return found
    return _compared(before, after, feeds, 3 * WHOLE_ROUNDS, times)


def _compared(
    before: Model, after: Model, feeds: Sequence[Feed], rounds: int, times: tuple[list[float], list[float]]
) -> Comparison:
    """After so many rounds more than those that `times` holds."""
    for number in range(rounds):
        turns = [(before, times[0]), (after, times[1])]
        for model, seconds in turns if number % 2 else turns[::-1]:
            seconds.append(_turn(model, feeds))
    first, second = times[0][1:], times[1][1:]
    wins = sum(b < a for a, b in zip(first, second, strict=True)) / len(first)
    return Comparison(min(first), min(second), wins, len(first))


def _turn(model: Model, feeds: Sequence[Feed]) -> float:
    arguments = [[feed[info.name] for info in model.inputs] for feed in feeds]
    for given in arguments:
        model(*given)
    found: list[float] = []
    end = time.perf_counter() + TURN_S
    while len(found) < TURN_CALLS or time.perf_counter() < end:
        start = time.perf_counter()
        for given in arguments:
            model(*given)
        found.append(time.perf_counter() - start)
    return min(found)
