"""Guesses: the text is what it is without, whatever is guessed, and guessing that does not pay stops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.llm.decoders import Chance
from tests.llm.test_generation import template, tokenizer
from tilewright.llm.decoder import Tokens
from tilewright.llm.model import LanguageModel
from tilewright.llm.speculation.drafts import DraftModel, Drafts, Lookup
from tilewright.llm.speculation.gains import Drafted, Gains
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.runtime.errors import ExecutionError, InputError, OptionError


class Rows(Chance):
    """Has `feed_rows`; `calls` are the sizes of calls."""

    limit = 100

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.calls: list[int] = []

    def feed(self, tokens: Tokens) -> np.ndarray:
        self.calls.append(len(tokens))
        return super().feed(tokens)

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        calls = self.calls
        self.calls = []
        rows = np.stack([self.feed([token]) for token in tokens])
        self.calls = [*calls, len(tokens)]
        return rows

    def alike(self, length: int) -> int:
        return self.limit


class Oracle:
    """Guesses right as often as it is told."""

    def __init__(self, right: float, decoder: Chance, seed: int = 0) -> None:
        self._right, self._decoder = right, decoder
        self._rng = random.Random(seed)

    def propose(self, past: Sequence[int], count: int) -> list[int]:
        found: list[int] = []
        for _ in range(self._rng.randint(0, count)):
            best = int(self._decoder.logits_behind([*past, *found]).argmax())
            found.append(best if self._rng.random() < self._right else self._rng.randrange(self._decoder.vocabulary))
        return found

    def fork(self) -> Oracle:
        return Oracle(self._right, self._decoder, self._rng.randrange(1 << 30))


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_those_of_the_decoder_whatever_is_guessed(right: float, seed: int) -> None:
    """In any order of calls, with guesses of which some come true."""
    rng = random.Random(seed)
    plain = Rows(12, 60)
    found: Any = SpeculatingDecoder(Rows(12, 60), Oracle(right, plain, seed), most=4, clock=lambda: 0.0)
    logits = plain.feed([1, 2])
    assert np.array_equal(found.feed([1, 2]), logits)
    for _ in range(300):
        what = rng.random()
        if what < 0.05 or plain.length == plain.context:
            length = rng.randint(0, plain.length)
            plain.rewind(length)
            found.rewind(length)
            if not length:
                continue
        elif what < 0.1:
            found, plain = found.fork(), plain.fork()
        else:
            best = int(logits.argmax())
            room = plain.context - plain.length
            tokens = [best if rng.random() < 0.8 else rng.randrange(12)] * min(room, rng.choice([1, 1, 1, 1, 3]))
            logits = plain.feed(tokens)
            given = found.feed(tokens)
            assert np.array_equal(given, logits)
            given[:] = -1  # they belong to the caller
        assert found.length == plain.length
    assert found.drafted.accepted <= found.drafted.proposed
    assert not right or found.drafted.accepted > 20


@pytest.mark.parametrize("how", [{}, {"temperature": 0.7, "seed": 5, "presence_penalty": 0.2, "top_p": 0.9}])
def test_texts_are_those_without_guesses(how: dict[str, Any]) -> None:
    decoder = Rows(704, 4096, memory=1, scale=5.0)
    model = LanguageModel(Chance(704, 4096, memory=1, scale=5.0), tokenizer(), template())
    for drafts in (Lookup(), DraftModel(Chance(704, 4096, memory=1, scale=5.0), 700), Oracle(0.5, decoder)):
        guessing = SpeculatingDecoder(decoder.fork(), drafts, clock=lambda: 0.0)
        found = LanguageModel(guessing, tokenizer(), template())
        for prompt in ("the state of the state", "Hello"):
            expected = model.answer(prompt, max_tokens=60, log_probabilities=2, **how)
            answer = found.answer(prompt, max_tokens=60, log_probabilities=2, **how)
            assert answer.drawn == expected.drawn and answer.text == expected.text
        assert guessing.drafted.accepted > 0, (drafts, guessing.drafted)


def test_conversations_and_beams_are_those_without_guesses() -> None:
    plain = LanguageModel(Chance(704, 4096, memory=1, scale=5.0), tokenizer(), template())
    decoder = SpeculatingDecoder(Rows(704, 4096, memory=1, scale=5.0), Lookup(), clock=lambda: 0.0)
    found = LanguageModel(decoder, tokenizer(), template())
    one, other = plain.conversation(), found.conversation()
    wanted = plain.wanted(max_tokens=30)
    for said in ("Hello", "and again", "Hello"):
        assert other.say(said, wanted).rest().drawn == one.say(said, wanted).rest().drawn
    assert found.beams("the", 3, max_tokens=8) == plain.beams("the", 3, max_tokens=8)
    assert found.drafted is not None and found.drafted.accepted > 0
    assert found.score("the state of").log_probabilities == plain.score("the state of").log_probabilities


def test_right_guesses_save_calls_and_wrong_ones_cost_none_of_the_context() -> None:
    plain = Rows(12, 40)
    inner = Rows(12, 40)
    found = SpeculatingDecoder(inner, Oracle(1.0, plain, 1), most=4, clock=lambda: 0.0)
    logits = found.feed([1, 2])
    while found.length < found.context:
        logits = found.feed([int(logits.argmax())])
    assert len(inner.calls) < 30 and sum(inner.calls) >= 40 and max(inner.calls) == 5
    with pytest.raises(InputError, match="more than the context"):
        found.feed([1])


def test_no_more_is_guessed_than_the_decoder_takes_with_the_same_bits() -> None:
    inner = Rows(12, 60)
    inner.limit = 3
    found = SpeculatingDecoder(inner, Oracle(1.0, inner), most=6, clock=lambda: 0.0)
    logits = found.feed([1, 2])
    for _ in range(40):
        logits = found.feed([int(logits.argmax())])
    assert max(inner.calls) == 3
    inner.limit = 1
    found.rewind(0)
    inner.calls.clear()
    for token in range(10):
        found.feed([token])
    assert set(inner.calls) == {1}


# what is guessed


def test_a_lookup_finds_what_followed_the_longest_run() -> None:
    lookup = Lookup(3)
    past = [1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3]
    assert lookup.propose(past, 3) == [4, 5, 9]  # behind 1 2 3, and not behind the later 2 3
    assert lookup.propose([*past, 7], 2) == [8, 1]
    assert lookup.propose([*past, 7, 6], 4) == []
    assert lookup.propose([5], 4) == [] and lookup.propose([5, 5], 4) == [5]
    assert lookup.propose([1, 2, 1], 9) == [2, 1] and lookup.propose([9, 9, 9], 2) == [9]


@pytest.mark.parametrize("seed", range(5))
def test_a_lookup_that_follows_a_text_finds_what_one_that_is_new_finds(seed: int) -> None:
    rng = random.Random(seed)
    followed, past = Lookup(), [rng.randrange(4)]
    for _ in range(200):
        if rng.random() < 0.1:
            del past[rng.randint(1, len(past)) :]
        past += [rng.randrange(4) for _ in range(rng.randint(1, 3))]
        assert followed.propose(past, 5) == Lookup().propose(past, 5)


def test_a_draft_model_follows_without_being_fed_twice() -> None:
    small = Chance(12, 30)
    drafts = DraftModel(small, 12)
    first = drafts.propose([1, 2, 3], 3)
    expected: list[int] = []
    for _ in range(3):
        expected.append(int(small.logits_behind([1, 2, 3, *expected]).argmax()))
    assert first == expected and small.fed == [1, 2, 3, *expected[:2]]
    drafts.propose([1, 2, 3, *expected, 5], 1)
    assert small.fed[5:] == [expected[2], 5]
    assert drafts.propose(list(range(10)) * 3, 4) == [] and len(drafts.propose(list(range(10)) * 2, 99)) == 10


# whether it pays


class Windowed(Rows):
    """As layers with a window have it: far back there is nothing but the begin. Token 11 fails, and takes all."""

    def feed(self, tokens: Tokens) -> np.ndarray:
        if 11 in tokens:
            self.past.clear()
            raise ExecutionError("no memory")
        return super().feed(tokens)

    def rewind(self, length: int) -> None:
        if length and length < self.length - 3:
            raise InputError("rows that are not kept")
        super().rewind(length)


def test_a_draft_model_with_windows_follows_another_text_from_its_begin() -> None:
    drafts = DraftModel(Windowed(12, 64), 11)
    drafts.propose([1, 2, 3, 4, 5, 6, 7], 2)
    fresh = DraftModel(Chance(12, 64), 11)
    for past in ([1, 2, 5], [1, 2, 5, 4, 3, 2, 1, 1], [1, 2]):
        assert drafts.propose(past, 3) == fresh.propose(past, 3)


def test_a_call_that_fails_leaves_as_much_as_the_decoder_has() -> None:
    found = SpeculatingDecoder(Windowed(12, 64), Oracle(1.0, Chance(12, 64)), clock=lambda: 0.0)
    found.feed([1, 2, 3])
    with pytest.raises(ExecutionError, match="no memory"):
        found.feed([11])
    assert found.length == 0
    for tokens in ([4, 5], [6], [7], [8]):
        logits = found.feed(tokens)
    np.testing.assert_array_equal(logits, Chance(12, 64).logits_behind([6, 7, 8]))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Costly(Rows):
    """A call takes a second, and each row behind the first another share of it."""

    def __init__(self, clock: Clock, row: float) -> None:
        super().__init__(12, 4000)
        self.clock, self.row = clock, row

    def feed(self, tokens: Tokens) -> np.ndarray:
        self.clock.now += 1 + self.row * (len(tokens) - 1)
        return super().feed(tokens)

    def feed_rows(self, tokens: Tokens) -> np.ndarray:
        before = self.clock.now
        rows = super().feed_rows(tokens)
        self.clock.now = before + 1 + self.row * (len(tokens) - 1)
        return rows


def _seconds(drafts: Drafts | None, row: float, tokens: int = 600) -> tuple[float, Drafted]:
    clock = Clock()
    decoder: Any = Costly(clock, row)
    found = SpeculatingDecoder(decoder, drafts, most=4, clock=clock) if drafts else decoder
    logits = found.feed([1, 2])
    for _ in range(tokens):
        logits = found.feed([int(logits.argmax())])
    return clock.now, found.drafted if drafts else Drafted()


def test_guesses_that_pay_go_on_and_others_stop() -> None:
    plain, _ = _seconds(None, 0.1)
    sure, counted = _seconds(Oracle(1.0, Rows(12)), 0.1)
    assert sure < 0.5 * plain and counted.accepted > 300
    # rows as expensive as tokens, and guesses that are wrong: little is lost
    for row, right in ((1.0, 0.5), (0.1, 0.0)):
        lost, counted = _seconds(Oracle(right, Rows(12)), row)
        assert lost < 1.15 * plain and counted.plain > 400, (row, right, lost / plain, counted)


def test_what_was_guessed_is_told() -> None:
    assert str(Drafted(10, 40, 10, 5)) == "drafts: 10 of 40 tokens accepted (25%), 2.00 tokens a call, 5 without"
    assert str(Drafted()) == "drafts: 0 of 0 tokens accepted, 0 without"
    gains = Gains()
    assert gains.wanted()


def test_what_cannot_be_guessed_for_is_refused() -> None:
    decoder = Rows(12, 60)
    with pytest.raises(OptionError, match="most=0 is not allowed"):
        SpeculatingDecoder(decoder, Lookup(), most=0)
    decoder.feed([1])
    with pytest.raises(OptionError, match="was fed something"):
        SpeculatingDecoder(decoder, Lookup())
