"""A model for several sequences as a decoder of one: what answers one after the other are written with."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from tilewright.frontends.decoders.source import KEYS_ALIKE, MOST_LANES
from tilewright.llm.decoder import Tokens
from tilewright.llm.sequences.compiled import CompiledSequences
from tilewright.llm.sequences.open import Handle, SequenceError
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError

_MOST_FORKS = (1 << 16) - 1
_PROBES = (8, 70)
"""Positions behind which rows are compared: before and behind the first boundary of `KEYS_ALIKE`."""


@dataclass(eq=False)
class _Shared:
    """The sequences that forks share, which one of them uses at a time; `left` are those whose forks are gone."""

    sequences: CompiledSequences
    lock: threading.RLock = field(default_factory=threading.RLock)
    left: deque[Handle] = field(default_factory=deque)
    alike: int | None = None  # rows of a call that have the bits that they have one by one, once that was asked

    def close_left(self) -> None:
        while self.left:
            self.sequences.close(self.left.popleft())

    @contextlib.contextmanager
    def of_one(self) -> Iterator[CompiledSequences]:
        """The sequences for a call about one of them, whose number nobody knows: errors are of that one."""
        with self.lock:
            self.close_left()
            try:
                yield self.sequences
            except SequenceError as error:
                cause = error.__cause__
                raise (cause if isinstance(cause, InputError) else error) from None


class SequenceDecoder:
    """One of the sequences of a model that was compiled for several, as a `Decoder`. Forks take turns in the model."""

    def __init__(self, model: Model, *, window: int | None = None) -> None:
        """`window`: positions behind which the model no longer attends to all. OptionError for a model that is not
        for several sequences."""
        self._set(model, _Shared(CompiledSequences(model, _MOST_FORKS)), window, None)

    def _set(self, model: Model, shared: _Shared, window: int | None, like: Handle | None) -> None:
        self.model, self._shared, self._window = model, shared, window
        self.vocabulary, self.context = shared.sequences.vocabulary, shared.sequences.context
        with shared.lock:
            shared.close_left()
            self._handle = shared.sequences.open(like)
        weakref.finalize(self, shared.left.append, self._handle).atexit = False

    @property
    def length(self) -> int:
        """The positions that are filled."""
        return self._shared.sequences.length(self._handle)

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`."""
        with self._shared.of_one() as sequences:
            (logits,) = sequences.feed([(self._handle, tokens)])
            return logits

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        """As `feed`, of at most eight tokens; the logits f32[n, vocabulary] behind each."""
        with self._shared.of_one() as sequences:
            return sequences.feed_rows(self._handle, tokens)

    def rewind(self, length: int) -> None:
        """See `Decoder`."""
        with self._shared.of_one() as sequences:
            sequences.rewind(self._handle, length)

    def fork(self) -> Self:
        """See `Decoder`. Pages of what is filled are shared until somebody writes to them."""
        found = type(self).__new__(type(self))
        found._set(self.model, self._shared, self._window, self._handle)
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
        with self._shared.of_one() as sequences:
            if self._shared.alike is None:
                self._shared.alike = min(rows_alike(sequences, length) for length in _PROBES)
            return self._shared.alike

    def apart(self, slots: int) -> CompiledSequences:
        """So many sequences at once, apart from this one and its forks; code and weights are shared."""
        return CompiledSequences(self.model, slots)


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
