"""An answer of a decoder, token by token: its text as it comes, and the record of it at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, Protocol

import numpy as np

from tilewright.llm.decoder import Decoder
from tilewright.llm.sampling.sampler import Drawn, Sampler
from tilewright.llm.sampling.settings import Sampling
from tilewright.llm.sampling.stops import StopStrings, checked_stops
from tilewright.llm.tokens.tokenizer import TextOfTokens, Tokenizer
from tilewright.runtime.errors import InputError, OptionError, short_name
from tilewright.runtime.process.forks import free_in_children

Reason = Literal["", "end", "stop", "length", "context", "closed"]
"""Why an answer is over: the model ended it, a stop string came, it has as many tokens as it may, the context is full,
nobody wanted more; "" while it is not."""

DEFAULT_TOKENS = 512
_MOST_TOLD = 100


class Constraint(Protocol):
    """What an answer must look like: which tokens may come next, by the tokens so far."""

    def allowed(self) -> np.ndarray:
        """bool[vocabulary] of the tokens that may come now; tokens that end an answer where it may be over."""

    def accept(self, token: int) -> None:
        """The token came."""


@dataclass(frozen=True)
class Wanted:
    """How an answer is made. `max_tokens` None: as many as the context has room for; `log_probabilities`: how many
    tokens are told for each (None: not even its own); `ends` False: tokens that end an answer do not, but for one that
    has a form, where nothing else may follow."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = DEFAULT_TOKENS
    stop: tuple[str, ...] = ()
    log_probabilities: int | None = None
    ends: bool = True
    constraint: Callable[[], Constraint] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", checked_stops(self.stop))
        for name, value, most in (
            ("max_tokens", self.max_tokens, 2**31),
            ("log_probabilities", self.log_probabilities, _MOST_TOLD),
        ):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and 0 <= value <= most):
                raise OptionError(
                    f"{name}={value!r:.40} is not allowed: give an integer from 0 to {most}, or None"
                )


@dataclass(frozen=True)
class Answer:
    """What was generated. `reason` says why it is over, `seed` repeats it with the same settings; `tokens` and `drawn`
    have no token that ended it. `first_seconds`: from the begin to the first token, `seconds`: to the last one."""

    text: str
    drawn: tuple[Drawn, ...]
    reason: Reason
    prompt_tokens: int
    seed: int
    first_seconds: float
    seconds: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(drawn.token for drawn in self.drawn)

    @property
    def tokens_per_second(self) -> float:
        """Of those behind the first one, which comes with the prompt; 0 where there are none."""
        later = self.seconds - self.first_seconds
        return (len(self.drawn) - 1) / later if later > 0 and len(self.drawn) > 1 else 0.0


class Draft:
    """An answer while it comes: what the logits behind each token make of it. `reason` says why it is over, "" while it
    is not; tokens that are drawn count, and so do the parts of the text in `parts`."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], wanted: Wanted, rows: int, *, is_first: bool = False
    ) -> None:
        """`rows`: how many logits the model gives; `is_first`: the text has nothing before it."""
        self.drawn: list[Drawn] = []
        self.parts: list[str] = []
        self.reason: Reason = "length" if wanted.max_tokens == 0 else ""
        # what must have a form ends where nothing can follow, whatever was wanted
        self._ends = tokenizer.special.ends if wanted.ends or wanted.constraint else frozenset()
        self._wanted = wanted
        self._sampler = Sampler(wanted.sampling, min(tokenizer.size, rows), prompt)
        self._constraint = wanted.constraint() if wanted.constraint else None
        self._stops = StopStrings(wanted.stop)
        self._written = TextOfTokens(tokenizer, continued=not is_first)

    @property
    def seed(self) -> int:
        """That of the draws."""
        return self._sampler.seed

    @property
    def text(self) -> str:
        """All that came so far."""
        return "".join(self.parts)

    def add(self, logits: np.ndarray, *, room: bool) -> str:
        """The next part of the text, which may be empty; a token is drawn from `logits`, which are written to. `room`:
        the token can be fed to the model."""
        drawn = self._draw(logits)
        part = self._ended_by(drawn, room)
        if part:
            self.parts.append(part)
        return part

    def _ended_by(self, drawn: Drawn, room: bool) -> str:
        if drawn.token in self._ends:
            self.reason = "end"
            return self._over()
        self.drawn.append(drawn)
        part = self._stops.push(self._written.push(drawn.token))
        if self._stops.found is not None:
            self.reason = "stop"
        elif len(self.drawn) == self._wanted.max_tokens:
            self.reason = "length"
            part += self._over()
        elif not room:
            self.reason = "context"
            part += self._over()
        return part

    def _draw(self, logits: np.ndarray) -> Drawn:
        told = self._wanted.log_probabilities
        if self._constraint is None:
            return self._sampler.draw(logits, told)
        drawn = self._sampler.draw(logits, told, self._allowed(self._constraint))
        self._constraint.accept(drawn.token)
        return drawn

    def _allowed(self, constraint: Constraint) -> np.ndarray:
        """What may come now; where ends are not wanted, an end only where nothing else may."""
        found = constraint.allowed()
        if self._wanted.ends:
            return found
        others = found.copy()
        others[[token for token in self._ends if token < len(found)]] = False
        return others if others.any() else found

    def _over(self) -> str:
        """What of the text was held back."""
        last = self._stops.push(self._written.end())
        return last if self._stops.found is not None else last + self._stops.end()


class Stream(Iterator[str]):
    """The parts of an answer's text as they come, none of them empty and none with half a character; `answer` is the
    record of what came so far. `close()` ends it, and so does the end of the iteration or of a `with` block."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        wanted: Wanted,
        *,
        known: int = 0,
        prompt_tokens: int | None = None,
        is_first: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """`known`: so many tokens of the prompt the decoder has been fed already; `done` is called once at the end.
        `fed` is what it has been fed, unless the answer `failed`. `prompt_tokens`: of what the answer is to, where that
        is not what the decoder is fed; `is_first`: its text has nothing before it."""
        self.fed = list(prompt[:known])
        self.failed = False
        self._decoder = decoder
        self._next = [*prompt[known:]]
        self._prompt_tokens = len(prompt) if prompt_tokens is None else prompt_tokens
        self._draft = Draft(tokenizer, prompt, wanted, decoder.vocabulary, is_first=is_first)
        self._done = done
        self._turn = free_in_children(Lock())
        self._start = time.perf_counter()
        self._first = self._last = self._start

    @property
    def answer(self) -> Answer:
        draft = self._draft
        return Answer(
            draft.text,
            tuple(draft.drawn),
            draft.reason,
            self._prompt_tokens,
            draft.seed,
            self._first - self._start,
            self._last - self._start,
        )

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        part = ""
        while not part and not self._draft.reason:
            try:
                part = self._in_turn()
            except BaseException:
                self.close()
                raise
        if not part or self._draft.reason == "closed":
            self.close()
        if not part:
            raise StopIteration
        return part

    def _in_turn(self) -> str:
        """The next part, if there is one by now; threads wait for each other."""
        with self._turn:
            try:
                return "" if self._draft.reason else self._step()
            except BaseException:
                self.failed = True
                raise

    def rest(self) -> Answer:
        """The answer with all that is still to come."""
        for _ in self:
            pass
        return self.answer

    def close(self) -> None:
        """Ends the answer here: what comes behind is not computed. A part that another thread computes now is the last
        one, and the decoder is free behind it."""
        self._draft.reason = self._draft.reason or "closed"
        if not self._turn.acquire(blocking=False):
            return
        try:
            done, self._done = self._done, lambda: None
            self._next = []
        finally:
            self._turn.release()
        done()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _step(self) -> str:
        draft, decoder = self._draft, self._decoder
        logits = decoder.feed(self._next)
        self.fed += self._next
        part = draft.add(logits, room=decoder.length < decoder.context)
        self._last = time.perf_counter()
        if self._first == self._start:
            self._first = self._last
        self._next = [drawn.token for drawn in draft.drawn[-1:]]
        return part


def check_prompt(tokens: Sequence[int], decoder: Decoder) -> None:
    """InputError for a prompt without tokens, with tokens that do not exist, or for which the context has no room."""
    if not tokens:
        raise InputError("the prompt has no tokens", hint="give at least one character")
    if len(tokens) > decoder.context:
        raise InputError(
            f"the prompt has {len(tokens)} tokens, but the context has {decoder.context} positions",
            hint="shorten it, or load the model with a larger context= where it was trained for one",
        )
    wrong = next((token for token in tokens if not 0 <= token < decoder.vocabulary), None)
    if wrong is not None:
        raise InputError(
            f"there is no token {short_name(str(wrong), 40)}: the vocabulary has {decoder.vocabulary}",
            hint="use the tokeniser that belongs to this model",
        )
