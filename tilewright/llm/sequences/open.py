"""Several token sequences in one model, which are fed together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tilewright.llm.decoder import Tokens
from tilewright.runtime.errors import InputError, OptionError

Handle = int
"""A sequence that is open; no other one in the process has the same number, before or later."""

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

    @property
    def lanes(self) -> int:
        """How many sequences are computed together, at little more than the time of one; a call about more of them
        takes some after the others."""

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


_NUMBERS = itertools.count()


def new_handle() -> Handle:
    """The number of a sequence that is opened: where it is not open, nobody takes it for another one."""
    return next(_NUMBERS)


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
