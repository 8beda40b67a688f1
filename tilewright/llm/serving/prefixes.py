"""Begins of prompts whose caches are kept when their answers are over."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from tilewright.llm.sequences import Handle


@dataclass(frozen=True, eq=False)
class KeptPrefix:
    """A sequence that was fed these tokens, in pieces from its begin."""

    handle: Handle
    tokens: np.ndarray


class Prefixes:
    """At most `most` of them; the one that was used longest ago gives way. Closing sequences is the caller's affair:
    what it has to close is returned."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Handle, KeptPrefix] = OrderedDict()

    @property
    def positions(self) -> int:
        """The tokens of all of them."""
        return sum(kept.tokens.size for kept in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, prompt: np.ndarray) -> tuple[int, KeptPrefix | None]:
        """The one that has most of the begin of a prompt, and how many tokens these are."""
        found = [(common(kept.tokens, prompt), kept) for kept in self._kept.values()]
        return max(found, key=lambda pair: pair[0], default=(0, None))

    def used(self, kept: KeptPrefix) -> None:
        """It is kept longer than those that are not used."""
        self._kept.move_to_end(kept.handle)

    def keep(self, kept: KeptPrefix) -> list[Handle]:
        """Keep a sequence, in place of those that are begins of it; the sequences to close now, among which may be the
        new one."""
        size = kept.tokens.size
        if not self._most or not size or self.longest(kept.tokens)[0] == size:
            return [kept.handle]
        within = [
            old.handle for old in self._kept.values() if common(old.tokens, kept.tokens) == old.tokens.size
        ]
        for handle in within:
            del self._kept[handle]
        self._kept[kept.handle] = kept
        return within + ([self.drop()] if len(self._kept) > self._most else [])

    def drop(self) -> Handle:
        """Give up the one that was used longest ago: a sequence to close. KeyError where there is none."""
        return self._kept.popitem(last=False)[0]

    def drop_all(self, but: Handle | None) -> list[Handle]:
        """Give up all but one: the sequences to close."""
        dropped = [handle for handle in self._kept if handle != but]
        for handle in dropped:
            del self._kept[handle]
        return dropped


def common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens are the same at the begin of both."""
    count = min(one.size, other.size)
    different = np.flatnonzero(one[:count] != other[:count])
    return int(different[0]) if different.size else count
