"""Answers to several prompts at once, for whoever waits for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.llm.generation import Answer, Wanted
from tilewright.llm.sequences import Sequences
from tilewright.llm.serving.requests import AnswerPart, AnswerRequest, Event, Failed, Limits
from tilewright.llm.serving.scheduler import Scheduler
from tilewright.llm.tokens.tokenizer import Tokenizer

_PIECE = 512
"""Tokens at whose multiples prompts are cut: those of a decoder that reads one alone."""
_MOST_PARALLEL = 32


@dataclass
class _Coming:
    begin: float = field(default_factory=time.perf_counter)
    parts: list[AnswerPart] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: Exception | None = None

    def tell(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.error = event.error
        else:
            self.parts.append(event)
            self.times.append(time.perf_counter() - self.begin)

    def answer(self, prompt_tokens: int) -> Answer:
        drawn = tuple(drawn for part in self.parts for drawn in part.drawn)
        last = self.parts[-1]
        text = "".join(part.text for part in self.parts)
        return Answer(text, drawn, last.reason, prompt_tokens, last.seed, self.times[0], self.times[-1])


def answered_together(
    sequences: Callable[[int], Sequences], tokenizer: Tokenizer, asked: Sequence[tuple[Sequence[int], Wanted]]
) -> list[Answer]:
    """Of each prompt the answer that it has alone; `sequences` gives so many. Raises the error of the first that
    fails."""
    parallel = min(len(asked), _MOST_PARALLEL)
    limits = Limits(parallel, waiting=len(asked), piece=_PIECE, kept=0)
    scheduler = Scheduler(sequences(limits.slots), tokenizer, limits)
    coming = [_Coming() for _ in asked]
    for one, (tokens, wanted) in zip(coming, asked, strict=True):
        scheduler.submit(AnswerRequest(tokens, (wanted,)), one.tell)  # type: ignore[arg-type]
    while scheduler.busy:
        scheduler.step()
        for one in coming:
            if one.error is not None:
                raise one.error
    return [one.answer(len(tokens)) for one, (tokens, _) in zip(coming, asked, strict=True)]
