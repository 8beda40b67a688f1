"""Logits behind each of a few tokens, from a model for several sequences: which of them are those of one by one."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tilewright.frontends.decoders.source import KEYS_ALIKE, MOST_LANES
from tilewright.llm.decoder import Tokens, check_tokens
from tilewright.llm.sequences import CompiledSequences, SequenceDecoder
from tilewright.runtime import Model

_PROBES = (8, 70)
"""Positions behind which rows are compared: before and behind the first boundary of `KEYS_ALIKE`."""


class SequenceRows(SequenceDecoder):
    """A sequence that tells the logits of several tokens of a call, too."""

    def __init__(self, model: Model, *, window: int | None = None, **shared: Any) -> None:
        """`window`: positions behind which the model no longer attends to all."""
        super().__init__(model, **shared)
        self._window = window
        self._found = 0

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        """As `feed`, of at most eight tokens; the logits f32[n, vocabulary] behind each."""
        check_tokens(self, tokens)
        with self._shared.lock:
            self._shared.close_left()
            return self._shared.sequences.feed_rows(self._handle, tokens)

    def fork(self) -> Self:
        """See `Decoder`."""
        found = super().fork()
        found._window, found._found = self._window, self._found
        return found

    def alike(self, length: int) -> int:
        """How many tokens behind so many positions `feed_rows` takes with the bits that they have one by one: as many
        as were found alike when this was first asked, unless they cross a boundary at which sums over keys are cut, or
        a window begins."""
        if not self._found:
            with self._shared.lock:
                self._found = min(rows_alike(self._shared.sequences, length) for length in _PROBES)
        room = min(self._window or self.context, self.context) - length
        return max(1, min(self._found, KEYS_ALIKE - (length + 1) % KEYS_ALIKE, room))


def rows_alike(sequences: CompiledSequences, length: int) -> int:
    """How many rows of a call, fewer than `MOST_LANES`, have the bits that they have one by one, in some sequence of
    this length; 1 where there is no room to see."""
    most = min(MOST_LANES, sequences.context - length)
    if most < 2:
        return 1
    tokens = np.random.default_rng(0).integers(0, sequences.vocabulary, length + most)
    one = sequences.open()
    try:
        sequences.feed([(one, tokens[:length])])
        wanted = [sequences.feed([(one, [token])])[0] for token in tokens[length:]]
        for rows in range(most - 1, 1, -1):
            sequences.rewind(one, length)
            found = [*sequences.feed_rows(one, tokens[length : length + rows])]
            # the token behind them sees their keys and values, which must not differ either
            found += sequences.feed([(one, [tokens[length + rows]])])
            if all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=False)):
                return rows
    finally:
        sequences.close(one)
    return 1
