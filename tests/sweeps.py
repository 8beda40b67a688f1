"""Sweeps: tests of one path over many cases, of which the ordinary suite tries a drawn sample and a nightly run all."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

FEW = 4
"""Cases of a test that a run tries in any case."""


def without_what_is_left_to_the_night(items: Sequence[pytest.Item], seed: int) -> list[pytest.Item]:
    """The tests, with a sample of the cases of each that is marked `sweep`."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sweep") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item.nodeid for name, found in cases.items() for item in sample(found, random.Random(f"{seed} {name}"))}
    return [item for item in items if item.get_closest_marker("sweep") is None or item.nodeid in kept]


def sample(cases: Sequence[pytest.Function], rng: random.Random) -> Iterator[pytest.Function]:
    """As many as the marker says; else of few cases in which each value of each parameter occurs those with most values
    that the ones before lack: half of them, or `FEW`. Which they are is drawn."""
    marker = cases[0].get_closest_marker("sweep")
    assert marker is not None
    drawn = rng.sample(cases, len(cases))
    if marker.args:
        yield from drawn[: marker.args[0]]
        return
    cover = [*_cover(drawn)]
    yield from cover[: max(FEW, (len(cover) + 1) // 2)]


def _cover(drawn: Sequence[pytest.Function]) -> Iterator[pytest.Function]:
    """Cases in which each value occurs: the next one is that with most values that are still left."""
    left = {value for case in drawn for value in _values(case)}
    while left:
        case = max(drawn, key=lambda case: len(left & _values(case)))  # of equal ones that which was drawn first
        yield case
        left -= _values(case)


def _values(case: pytest.Function) -> set[tuple[str, int]]:
    """The values of a case's parameters, which the cases of a test share. A test without parameters has none, and is
    left to the night."""
    params = getattr(case, "callspec", None)
    return {(name, id(value)) for name, value in params.params.items()} if params else set()
