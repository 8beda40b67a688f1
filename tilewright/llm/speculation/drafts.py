"""Guesses of what comes next: from what was there before, or from a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.llm.decoder import Decoder, rewound


class Drafts(Protocol):
    """Guesses the tokens behind others."""

    def propose(self, past: Sequence[int], count: int) -> list[int]:
        """At most so many tokens that may follow `past`, which has one at least; none where there is no guess."""

    def fork(self) -> Drafts:
        """Guesses for another sequence, which goes on by itself."""


class Lookup:
    """What followed when the last few tokens were there before: texts repeat names, code, and what they are about
    (prompt lookup decoding, Saxena, 2023). The longest run of at most `longest` tokens that was there counts, and of
    several its last place."""

    def __init__(self, longest: int = 3) -> None:
        self._longest = longest
        self._known: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def propose(self, past: Sequence[int], count: int) -> list[int]:
        """See `Drafts`."""
        self._learn(past)
        for size in range(min(self._longest, len(past) - 1), 0, -1):
            place = self._places.get(tuple(past[len(past) - size :]))
            if place is not None:
                return list(past[place : place + count])
        return []

    def fork(self) -> Lookup:
        """See `Drafts`."""
        return Lookup(self._longest)

    def _learn(self, past: Sequence[int]) -> None:
        """Places behind all runs but the last ones, which nothing has followed yet."""
        known = len(self._known)
        if known > len(past) or self._known[-self._longest :] != list(past[max(0, known - self._longest) : known]):
            known, self._known, self._places = 0, [], {}
        for end in range(max(known, 1), len(past)):
            for size in range(1, min(self._longest, end) + 1):
                self._places[tuple(past[end - size : end])] = end
        self._known = list(past)


class DraftModel:
    """What a smaller model with the same vocabulary finds most likely. It has a decoder of its own, which follows."""

    def __init__(self, decoder: Decoder, size: int) -> None:
        """`size`: the tokens that there are."""
        self._decoder, self._size = decoder, size
        self._fed: list[int] = []

    def propose(self, past: Sequence[int], count: int) -> list[int]:
        """See `Drafts`."""
        count = min(count, self._decoder.context - len(past))
        if count <= 0:
            return []
        known = rewound(self._decoder, min(_common(self._fed, past), len(past) - 1, self._decoder.length))
        self._fed = list(past[:known])
        found: list[int] = []
        tokens = list(past[known:])
        while True:
            logits = self._decoder.feed(tokens)
            self._fed += tokens
            tokens = [int(logits[: self._size].argmax())]
            found += tokens
            if len(found) == count:
                return found

    def fork(self) -> DraftModel:
        """See `Drafts`."""
        found = DraftModel(self._decoder.fork(), self._size)
        found._fed = list(self._fed)
        return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = min(len(one), len(other))
    different = np.flatnonzero(np.array(one[:count]) != np.array(other[:count]))
    return int(different[0]) if different.size else count
