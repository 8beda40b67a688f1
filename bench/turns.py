"""Who runs when: engines take turns, the others are stopped, and a turn that was disturbed is taken again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Turn:
    """Seconds of each call, and the share of the CPUs that others took meanwhile."""

    seconds: tuple[float, ...]
    disturbed: float


class Contestant(Protocol):
    """An engine whose processes can be stopped and continued."""

    def resume(self) -> None: ...

    def pause(self) -> None: ...

    def take_turn(self) -> Turn:
        """Raises ContestantLost when the engine gives no answer any more."""


class ContestantLost(Exception):
    """The engine failed or died; the message says how."""


@dataclass
class Standing:
    """The turns of an engine that count, how many were thrown away, and why it left before the end."""

    turns: list[Turn] = field(default_factory=list)
    repeated: int = 0
    lost: str = ""


@dataclass(frozen=True)
class Rules:
    """`rounds` turns each; a turn of which others took more than `tolerated` of the CPUs is taken again, up to
    `repeats` times, after which the least disturbed one counts."""

    rounds: int = 7
    tolerated: float = 0.05
    repeats: int = 3


def take_turns(contestants: Sequence[Contestant], rules: Rules) -> list[Standing]:
    """Let all take turns, the order rotating; all are paused before and after."""
    standings = [Standing() for _ in contestants]
    for number in range(rules.rounds):
        first = number % max(1, len(contestants))
        order = [*range(first, len(contestants)), *range(first)]
        for index in order:
            if not standings[index].lost:
                _turn(contestants[index], standings[index], rules)
    return standings


def _turn(contestant: Contestant, standing: Standing, rules: Rules) -> None:
    tried: list[Turn] = []
    contestant.resume()
    try:
        while not tried or (tried[-1].disturbed > rules.tolerated and len(tried) <= rules.repeats):
            tried.append(contestant.take_turn())
    except ContestantLost as error:
        standing.lost = str(error)
        return
    finally:
        contestant.pause()
    standing.turns.append(min(tried, key=lambda turn: turn.disturbed))
    standing.repeated += len(tried) - 1


def shortest_ms(call: Callable[[], object], seconds: float = 0.5) -> float:
    """The shortest call in ms, within some time, of three at least."""
    best, begin, calls = math.inf, time.perf_counter(), 0
    while calls < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best * 1e3
