"""Several token sequences in one model, which are fed together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import numpy as np

from tilewright.llm.decoder import Growing, Tokens, check_tokens
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
"""Of sequences that are opened: where a number is not open, nobody takes it for another one."""

S = TypeVar("S", bound=Growing)


class OpenSequences(Generic[S]):
    """The sequences that are open, at most `slots`, by their numbers, and what is checked before anything runs."""

    def __init__(self, slots: int) -> None:
        """OptionError for what is no number of sequences."""
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots < 1 << 16:
            raise OptionError(f"slots={slots!r:.80} is not allowed: give a number of sequences, from 1 on")
        self.slots = slots
        self._open: dict[Handle, S] = {}

    def length(self, handle: Handle) -> int:
        """See `Sequences`."""
        return self._of(handle).length

    def _added(self, one: Callable[[], S]) -> Handle:
        """The number of one more. InputError where all slots are taken."""
        if len(self._open) == self.slots:
            raise InputError(f"all {self.slots} sequences are open", hint="close() one, or ask for more slots")
        made, handle = one(), next(_NUMBERS)
        self._open[handle] = made
        return handle

    def _of(self, handle: Handle) -> S:
        if handle not in self._open:
            raise SequenceError(handle, InputError("it is not open", hint="open() gives the number of one"))
        return self._open[handle]

    def _checked(self, parts: Sequence[Part]) -> list[tuple[S, np.ndarray]]:
        """The sequences of a call with their tokens. SequenceError names the first that cannot take its own, or that is
        there twice."""
        seen: dict[Handle, tuple[S, np.ndarray]] = {}
        for handle, tokens in parts:
            with errors_of(handle):
                if handle in seen:
                    raise InputError("it is in the call twice", hint="join its tokens to one part")
                seen[handle] = self._of(handle), check_tokens(self._of(handle), tokens)
        return [*seen.values()]


@contextmanager
def errors_of(handle: Handle) -> Iterator[None]:
    """What is wrong within is so for this sequence."""
    try:
        yield
    except SequenceError:
        raise
    except InputError as error:
        raise SequenceError(handle, error) from error
