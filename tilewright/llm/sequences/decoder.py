"""A model for several sequences as a decoder of one: what answers one after the other are written with."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from tilewright.llm.decoder import Tokens
from tilewright.llm.sequences.compiled import CompiledSequences
from tilewright.llm.sequences.open import Handle, SequenceError
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError

_MOST_FORKS = (1 << 16) - 1


@dataclass(eq=False)
class _Shared:
    """The sequences that forks share, which one of them uses at a time; `left` are those whose forks are gone."""

    sequences: CompiledSequences
    lock: threading.RLock = field(default_factory=threading.RLock)
    left: deque[Handle] = field(default_factory=deque)

    def close_left(self) -> None:
        while self.left:
            self.sequences.close(self.left.popleft())


class SequenceDecoder:
    """One of the sequences of a model that was compiled for several, as a `Decoder`. Forks take turns in the model."""

    def __init__(self, model: Model, *, _shared: _Shared | None = None, _like: Handle | None = None) -> None:
        """OptionError for a model that is not for several sequences."""
        self._shared = shared = _shared or _Shared(CompiledSequences(model, _MOST_FORKS))
        self.model = model
        self.vocabulary, self.context = shared.sequences.vocabulary, shared.sequences.context
        with shared.lock:
            shared.close_left()
            self._handle = shared.sequences.open(_like)
        weakref.finalize(self, shared.left.append, self._handle)

    @property
    def length(self) -> int:
        """The positions that are filled."""
        return self._shared.sequences.length(self._handle)

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`."""
        with self._shared.lock:
            self._shared.close_left()
            try:
                (logits,) = self._shared.sequences.feed([(self._handle, tokens)])
            except SequenceError as error:
                raise _of_one(error) from None
            return logits

    def rewind(self, length: int) -> None:
        """See `Decoder`."""
        with self._shared.lock:
            try:
                self._shared.sequences.rewind(self._handle, length)
            except SequenceError as error:
                raise _of_one(error) from None

    def fork(self) -> Self:
        """See `Decoder`. Only what is filled is copied."""
        return type(self)(self.model, _shared=self._shared, _like=self._handle)

    def apart(self, slots: int) -> CompiledSequences:
        """So many sequences at once, apart from this one and its forks; code and weights are shared."""
        return CompiledSequences(copy.copy(self.model), slots)


def _of_one(error: SequenceError) -> InputError:
    """The error of a sequence that nobody knows by its number."""
    cause = error.__cause__
    return cause if isinstance(cause, InputError) else error
