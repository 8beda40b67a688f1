"""Which sequences are fed when: continuous batching of the answers of many clients.

A step feeds one token to each answer that goes on, and beside them a piece of the prompts of others, so that a long
prompt delays nobody by more than a piece. Prompts are always cut at multiples of the same number of tokens, and what
sequences share are such pieces: numbers are rounded alike, and a text follows from its request alone, whatever else is
computed, was computed before, or had to give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from tilewright.llm.sequences import Handle, Sequences
from tilewright.llm.serving.prefixes import KeptPrefix, Prefixes, common
from tilewright.llm.serving.requests import AnswerRequest, BusyError, Failed, Limits, Tell, Ticket, wrong_size
from tilewright.llm.serving.runs import AnswerRun
from tilewright.llm.serving.shares import Shares
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import InputError, OptionError

_WRITTEN = 2.0
"""What a token of an answer counts beside one of a prompt, when time is shared (as Sheng et al. have it)."""

Chosen = tuple[AnswerRun, np.ndarray]


@dataclass
class ServedCounts:
    """What was done so far."""

    steps: int = 0
    read: int = 0
    written: int = 0
    reused: int = 0
    given_way: int = 0
    """Sequences that had to give their memory to others, and were fed again."""


class Scheduler:
    """Answers requests with the sequences of one model, in steps. One thread at a time calls it."""

    def __init__(self, sequences: Sequences, tokenizer: Tokenizer, limits: Limits | None = None) -> None:
        """OptionError where the model has fewer sequences than the limits name."""
        self.limits = limits or Limits()
        if sequences.slots < self.limits.slots:
            raise OptionError(
                f"{self.limits.slots} sequences are wanted, but the model has {sequences.slots}",
                hint="lower parallel= or kept=, or make more slots",
            )
        self._positions = self.limits.positions or self.limits.parallel * sequences.context
        self.context = min(sequences.context, self._positions)
        self.counts = ServedCounts()
        self._sequences, self._tokenizer = sequences, tokenizer
        self._piece = self.limits.piece
        self._prefixes = Prefixes(self.limits.kept)
        self._shares = Shares()
        self._waiting: list[AnswerRun] = []
        self._running: list[AnswerRun] = []
        self._submitted = 0
        self._crowded = False
        self._rewinds = True
        self._forgets = False  # whether a sequence could not go back to its prompt

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> int:
        """Answers that are computed."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Answers that wait for their begin, or to go on."""
        return len(self._waiting)

    def submit(self, request: AnswerRequest, tell: Tell) -> Ticket:
        """Take a request. InputError where it can never be answered; BusyError where too many wait."""
        size = request.prompt.size
        if not 0 < size <= self.context:
            raise wrong_size(size, self.context)
        most = self.limits.parallel + self.limits.waiting
        if len(request.wanted) > most:
            raise InputError(
                f"{len(request.wanted)} answers are wanted, but there is room for {most}",
                hint="ask for fewer at once, or serve with a longer queue",
            )
        ticket = Ticket(self._submitted, request, tell)
        self._submitted += 1
        runs = [AnswerRun(ticket, n, self._tokenizer, self._sequences.vocabulary) for n in range(ticket.open)]
        self._make_room(runs)
        self._waiting += runs
        for run in runs:
            if run.draft.reason:
                self._waiting.remove(run)
                self._tell(run, "")
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nothing more is computed of a request, nor told."""
        self._forget(ticket, keep=True)

    def stop(self, error: Exception) -> None:
        """All requests fail with this error."""
        for run in (*self._running, *self._waiting):
            self._fail(run, error)

    def step(self) -> None:
        """Feed the model once; who asked is told what comes of it."""
        self._shares.settle(run.client for run in (*self._running, *self._waiting))
        self._admit()
        for run, tokens, logits in self._fed(self._fitting(self._chosen())):
            self._goes_on(run, tokens, logits)
        self.counts.steps += 1

    # who is admitted

    def _make_room(self, runs: list[AnswerRun]) -> None:
        """BusyError where there is none in the queue. A client that has most of what waits gives way to others."""
        wait = sum(not run.draft.drawn for run in self._waiting)
        over = wait + len(runs) - (self.limits.waiting + self.limits.parallel - len(self._running))
        if over <= 0:
            return
        begun = {run.ticket for run in (*self._running, *(r for r in self._waiting if r.draft.drawn))}
        later = [run for run in self._waiting if run.ticket not in begun]
        counts = Counter(run.client for run in later)
        client, most = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
        if most < counts[runs[0].client] + len(runs) + over:
            raise self._full()
        for ticket in dict.fromkeys(run.ticket for run in reversed(later) if run.client == client):
            if over > 0:
                over -= ticket.open
                self._end(ticket, self._full())

    def _full(self) -> BusyError:
        return BusyError(
            f"too much is asked for at once: {len(self._running)} answers are computed, and {len(self._waiting)} wait",
            hint="ask again later, or serve with a longer queue",
        )

    def _admit(self) -> None:
        while len(self._running) < self.limits.parallel and not self._crowded:
            run = min(self._admissible(), key=lambda r: (self._shares.given(r.client), r.order), default=None)
            if run is None or not self._has_room(run):
                return
            self._waiting.remove(run)
            self._running.append(run)

    def _admissible(self) -> list[AnswerRun]:
        """Those whose prompt nobody of the same request reads: they begin where that one is then."""
        reading = {run.ticket.number for run in self._running if run.reading}
        first: dict[int, AnswerRun] = {}
        for run in self._waiting:
            first.setdefault(run.ticket.number, run)
        return [run for number, run in first.items() if number not in reading]

    def _has_room(self, run: AnswerRun) -> bool:
        """For what it has now, and a piece for each of all."""
        all_known = sum(other.known for other in self._running)
        return (
            not self._running
            or all_known + run.known + self._piece * (len(self._running) + 1) <= self._positions
        )

    def _begin(self, run: AnswerRun, shared: int, source: AnswerRun | KeptPrefix | None) -> None:
        """A sequence with so many tokens of the prompt, in place of the one that it had."""
        self._close(run)
        run.handle, run.fed = self._opened(None if source is None else source.handle), 0
        if source is None:
            return
        if self._sequences.length(run.handle) != shared:
            try:
                self._sequences.rewind(run.handle, shared)
            except (OptionError, InputError) as error:
                if isinstance(error, OptionError):  # the model keeps sums of its past
                    self._rewinds = False
                run.alone = True  # layers with a window may have forgotten so much
                self._begin(run, 0, None)
                return
        run.fed = shared
        run.reused = max(run.reused, shared)
        self.counts.reused += shared
        if isinstance(source, KeptPrefix):
            self._prefixes.used(source)

    def _opened(self, like: Handle | None) -> Handle:
        try:
            return self._sequences.open(like)
        except MemoryError:
            if not self._dropped_prefixes(but=like):
                raise
            return self._sequences.open(like)

    # what is fed in a step

    def _chosen(self) -> list[Chosen]:
        """A token for each answer that goes on, and pieces of prompts, as many as make one."""
        chosen = {run: run.next_tokens(self._piece) for run in self._running if not run.reading}
        left = self._piece
        readers = [run for run in self._running if run.reading]
        for run in sorted(readers, key=lambda r: (self._shares.given(r.client), r.turn, r.order)):
            try:
                reader = self._reader(run)
            except Exception as error:
                self._fail(run, error)
                continue
            tokens = reader.next_tokens(self._piece)
            if reader not in chosen and reader.reading and tokens.size <= left:
                chosen[reader] = tokens
                left -= tokens.size
                run.turn = self.counts.steps
                self._shares.charge(run.client, tokens.size)
        return [(run, tokens) for run, tokens in chosen.items() if run in self._running]

    def _reader(self, run: AnswerRun) -> AnswerRun:
        """Whose piece is fed when it is the turn of this one: where another one reads the same tokens already, that
        one's, and this one goes on from there."""
        shared, source = self._source(run)
        if source is None:
            if run.handle is None:
                self._begin(run, 0, None)
            return run
        if isinstance(source, AnswerRun) and source.whole(self._piece) < shared:
            return self._reader(source)
        self._begin(run, shared, source)
        return run

    def _source(self, run: AnswerRun) -> tuple[int, AnswerRun | KeptPrefix | None]:
        """The sequence that has, or will have soon, more of the prompt as whole pieces than this one, and how much. One
        token at least is left to be fed."""
        most = (run.prompt.size - 1) // self._piece * self._piece
        best, source = run.fed, None
        if not self._rewinds or run.alone:
            return best, source
        for other in self._running:
            if other is run:
                continue
            shared = min(most, common(run.prompt, other.prompt) // self._piece * self._piece)
            there = other.whole(self._piece) >= shared or (other.reading and other.order < run.order)
            shared = shared if there else min(shared, other.whole(self._piece))
            if shared > best:
                best, source = shared, other
        shared, kept = self._prefixes.longest(run.prompt)
        shared = min(most, shared // self._piece * self._piece)
        return (shared, kept) if shared > best else (best, source)

    def _fitting(self, chosen: list[Chosen]) -> list[Chosen]:
        """What the memory has room for: kept prefixes give way first, and then the latest sequences."""
        wanted = sum(tokens.size for _, tokens in chosen)
        while sum(run.fed for run in self._running) + self._prefixes.positions + wanted > self._positions:
            if len(self._prefixes):
                self._closed(self._prefixes.drop())
                continue
            last = max(self._running, key=lambda run: run.order)
            self._gives_way(last)
            self._crowded = True
            chosen = [(run, tokens) for run, tokens in chosen if run is not last]
            wanted = sum(tokens.size for _, tokens in chosen)
        return chosen

    def _gives_way(self, run: AnswerRun) -> None:
        """It waits, and will be fed again from its begin."""
        self._running.remove(run)
        self._close(run)
        run.fed = 0
        self._waiting.append(run)
        self.counts.given_way += 1

    def _fed(self, chosen: list[Chosen]) -> Iterable[tuple[AnswerRun, np.ndarray, np.ndarray]]:
        """The logits behind the tokens of each. Who fails, fails alone."""
        if not chosen:
            return []
        try:
            logits = self._sequences.feed([(_handle(run), tokens) for run, tokens in chosen])
        except Exception as error:
            if len(chosen) > 1:
                alone = [self._fed([one]) for one in chosen if self._intact(one[0])]
                return [found for one in alone for found in one]
            ((run, _),) = chosen
            if isinstance(error, MemoryError) and self._dropped_prefixes():
                return self._fed(chosen) if self._intact(run) else []
            self._fail(run, error)
            return []
        return [(run, tokens, found) for (run, tokens), found in zip(chosen, logits, strict=True)]

    def _intact(self, run: AnswerRun) -> bool:
        """Whether its sequence is as it was before a call that failed; if not, it is fed again from its begin."""
        if run not in self._running:  # another answer of its request failed
            return False
        with suppress(InputError):
            if self._sequences.length(_handle(run)) == run.fed:
                return True
        self._gives_way(run)
        return False

    # what comes of it

    def _goes_on(self, run: AnswerRun, tokens: np.ndarray, logits: np.ndarray) -> None:
        if run not in self._running:  # another answer of its request failed
            return
        self.counts.read += tokens.size if run.reading else 0
        run.fed += tokens.size
        run.turn = self.counts.steps
        if self._forgets and run.fed == run.prompt.size // self._piece * self._piece:
            self._keep_begin(run)
        if run.fed < run.known:
            return
        if not run.draft.drawn:
            for other in self._joining(run):
                self._draw(other, logits.copy())
        self._draw(run, logits)

    def _joining(self, run: AnswerRun) -> list[AnswerRun]:
        """The other answers to a prompt that has just been read, which go on from here, as far as there is room."""
        found = []
        for other in [one for one in self._waiting if one.ticket is run.ticket and not one.draft.drawn]:
            if len(self._running) == self.limits.parallel or not self._has_room(other):
                break
            try:
                other.handle = self._opened(run.handle)
            except (InputError, MemoryError):  # it reads by itself, when it is admitted
                break
            other.fed = other.reused = other.prompt.size
            self._waiting.remove(other)
            self._running.append(other)
            found.append(other)
        return found

    def _draw(self, run: AnswerRun, logits: np.ndarray) -> None:
        if run not in self._running:
            return
        try:
            text = run.draft.add(logits, room=run.fed < self.context)
        except Exception as error:
            self._fail(run, error)
            return
        self.counts.written += 1
        self._shares.charge(run.client, _WRITTEN)
        if run.draft.reason:
            self._leave(run, keep=True)
        self._tell(run, text)

    def _tell(self, run: AnswerRun, text: str) -> None:
        ticket = run.ticket
        if run.draft.reason:
            ticket.open -= 1
        ticket.tell(run.progress(text))

    def _fail(self, run: AnswerRun, error: Exception) -> None:
        """The request of an answer fails as a whole."""
        self._end(run.ticket, error)

    def _end(self, ticket: Ticket, error: Exception) -> None:
        if ticket.open:
            self._forget(ticket, keep=False)
            ticket.tell(Failed(error))

    def _forget(self, ticket: Ticket, *, keep: bool) -> None:
        ticket.open = 0
        self._waiting = [run for run in self._waiting if run.ticket is not ticket]
        for run in [run for run in self._running if run.ticket is ticket]:
            self._leave(run, keep=keep)

    def _leave(self, run: AnswerRun, *, keep: bool) -> None:
        """Its sequence is kept as far as it has whole pieces of the prompt, or closed."""
        self._running.remove(run)
        self._crowded = False
        handle, whole = run.handle, run.whole(self._piece)
        if not keep or handle is None or not whole or not self.limits.kept:
            self._close(run)
            return
        run.handle = None
        try:
            self._sequences.rewind(handle, whole)
            closed = self._prefixes.keep(KeptPrefix(handle, run.prompt[:whole]))
        except (InputError, OptionError) as error:
            self._forgets = isinstance(error, InputError)
            closed = [handle]
        for one in closed:
            self._closed(one)

    def _keep_begin(self, run: AnswerRun) -> None:
        """Keep the whole pieces of a prompt now that they are read: in a model whose layers have windows the sequence
        cannot go back to them later."""
        begin = run.prompt[: run.fed]
        if not run.fed or not self.limits.kept or self._prefixes.longest(begin)[0] == run.fed:
            return
        if len(self._prefixes) == self.limits.kept:
            self._closed(self._prefixes.drop())
        with suppress(InputError, MemoryError):
            for one in self._prefixes.keep(KeptPrefix(self._sequences.open(run.handle), begin)):
                self._closed(one)

    def _dropped_prefixes(self, but: Handle | None = None) -> bool:
        """Give their memory back; whether there were any."""
        dropped = self._prefixes.drop_all(but)
        for handle in dropped:
            self._closed(handle)
        return bool(dropped)

    def _close(self, run: AnswerRun) -> None:
        handle, run.handle = run.handle, None
        if handle is not None:
            self._closed(handle)

    def _closed(self, handle: Handle) -> None:
        with suppress(InputError):  # what failed half way may be closed already
            self._sequences.close(handle)


def _handle(run: AnswerRun) -> Handle:
    assert run.handle is not None
    return run.handle
