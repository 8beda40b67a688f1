"""Several token sequences in one model, which are fed together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np

from tilewright.llm.decoder import Decoder, Tokens, check_length, check_tokens
from tilewright.runtime.errors import InputError, OptionError

Handle = int
"""A sequence that is open; no later one has the same number."""

Part = tuple[Handle, Tokens]
"""Tokens that a call appends to a sequence."""


class SequenceError(InputError):
    """One sequence cannot take part in a call, for a reason of its own; `handle` says which."""

    def __init__(self, handle: Handle, error: InputError) -> None:
        super().__init__(f"sequence {handle}: {error.what}", where=error.where, hint=error.hint)
        self.handle = handle


class Sequences(Protocol):
    """Several token sequences in one model.

    What follows a sequence does not depend on the others, nor on who is fed in the same call. One thread at a time
    calls it.
    """

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""

    @property
    def context(self) -> int:
        """The most positions of each sequence."""

    @property
    def slots(self) -> int:
        """The most sequences that are open at once."""

    def open(self, like: Handle | None = None) -> Handle:
        """A new sequence: an empty one, or one that continues by itself what another one has (a shared prefix).
        InputError where all slots are taken, or `like` is not open."""

    def close(self, handle: Handle) -> None:
        """Forget a sequence; its memory is given back. InputError where it is not open."""

    def length(self, handle: Handle) -> int:
        """The positions of a sequence that are filled."""

    def rewind(self, handle: Handle, length: int) -> None:
        """Forget all positions of a sequence from `length` on. InputError where it is longer than the sequence."""

    def feed(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """Append any number of tokens, at least one, to each of some sequences; the logits f32[vocabulary] behind the
        last of each, which belong to the caller. SequenceError names the first of them that cannot take its tokens:
        nothing has changed then, and the others can be fed without it."""


class ForkedSequences:
    """Forks of one decoder, fed one after the other: each takes the time that it takes alone.

    The decoder that is given stays as it is. Where a call fails half way, sequences of a decoder that cannot rewind
    may be closed.
    """

    def __init__(self, decoder: Decoder, slots: int = 64) -> None:
        check_slots(slots)
        self.vocabulary, self.context, self.slots = decoder.vocabulary, decoder.context, slots
        self._empty = decoder.fork()
        self._empty.rewind(0)
        self._open: dict[Handle, Decoder] = {}
        self._numbers = itertools.count()

    def open(self, like: Handle | None = None) -> Handle:
        """See `Sequences`."""
        before = self._empty if like is None else self._of(like)
        if len(self._open) == self.slots:
            raise all_taken(self.slots)
        handle = next(self._numbers)
        self._open[handle] = before.fork()
        return handle

    def close(self, handle: Handle) -> None:
        """See `Sequences`."""
        self._of(handle)
        del self._open[handle]

    def length(self, handle: Handle) -> int:
        """See `Sequences`."""
        return self._of(handle).length

    def rewind(self, handle: Handle, length: int) -> None:
        """See `Sequences`. OptionError where the decoder keeps sums of its past."""
        decoder = self._of(handle)
        try:
            decoder.rewind(check_length(decoder, length))
        except InputError as error:
            raise SequenceError(handle, error) from error

    def feed(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """See `Sequences`."""
        check_parts(parts)
        found = [(self._of(handle), self._checked(handle, tokens)) for handle, tokens in parts]
        before = [decoder.length for decoder, _ in found]
        try:
            return [decoder.feed(tokens) for decoder, tokens in found]
        except BaseException:
            for (handle, _), length in zip(parts, before, strict=True):
                self._take_back(handle, length)
            raise

    def _checked(self, handle: Handle, tokens: Tokens) -> np.ndarray:
        try:
            return check_tokens(self._of(handle), tokens)
        except InputError as error:
            raise SequenceError(handle, error) from error

    def _take_back(self, handle: Handle, length: int) -> None:
        decoder = self._open[handle]
        if decoder.length != length:
            with suppress(OptionError):
                decoder.rewind(length)
            if decoder.length != length:
                del self._open[handle]

    def _of(self, handle: Handle) -> Decoder:
        if handle not in self._open:
            raise not_open(handle)
        return self._open[handle]


def check_slots(slots: int) -> None:
    """OptionError for what is no number of sequences."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots < 1 << 16:
        raise OptionError(f"slots={slots!r:.80} is not allowed: give a number of sequences, from 1 on")


def check_parts(parts: Sequence[Part]) -> None:
    """SequenceError where a call names a sequence twice."""
    seen = set()
    for handle, _ in parts:
        if handle in seen:
            raise SequenceError(handle, InputError("it is in the call twice", hint="join its tokens to one part"))
        seen.add(handle)


def not_open(handle: Handle) -> SequenceError:
    return SequenceError(handle, InputError("it is not open", hint="open() gives the number of one"))


def all_taken(slots: int) -> InputError:
    return InputError(f"all {slots} sequences are open", hint="close() one, or ask for more slots")
