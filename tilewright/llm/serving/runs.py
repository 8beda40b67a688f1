"""One answer that is computed, with how far its sequence is."""

from __future__ import annotations

import numpy as np

from tilewright.llm.generation import Draft
from tilewright.llm.sequences import Handle
from tilewright.llm.serving.requests import AnswerPart, Ticket
from tilewright.llm.tokens.tokenizer import Tokenizer


class AnswerRun:
    """An answer of a ticket. `handle` is its sequence, None before it begins; `fed` tokens of the prompt and of what
    was drawn are in it; `turn` is the step in which it was served last; `alone`: it begins where no other one is, as
    one could not be taken back to what it shares.

    A sequence that had to give way is fed again, later, in the same pieces: the text is the same.
    """

    def __init__(self, ticket: Ticket, index: int, tokenizer: Tokenizer, rows: int) -> None:
        self.ticket, self.index = ticket, index
        self.prompt = ticket.request.prompt
        wanted = ticket.request.wanted[index]
        self.draft = Draft(tokenizer, self.prompt.tolist(), wanted, rows)
        self.handle: Handle | None = None
        self.fed = self.reused = self.turn = 0
        self.alone = False
        self._told = 0

    @property
    def client(self) -> str:
        return self.ticket.request.client

    @property
    def order(self) -> tuple[int, int]:
        """Who came first."""
        return self.ticket.number, self.index

    @property
    def known(self) -> int:
        """The tokens that there are: those of the prompt, and those that were drawn."""
        return self.prompt.size + len(self.draft.drawn)

    @property
    def reading(self) -> bool:
        """Whether tokens of the prompt are left to be fed."""
        return self.fed < self.prompt.size

    def next_tokens(self, piece: int) -> np.ndarray:
        """Of the prompt what is left of the piece; behind it one token, as these were drawn."""
        if self.reading:
            return self.prompt[self.fed : (self.fed // piece + 1) * piece]
        return np.array([self.draft.drawn[self.fed - self.prompt.size].token])

    def whole(self, piece: int) -> int:
        """How many tokens of the prompt are in the sequence as whole pieces."""
        return min(self.fed, self.prompt.size) // piece * piece

    def progress(self, text: str) -> AnswerPart:
        """What is told now, with a part of the text."""
        drawn = tuple(self.draft.drawn[self._told :])
        self._told += len(drawn)
        return AnswerPart(self.index, text, drawn, self.draft.reason, self.reused, self.draft.seed)
