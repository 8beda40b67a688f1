"""A decoder that is fed guesses behind each token, and so often knows the next logits already."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, Self

import numpy as np

from tilewright.llm.decoder import Decoder, Tokens, check_length, check_tokens
from tilewright.llm.speculation.drafts import Drafts
from tilewright.llm.speculation.gains import Drafted, Gains
from tilewright.runtime.errors import OptionError

MOST_DRAFTS = 6
"""Tokens that are guessed at most: kernels for few rows take one more."""
_FIRST_DRAFTS = 2
"""Tokens that are guessed first; twice as many where all came true, and one more than did where not."""


class RowsDecoder(Decoder, Protocol):
    """A decoder that tells the logits behind each of a few tokens."""

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        """As `feed`, but the logits f32[n, vocabulary] behind each of the tokens."""

    def alike(self, length: int) -> int:
        """How many tokens behind so many positions may be fed by `feed_rows` with the same bits as one by one; 1 where
        they may not."""


class SpeculatingDecoder:
    """A `Decoder` to whoever feeds it: the logits are, to the bit, those of the decoder alone, whatever was guessed.

    Where a single token is fed, a few that may follow are guessed and fed with it. If the next token is the one that
    was guessed, its logits are there; otherwise the guesses are forgotten. So a choice of tokens, with its penalties,
    grammars and random numbers, needs to know nothing of guesses.
    """

    def __init__(
        self,
        decoder: RowsDecoder,
        drafts: Drafts,
        *,
        most: int = MOST_DRAFTS,
        drafted: Drafted | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`most`: tokens that are guessed at once. `drafted` counts, for this one and its forks. OptionError for a
        decoder that was fed something already: guesses are made from all of it."""
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise OptionError(f"most={most!r:.40} is not allowed: give a number of tokens, from 1 on")
        if decoder.length:
            raise OptionError("a decoder that was fed something cannot be guessed for", hint="rewind(0) before")
        self.vocabulary, self.context = decoder.vocabulary, decoder.context
        self.drafted = drafted or Drafted()
        self._decoder, self._drafts, self._most, self._clock = decoder, drafts, most, clock
        self._gains = Gains()
        self._past: list[int] = []
        self._guesses: list[int] = []
        self._rows = np.zeros((0, 0), np.float32)
        self._used = 0
        self._count = min(_FIRST_DRAFTS, most)
        self._seconds = 0.0

    @property
    def length(self) -> int:
        """The positions that are filled, guesses apart."""
        return len(self._past)

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`."""
        new = check_tokens(self, tokens).tolist()
        if len(new) == 1 and self._guesses[self._used : self._used + 1] == new:
            self._used += 1
            self._past += new
            self.drafted.accepted += 1
            return self._rows[self._used].copy()
        self._forget()
        try:
            logits = self._next(new[0]) if len(new) == 1 else self._decoder.feed(new)
        except BaseException:
            self._take_back()
            raise
        self._past += new
        return logits

    def rewind(self, length: int) -> None:
        """See `Decoder`."""
        length = check_length(self, length)
        self._forget()
        self._decoder.rewind(length)
        del self._past[length:]

    def fork(self) -> Self:
        """See `Decoder`."""
        self._forget()
        found = type(self).__new__(type(self))
        found.__dict__.update(self.__dict__)
        found._decoder, found._drafts = self._decoder.fork(), self._drafts.fork()
        found._past = list(self._past)
        return found

    def _next(self, token: int) -> np.ndarray:
        """The logits behind one token, with those behind guesses where there are any."""
        start = self._clock()
        room = min(self._count + 1, self._decoder.alike(self.length), self.context - self.length)
        guesses = []
        if room > 1 and self._gains.wanted():
            guesses = self._drafts.propose([*self._past, token], room - 1)
        if not guesses:
            logits = self._decoder.feed([token])
            self.drafted.plain += 1
            self._gains.plain(self._clock() - start)
            return logits
        rows = self._decoder.feed_rows([token, *guesses])
        self._rows, self._guesses, self._seconds = rows, guesses, self._clock() - start
        self.drafted.calls += 1
        self.drafted.proposed += len(guesses)
        return rows[0].copy()

    def _take_back(self) -> None:
        """Behind a call that failed: nothing is guessed, and what the decoder could not keep is forgotten."""
        self._guesses = []
        if self._decoder.length > len(self._past):
            self._decoder.rewind(len(self._past))
        del self._past[self._decoder.length :]

    def _forget(self) -> None:
        """Forget guesses that did not come true; how many did says how many are made next."""
        if self._guesses:
            self._gains.guessed(self._seconds, self._used + 1)
            guesses, self._guesses = self._guesses, []
            if self._used < len(guesses):
                self._decoder.rewind(len(self._past))
                self._count = self._used + 1
            else:
                self._count = min(2 * self._count, self._most)
            self._used = 0
