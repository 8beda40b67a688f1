"""What generation needs of a language model: tokens in, logits of the next one out, and a past that can be cut off and
shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from tilewright.runtime.errors import InputError

Tokens = Sequence[int] | np.ndarray
"""Numbers of tokens, in the order of the text."""


class Decoder(Protocol):
    """A model of token sequences with the sequence that it has been fed so far.

    One sequence at a time is fed by one thread; forks are independent of each other, and may be fed at the same time.
    """

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: those that can be fed are 0 to `vocabulary` - 1."""

    @property
    def context(self) -> int:
        """The most positions that the sequence may have."""

    @property
    def length(self) -> int:
        """The positions that are filled."""

    def feed(self, tokens: Tokens) -> np.ndarray:
        """Append tokens, at least one; the logits f32[vocabulary] of the token behind the last of them, which belong to
        the caller. InputError for tokens that do not exist or for which the context has no room: nothing has changed
        then."""

    def rewind(self, length: int) -> None:
        """Forget all positions from `length` on. InputError where it is longer than the sequence."""

    def fork(self) -> Self:
        """The same sequence, which continues by itself; weights and code are shared."""


def check_tokens(decoder: Decoder, tokens: Tokens) -> np.ndarray:
    """The tokens as i64[n]; InputError for those that cannot be fed to the decoder now."""
    array = np.asarray(tokens)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
        what = "none" if array.size == 0 else f"an array {array.dtype}{list(array.shape)}"
        raise InputError(f"tokens are a list of integers, at least one, not {what}")
    wrong = array[(array < 0) | (array >= decoder.vocabulary)]
    if wrong.size:
        raise InputError(
            f"there is no token {wrong[0]}: the vocabulary has {decoder.vocabulary}",
            hint="use the tokeniser that belongs to this model",
        )
    if array.size > decoder.context - decoder.length:
        raise InputError(
            f"{array.size} tokens behind {decoder.length} are more than the context of {decoder.context} positions",
            hint="shorten the text, rewind(), or compile the model with a larger context",
        )
    return array.astype(np.int64, copy=False)


def check_length(decoder: Decoder, length: int) -> int:
    """InputError unless the sequence has at least so many positions."""
    if (
        isinstance(length, bool)
        or not isinstance(length, int | np.integer)
        or not 0 <= length <= decoder.length
    ):
        raise InputError(f"cannot rewind to {length!r:.80}: the sequence has {decoder.length} positions")
    return int(length)
