"""Sequences that are forks of one decoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from tilewright.llm.decoder import Decoder, check_length
from tilewright.llm.sequences.open import Handle, OpenSequences, Part, errors_of
from tilewright.runtime.errors import InputError, OptionError


class ForkedSequences(OpenSequences[Decoder]):
    """Forks of one decoder, fed one after the other: each takes the time that it takes alone.

    The decoder that is given stays as it is. Where a call fails half way, sequences of a decoder that cannot rewind so
    far may be closed.
    """

    lanes = 1

    def __init__(self, decoder: Decoder, slots: int = 64) -> None:
        super().__init__(slots)
        self.vocabulary, self.context = decoder.vocabulary, decoder.context
        self._empty = decoder.fork()
        self._empty.rewind(0)

    def open(self, like: Handle | None = None) -> Handle:
        """See `Sequences`."""
        return self._added((self._empty if like is None else self._of(like)).fork)

    def close(self, handle: Handle) -> None:
        """See `Sequences`."""
        self._of(handle)
        del self._open[handle]

    def rewind(self, handle: Handle, length: int) -> None:
        """See `Sequences`. OptionError where the decoder keeps sums of its past."""
        decoder = self._of(handle)
        with errors_of(handle):
            decoder.rewind(check_length(decoder, length))

    def feed(self, parts: Sequence[Part]) -> list[np.ndarray]:
        """See `Sequences`."""
        found = self._checked(parts)
        before = [decoder.length for decoder, _ in found]
        try:
            return [decoder.feed(tokens) for decoder, tokens in found]
        except BaseException:
            for (handle, _), length in zip(parts, before, strict=True):
                self._take_back(handle, length)
            raise

    def _take_back(self, handle: Handle, length: int) -> None:
        decoder = self._open[handle]
        if decoder.length != length:
            with suppress(OptionError, InputError):
                decoder.rewind(length)
            if decoder.length != length:
                del self._open[handle]
