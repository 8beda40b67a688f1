"""Sequences that are forks of one decoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from tilewright.llm.decoder import Decoder, Tokens, check_length, check_tokens
from tilewright.llm.sequences.open import (
    Handle,
    Part,
    SequenceError,
    all_taken,
    check_parts,
    check_slots,
    new_handle,
    not_open,
)
from tilewright.runtime.errors import InputError, OptionError


class ForkedSequences:
    """Forks of one decoder, fed one after the other: each takes the time that it takes alone.

    The decoder that is given stays as it is. Where a call fails half way, sequences of a decoder that cannot rewind so
    far may be closed.
    """

    lanes = 1

    def __init__(self, decoder: Decoder, slots: int = 64) -> None:
        check_slots(slots)
        self.vocabulary, self.context, self.slots = decoder.vocabulary, decoder.context, slots
        self._empty = decoder.fork()
        self._empty.rewind(0)
        self._open: dict[Handle, Decoder] = {}

    def open(self, like: Handle | None = None) -> Handle:
        """See `Sequences`."""
        before = self._empty if like is None else self._of(like)
        if len(self._open) == self.slots:
            raise all_taken(self.slots)
        handle = new_handle()
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
            with suppress(OptionError, InputError):
                decoder.rewind(length)
            if decoder.length != length:
                del self._open[handle]

    def _of(self, handle: Handle) -> Decoder:
        if handle not in self._open:
            raise not_open(handle)
        return self._open[handle]
