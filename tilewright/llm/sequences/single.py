"""One of several sequences as a `Decoder`, so that what is written for one model and one text needs no second model."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from typing import Self

import numpy as np

from tilewright.frontends.decoders.source import KEYS_ALIKE, MOST_LANES
from tilewright.llm.decoder import Tokens, check_tokens
from tilewright.llm.sequences.compiled import CompiledSequences
from tilewright.llm.sequences.open import Handle

_PROBES = (8, 70)
"""Positions behind which rows are compared: before and behind the first boundary of `KEYS_ALIKE`."""


class _Shared:
    """Sequences that several decoders stand for, one thread at a time. Those of decoders that are gone are closed
    before the next call: collecting garbage may happen within one."""

    def __init__(self, sequences: CompiledSequences) -> None:
        self.sequences = sequences
        self.lock = threading.Lock()
        self.gone: deque[Handle] = deque()
        self.alike: int | None = None

    def __enter__(self) -> CompiledSequences:
        self.lock.acquire()
        while self.gone:
            self.sequences.close(self.gone.popleft())
        return self.sequences

    def __exit__(self, *error: object) -> None:
        self.lock.release()


class SequenceDecoder:
    """A `Decoder` that is one of the sequences of a model for several. Threads that feed different ones wait for each
    other; the sequence is closed when nobody has the decoder any more."""

    def __init__(self, sequences: CompiledSequences, *, window: int | None = None) -> None:
        """`window`: positions behind which the model no longer attends to all."""
        with (shared := _Shared(sequences)):
            handle = sequences.open()
        self._set(shared, handle, window)

    def _set(self, shared: _Shared, handle: Handle, window: int | None) -> None:
        self._shared, self._handle, self._window = shared, handle, window
        self.vocabulary, self.context = shared.sequences.vocabulary, shared.sequences.context
        weakref.finalize(self, shared.gone.append, handle).atexit = False

    def several(self, slots: int) -> CompiledSequences:
        """Sequences of the same model, apart from those of this one."""
        return CompiledSequences(copy.copy(self._shared.sequences.model), slots)

    @property
    def length(self) -> int:
        """The positions that are filled."""
        with self._shared as sequences:
            return sequences.length(self._handle)

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`."""
        check_tokens(self, tokens)
        with self._shared as sequences:
            return sequences.feed([(self._handle, tokens)])[0]

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        """As `feed`, of at most eight tokens; the logits f32[n, vocabulary] behind each."""
        check_tokens(self, tokens)
        with self._shared as sequences:
            return sequences.feed_rows(self._handle, tokens)

    def rewind(self, length: int) -> None:
        """See `Decoder`."""
        with self._shared as sequences:
            sequences.rewind(self._handle, length)

    def fork(self) -> Self:
        """See `Decoder`."""
        with self._shared as sequences:
            handle = sequences.open(self._handle)
        found = type(self).__new__(type(self))
        found._set(self._shared, handle, self._window)
        return found

    def alike(self, length: int) -> int:
        """How many tokens behind so many positions `feed_rows` takes with the bits that they have one by one: as many
        as were found alike when this was first asked, unless they cross a boundary at which sums over keys are cut, or
        a window begins."""
        if self._window is not None and length >= self._window:
            return 1
        here = min(self._window or self.context, self.context) - length
        return max(1, min(self._found_alike(), KEYS_ALIKE - (length + 1) % KEYS_ALIKE, here))

    def _found_alike(self) -> int:
        with self._shared as sequences:
            if self._shared.alike is None:
                self._shared.alike = min(rows_alike(sequences, length) for length in _PROBES)
            return self._shared.alike


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
