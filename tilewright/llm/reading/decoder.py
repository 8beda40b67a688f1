"""Decoders behind an encoder: what they read is encoded once, and an answer is written behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from tilewright.frontends.decoders.source import READS
from tilewright.llm.decoder import ENCODED, CompiledDecoder, Decoder, Given, Tokens, array_of, check_length
from tilewright.runtime import Model, TensorInfo
from tilewright.runtime.errors import InputError, OptionError

READ = ("encoder_ids", "features")
"""Inputs of encoders: numbers of tokens [1, n], or features [1, channels, frames]."""


@runtime_checkable
class ReadingDecoder(Decoder, Protocol):
    """A decoder that reads something before it writes: its sequence is the answer alone."""

    @property
    def room(self) -> int:
        """The most positions that can be read."""

    @property
    def channels(self) -> int | None:
        """Of features that are read, two frames for each position; None where tokens are read."""

    def read(self, given: Any) -> None:
        """Forget all, and read something: tokens, or features f32[channels, frames]. InputError for what there is no
        room for; nothing has changed then."""


class CompiledReader(CompiledDecoder):
    """A compiled model with an encoder. It reads when the first tokens are fed: both are one call.

    The model has one input more than those of a `CompiledDecoder`, one of `READ`, and states that grow with a counter
    `encoded`. `rewind` forgets the answer alone, and a fork has read the same.
    """

    def __init__(self, model: Model, *, piece: int = 512) -> None:
        taken = next((info for info in model.inputs if info.name in READ), None)
        encoded = [state for state in model.states if state.counter == ENCODED]
        if taken is None or not encoded:
            raise OptionError(
                f"{model} is no encoder-decoder: it needs an input {' or '.join(READ)}, and states that grow with "
                f"'{ENCODED}'",
                hint="compile a folder of Hugging Face with an encoder-decoder",
            )
        super().__init__(model, piece=piece)
        self.takes: TensorInfo = taken
        self.room: int = min(int(state.info.shape[state.grows]) for state in encoded)
        self.channels: int | None = int(taken.shape[1]) if taken.dtype == "float32" else None
        self._sums = []
        self._words = _vocabulary_read(model)
        shape = tuple(d if isinstance(d, int) else 0 for d in taken.shape)
        self._nothing: np.ndarray = np.zeros(shape, taken.dtype)
        self._unread: np.ndarray = self._nothing

    @property
    def has_read(self) -> bool:
        """Whether there is something that an answer can be written to."""
        return bool(self._unread.size or self.model.state(ENCODED))

    def read(self, given: Any) -> None:
        """See `ReadingDecoder`."""
        found = self._checked(given)
        self.model.reset()
        self._length, self._unread = 0, found

    def feed(self, tokens: Tokens) -> np.ndarray:
        """See `Decoder`. InputError where nothing was read."""
        if not self.has_read:
            raise InputError("the model has read nothing yet", hint="read() something before tokens are fed")
        first = self._unread
        try:
            found = super().feed(tokens)
        except BaseException:
            if first.size:
                self.model.set_state(ENCODED, 0)
                self._unread = first
            raise
        self._unread = self._nothing
        return found

    def rewind(self, length: int) -> None:
        """See `Decoder`. What was read stays."""
        if check_length(self, length) == 0:
            self._set(0)
        else:
            super().rewind(length)

    def fork(self) -> Self:
        """See `Decoder`."""
        found = super().fork()
        found._unread = self._unread
        return found

    def _what_is_given(self, info: TensorInfo) -> Given:
        return self._read_now if info.name in READ else super()._what_is_given(info)

    def _read_now(self, tokens: np.ndarray, before: int) -> np.ndarray:
        """All in the first piece of a call."""
        given, self._unread = self._unread, self._nothing
        return given

    def _checked(self, given: Any) -> np.ndarray:
        info, array = self.takes, array_of(given)
        fixed = [d for d in info.shape[1:] if isinstance(d, int)]
        fits = array.ndim == len(info.shape) - 1 and list(array.shape[: len(fixed)]) == fixed
        kinds = "iu" if info.dtype.startswith("int") else "fiu"
        if not fits or not array.size or array.dtype.kind not in kinds:
            what = "nothing" if not array.size else f"{array.dtype}{list(array.shape)}"
            raise InputError(f"the model reads {info} without its first axis, at least one, not {what}")
        rows = array.shape[-1] if kinds == "iu" else (array.shape[-1] + 1) // 2
        if rows > self.room:
            raise InputError(
                f"{array.shape[-1]} {'tokens' if kinds == 'iu' else 'frames'} are more than there are positions to "
                f"read them: {self.room}",
                hint="shorten what is read, or read it in parts",
            )
        if kinds == "iu" and (wrong := array[(array < 0) | (array >= self._words)]).size:
            raise InputError(
                f"there is no token {wrong[0]}: the encoder's vocabulary has {self._words}",
                hint="use the tokeniser that belongs to this model",
            )
        return np.array(array, info.dtype)[None]  # a copy: it is read when tokens are fed


def _vocabulary_read(model: Model) -> int:
    """How many tokens the encoder of a model knows; what its integers hold, where the model does not say."""
    told = model.artifact.attached.get(READS)
    count = told.get("vocabulary") if isinstance(told, Mapping) else None
    return count if isinstance(count, int) else np.iinfo(np.int64).max


def compiled_decoder(model: Model) -> CompiledDecoder:
    """The decoder that a compiled model is. OptionError for one that is none."""
    reads = any(info.name in READ for info in model.inputs)
    return CompiledReader(model) if reads else CompiledDecoder(model)
