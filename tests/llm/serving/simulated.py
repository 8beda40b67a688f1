"""A model of NumPy on virtual time, and clients that note when they are told what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.llm.decoders import Chance
from tests.llm.vocabularies import byte_level_metadata
from tilewright.llm.generation import Draft, Wanted
from tilewright.llm.sampling.settings import Sampling
from tilewright.llm.sequences import ForkedSequences, Handle, Part
from tilewright.llm.serving.requests import AnswerPart, AnswerRequest, Failed, Limits, Ticket
from tilewright.llm.serving.scheduler import Scheduler
from tilewright.llm.tokens.gguf import gguf_tokenizer
from tilewright.runtime.errors import InputError

WORDS = gguf_tokenizer(byte_level_metadata(), "x.gguf")
CALL, TOKEN = 1.0, 0.1
"""Seconds of a call, and of each of its tokens."""


class Pieces(Chance):
    """Logits that depend on how the tokens were cut, as those of kernels do in their last bits: a text that does not
    change shows that the cuts did not."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.cuts: tuple[int, ...] = ()

    def feed(self, tokens: Any) -> np.ndarray:
        super().feed(tokens)
        self.cuts = (*self.cuts, self.length)
        return self.logits_behind([*self.past[-self._memory :], hash(self.cuts) % 2**31])

    def logits_behind(self, past: Sequence[int]) -> np.ndarray:
        rng = np.random.default_rng([self._seed, *past])
        return (rng.standard_normal(self.vocabulary) * self._scale).astype(np.float32)

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self.cuts = tuple(cut for cut in self.cuts if cut <= length)
        assert (self.cuts[-1:] or (0,)) == (length,), "a piece is cut in two"


class Windows(Pieces):
    """Layers with a window give rows back: a sequence goes back a little, or to its begin."""

    def rewind(self, length: int) -> None:
        if length and length < self.length - 40:
            raise InputError("rows that are not kept")
        super().rewind(length)


class Timed(ForkedSequences):
    """Sequences whose calls take virtual time. `calls` are the sizes of the parts of each; `broken` fails calls."""

    def __init__(self, decoder: Any, slots: int = 64) -> None:
        super().__init__(decoder, slots)
        self.now = 0.0
        self.calls: list[list[int]] = []
        self.most = self.opened = 0
        self.broken: Callable[[Sequence[Part]], None] = lambda parts: None

    def open(self, like: Handle | None = None) -> Handle:
        self.opened += 1
        return super().open(like)

    def feed(self, parts: Sequence[Part]) -> list[np.ndarray]:
        self.broken(parts)
        self.calls.append([len(tokens) for _, tokens in parts])
        self.now += CALL + TOKEN * sum(self.calls[-1])
        found = super().feed(parts)
        self.most = max(self.most, self.positions)
        return found

    @property
    def positions(self) -> int:
        return sum(decoder.length for decoder in self._open.values())

    @property
    def live(self) -> int:
        return len(self._open)


@dataclass
class Client:
    """What a client is told, and when."""

    name: str = ""
    sequences: Timed | None = None
    told: list[tuple[float, AnswerPart]] = field(default_factory=list)
    error: Exception | None = None
    ticket: Ticket | None = None

    def tell(self, event: Any) -> None:
        assert self.error is None, "nothing comes behind an error"
        if isinstance(event, Failed):
            self.error = event.error
        else:
            assert event.answer not in {p.answer for _, p in self.told if p.reason}, "nor behind the end"
            self.told.append((self.sequences.now if self.sequences else 0.0, event))

    def text(self, answer: int = 0) -> str:
        return "".join(p.text for _, p in self.told if p.answer == answer)

    def tokens(self, answer: int = 0) -> list[int]:
        return [d.token for _, p in self.told if p.answer == answer for d in p.drawn]

    def reason(self, answer: int = 0) -> str:
        return "".join(p.reason for _, p in self.told if p.answer == answer)

    @property
    def first(self) -> float:
        return self.told[0][0]

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.told]


class Served:
    """A scheduler on virtual time."""

    def __init__(self, *, context: int = 400, decoder: Any = None, **limits: Any) -> None:
        self.limits = Limits(**{"piece": 16, "parallel": 4, **limits})
        self.sequences = Timed(decoder or Pieces(704, context), self.limits.slots)
        self.scheduler = Scheduler(self.sequences, WORDS, self.limits)

    def ask(self, prompt: Sequence[int], *wanted: Wanted, client: str = "") -> Client:
        found = Client(client, self.sequences)
        request = AnswerRequest(np.array(prompt, np.int64), wanted or (wanted_of(),), client)
        found.ticket = self.scheduler.submit(request, found.tell)
        return found

    def run(self, steps: int = 10_000) -> Served:
        for _ in range(steps):
            if not self.scheduler.busy:
                return self
            self.scheduler.step()
        assert steps < 10_000, "it does not end"
        return self


def wanted_of(tokens: int | None = 8, *, seed: int = 0, **given: Any) -> Wanted:
    settings = {name: given.pop(name) for name in ("logit_bias",) if name in given}
    sampling = Sampling(temperature=1.0, seed=seed, **settings)
    return Wanted(sampling, tokens, **{"ends": False, **given})


def prompt_of(size: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(5, 700, size)]


def alone(decoder: Any, prompt: Sequence[int], wanted: Wanted, piece: int = 16) -> Draft:
    """What a request gets from nobody but itself: its prompt in pieces, its answer token by token."""
    own = decoder.fork()
    for begin in range(0, len(prompt), piece):
        logits = own.feed(prompt[begin : begin + piece])
    draft = Draft(WORDS, prompt, wanted, own.vocabulary)
    while True:
        draft.add(logits, room=own.length < own.context)
        if draft.reason:
            return draft
        logits = own.feed([draft.drawn[-1].token])
