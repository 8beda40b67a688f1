"""The figures of `tilewright cost`, from the formulas of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.checks.lengths import LengthCount, SequenceCosts
from tilewright.checks.polynomials import Polynomial
from tilewright.checks.recurrent_peer import RecurrentPeer, recurrent_peer
from tilewright.checks.serial import SerialWork
from tilewright.llm.pace import TokenTimes, slope

KINDS = ("cached", "recomputed")
"""With a cache, and with everything computed again for each token."""

_SAMPLES = 9
"""Lengths at which the estimate is made where times of all lengths between are added up."""


@dataclass(frozen=True)
class CostTable:
    """All figures for a prompt and so many new tokens; times of single tokens at `lengths`, estimated and perhaps
    measured."""

    costs: SequenceCosts
    prompt: int
    new: int
    lengths: tuple[int, ...]
    serial: SerialWork
    peer: RecurrentPeer | None
    measured: tuple[TokenTimes, ...] = ()

    @classmethod
    def of(cls, costs: SequenceCosts, prompt: int, new: int, lengths: Sequence[int]) -> CostTable:
        end = prompt + new - 1
        powers = [1 << k for k in range(4, 40) if 1 << k < end]
        found = tuple(sorted(set(lengths) or {*powers[-6:], end}))
        serial = costs.serial(prompt)
        peer = recurrent_peer(serial.flops // prompt, costs.layers, prompt) if serial.flops >= prompt else None
        return cls(costs, prompt, new, found, serial, peer)

    @property
    def kinds(self) -> tuple[str, ...]:
        """A model that keeps nothing from call to call has no choice."""
        return KINDS if self.costs.has_cache else KINDS[1:]

    @property
    def amounts(self) -> dict[str, LengthCount]:
        """What is counted, by name."""
        return {"operations": self.costs.flops, "bytes read": self.costs.read, "bytes written": self.costs.written}

    def estimated(self, kind: str, length: int) -> float | None:
        """Seconds of the last token of a sequence."""
        return self.costs.seconds(length - 1, 1) if kind == "cached" else self.costs.seconds(0, length)

    def seconds(self, kind: str) -> float | None:
        """Of the whole generation."""
        first, end = self.prompt, self.prompt + self.new
        if kind == "recomputed":
            return _added(lambda n: self.estimated(kind, n), first, end)
        steps = _added(lambda n: self.estimated(kind, n), first + 1, end)
        prompt = self.costs.seconds(0, first)
        return None if steps is None or prompt is None else prompt + steps

    def time_formula(self, kind: str) -> tuple[float, ...] | None:
        """Coefficients of the powers of n, the lowest first: a fit of the seconds estimated for a token at all lengths,
        of the degree that its operations have."""
        one = self.costs.flops.token if kind == "cached" else self.costs.flops.whole
        times = [self.estimated(kind, n) for n in self.lengths]
        if one is None or None in times or len(times) <= one.degree:
            return None
        fitted = np.polynomial.Polynomial.fit(self.lengths, [t or 0.0 for t in times], one.degree)
        return tuple(map(float, fitted.convert().coef))

    def exponents(self, kind: str) -> dict[str, float | int | None]:
        """How what a token takes grows: in the end by its operations; and over the lengths of the table by operations,
        by the estimated time, and as measured."""
        flops = self.costs.flops
        one = flops.token if kind == "cached" else flops.whole
        counts = [flops.at(n - 1, 1) if kind == "cached" else flops.at(0, n) for n in self.lengths]
        measured = [getattr(pace, kind) for pace in self.measured]
        return {
            "in the end": None if one is None else one.degree,
            "operations": _exponent(self.lengths, counts),
            "estimated": _exponent(self.lengths, [self.estimated(kind, n) for n in self.lengths]),
            "measured": _exponent(self.lengths, measured) if measured else None,
        }

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        costs, peer = self.costs, self.peer
        return {
            "schema": 1,
            "model": costs.model,
            "target": costs.target,
            "threads": costs.threads,
            "prompt": self.prompt,
            "new": self.new,
            "context": costs.context,
            "cache bytes per position": costs.cache,
            "state bytes": costs.state,
            "cache bytes": costs.cache * (self.prompt + self.new - 1),
            "formulas": {name: self._formulas(amount) for name, amount in self.amounts.items()},
            "generation": {
                kind: {name: amount.generation(self.prompt, self.new, cache=kind == "cached")
                       for name, amount in self.amounts.items()} | {"seconds": self.seconds(kind)}
                for kind in self.kinds
            },
            "seconds of a token": {kind: self.time_formula(kind) for kind in self.kinds},
            "lengths": [self._at(k) for k in range(len(self.lengths))],
            "exponents": {kind: self.exponents(kind) for kind in self.kinds},
            "prompt at once": _of_serial(self.serial),
            "recurrent network": None if peer is None else {
                "layers": peer.layers, "width": peer.width, "operations of a token": peer.flops,
                "state bytes": peer.state, **_of_serial(peer.serial),
            },
        }  # fmt: skip

    def _formulas(self, amount: LengthCount) -> dict[str, Any]:
        found = {"call": str(amount.formula), "token, recomputed": _of_polynomial(amount.whole)}
        if self.costs.has_cache:
            cached = {"token, cached": amount.token, "all tokens, cached": amount.cached}
            found |= {name: _of_polynomial(p) for name, p in cached.items()}
            found |= {"all tokens, recomputed": _of_polynomial(amount.recomputed)}
        return found

    def _at(self, k: int) -> dict[str, Any]:
        found: dict[str, Any] = {"length": self.lengths[k]}
        for kind in self.kinds:
            found[kind] = {"estimated": self.estimated(kind, self.lengths[k])}
            if self.measured:
                found[kind]["measured"] = getattr(self.measured[k], kind)
        return found


def _of_polynomial(found: Polynomial | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"formula": found.text("n"), "since": found.since, "coefficients": [*map(float, found.coefficients)]}


def _of_serial(work: SerialWork) -> dict[str, Any]:
    return {"operations": work.flops, "serial share": work.share, "products in a row": work.steps}


def _exponent(lengths: Sequence[int], values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    found = slope(lengths, known) if len(known) == len(lengths) else math.nan
    return None if math.isnan(found) else found


def _added(value: Callable[[int], float | None], first: int, end: int) -> float | None:
    """The sum over lengths from `first` to `end` - 1 of what is nearly straight between a few of them."""
    if first >= end:
        return 0.0
    count = end - first
    places = sorted({first + (count - 1) * k // (_SAMPLES - 1) for k in range(_SAMPLES)})
    known = [v for v in map(value, places) if v is not None]
    if len(known) < len(places):
        return None
    pairs = zip(pairwise(places), pairwise(known), strict=True)
    return known[-1] + sum((b - a) * (u + v) / 2 - (v - u) / 2 for (a, b), (u, v) in pairs)
