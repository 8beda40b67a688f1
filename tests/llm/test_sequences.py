"""Several sequences in one model: each is what it is alone, whoever is fed beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.llm.decoders import Chance
from tilewright.llm.decoder import Tokens, check_tokens
from tilewright.llm.sequences import ForkedSequences, SequenceError, Sequences
from tilewright.runtime.errors import ExecutionError, InputError, OptionError

CHANCE = Chance(vocabulary=12, context=16)


def forked(slots: int = 4) -> ForkedSequences:
    return ForkedSequences(CHANCE, slots)


def test_sequences_are_fed_together() -> None:
    found: Sequences = forked()
    assert (found.vocabulary, found.context, found.slots) == (12, 16, 4)
    one, other = found.open(), found.open()
    logits = found.feed([(other, [5, 6, 7]), (one, [1])])
    np.testing.assert_array_equal(logits[0], CHANCE.logits_behind([5, 6, 7]))
    np.testing.assert_array_equal(logits[1], CHANCE.logits_behind([1]))
    assert (found.length(one), found.length(other)) == (1, 3)
    assert found.feed([]) == []


def test_a_prefix_is_shared() -> None:
    found = forked()
    system = found.open()
    found.feed([(system, [3, 1, 4])])
    one, other = found.open(like=system), found.open(like=system)
    assert found.length(other) == 3
    np.testing.assert_array_equal(found.feed([(one, [2])])[0], CHANCE.logits_behind([3, 1, 4, 2]))
    found.close(system)
    np.testing.assert_array_equal(found.feed([(other, [5])])[0], CHANCE.logits_behind([3, 1, 4, 5]))
    assert (found.length(one), found.length(other)) == (4, 4)


def test_numbers_and_slots() -> None:
    found = forked(slots=2)
    one, other = found.open(), found.open()
    with pytest.raises(InputError, match="all 2 sequences are open"):
        found.open()
    with pytest.raises(InputError, match="all 2 sequences are open"):
        found.open(like=one)
    found.close(one)
    third = found.open()
    assert len({one, other, third}) == 3
    calls: list[Any] = [
        lambda: found.close(one), lambda: found.length(one), lambda: found.rewind(one, 0),
        lambda: found.open(like=one), lambda: found.feed([(one, [1])]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(SequenceError, match=f"sequence {one}: it is not open") as error:
            call()
        assert error.value.handle == one


def test_lists_of_several_lengths_are_refused() -> None:
    found = forked()
    one = found.open()
    with pytest.raises(SequenceError, match=f"sequence {one}: tokens are a list of integers, and not lists of several"):
        found.feed([(one, [[1, 2], [3]])])  # type: ignore[list-item]
    assert found.length(one) == 0


@pytest.mark.parametrize("slots", [0, -1, True, 1.5, 1 << 16])
def test_slots_are_a_number(slots: Any) -> None:
    with pytest.raises(OptionError, match="is not allowed: give a number of sequences"):
        ForkedSequences(CHANCE, slots)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "at least one, not none"),
        ([12], "there is no token 12: the vocabulary has 12"),
        ([1, 2, 3], "3 tokens behind 14 are more than the context of 16 positions"),
    ],
)
def test_what_cannot_be_fed_is_named_and_changes_nothing(tokens: Sequence[int], said: str) -> None:
    found = forked()
    one, other = found.open(), found.open()
    found.feed([(one, [1] * 14), (other, [2])])
    with pytest.raises(SequenceError, match=rf"sequence {one}: .*{said}") as error:
        found.feed([(other, [7]), (one, tokens)])
    assert error.value.handle == one
    assert (found.length(one), found.length(other)) == (14, 1)
    np.testing.assert_array_equal(found.feed([(other, [7])])[0], CHANCE.logits_behind([2, 7]))


def test_a_sequence_is_in_a_call_once() -> None:
    found = forked()
    one = found.open()
    with pytest.raises(SequenceError, match="it is in the call twice"):
        found.feed([(one, [1]), (one, [2])])
    assert found.length(one) == 0


def test_a_sequence_of_another_object_is_none_of_these() -> None:
    found, other = forked(), forked()
    own = [found.open() for _ in range(2)]
    foreign = other.open()
    other.feed([(foreign, [1, 2])])
    for call in (lambda: found.feed([(own[0], [1]), (foreign, [3])]), lambda: found.close(foreign)):
        with pytest.raises(SequenceError, match=f"sequence {foreign}: it is not open"):
            call()
    assert [found.length(handle) for handle in own] == [0, 0] and other.length(foreign) == 2


def test_rewinding_too_far() -> None:
    found = forked()
    one = found.open()
    found.feed([(one, [1, 2])])
    with pytest.raises(SequenceError, match=f"sequence {one}: cannot rewind to 3: the sequence has 2 positions"):
        found.rewind(one, 3)
    found.rewind(one, 1)
    np.testing.assert_array_equal(found.feed([(one, [5])])[0], CHANCE.logits_behind([1, 5]))


class _Failing(Chance):
    """Token 9 fails while it is fed; `rewinds` says whether the past can be cut off but for all of it."""

    rewinds = True

    def feed(self, tokens: Tokens) -> np.ndarray:
        if 9 in check_tokens(self, tokens):
            self.past.append(9)
            raise ExecutionError("no memory")
        return super().feed(tokens)

    def rewind(self, length: int) -> None:
        if length and not self.rewinds:
            raise OptionError("sums of the past")
        super().rewind(length)


class _Summing(_Failing):
    rewinds = False


def test_a_call_that_fails_half_way_changes_nothing() -> None:
    found = ForkedSequences(_Failing(context=16))
    handles = [found.open() for _ in range(3)]
    found.feed([(handle, [n]) for n, handle in enumerate(handles)])
    with pytest.raises(ExecutionError, match="no memory"):
        found.feed([(handles[0], [1]), (handles[1], [9]), (handles[2], [1])])
    assert [found.length(handle) for handle in handles] == [1, 1, 1]


def test_what_cannot_be_taken_back_is_closed() -> None:
    found = ForkedSequences(_Summing(context=16))
    handles = [found.open() for _ in range(3)]
    found.feed([(handle, [n]) for n, handle in enumerate(handles)])
    with pytest.raises(ExecutionError, match="no memory"):
        found.feed([(handles[0], [1]), (handles[1], [9]), (handles[2], [1])])
    for handle in handles[:2]:
        with pytest.raises(SequenceError, match="it is not open"):
            found.length(handle)
    assert found.length(handles[2]) == 1


class _Windowed(_Failing):
    """As layers with a window have it: far back there is nothing but the begin."""

    def rewind(self, length: int) -> None:
        if length and length < self.length - 2:
            raise InputError("rows that are not kept")
        super().rewind(length)


def test_what_a_window_has_forgotten_is_closed() -> None:
    """The error is that of the call."""
    found = ForkedSequences(_Windowed(context=16))
    handles = [found.open() for _ in range(3)]
    found.feed([(handle, [5]) for handle in handles])
    with pytest.raises(ExecutionError, match="no memory"):
        found.feed([(handles[0], [1] * 6), (handles[1], [9]), (handles[2], [1])])
    with pytest.raises(SequenceError, match="it is not open"):
        found.length(handles[0])
    assert (found.length(handles[1]), found.length(handles[2])) == (1, 1)


def test_the_decoder_that_is_given_stays_as_it_is() -> None:
    decoder = Chance(context=16)
    decoder.feed([1, 2, 3])
    found = ForkedSequences(decoder)
    one = found.open()
    np.testing.assert_array_equal(found.feed([(one, [4])])[0], decoder.logits_behind([4]))
    assert decoder.past == [1, 2, 3]


@pytest.mark.fresh_seeds(3)
def test_any_order_of_calls(fresh_seed: int) -> None:
    """Against lists of tokens."""
    rng = random.Random(fresh_seed)
    found = forked(slots=5)
    texts: dict[int, list[int]] = {}
    for _ in range(400):
        what = rng.choice(("open", "like", "close", "rewind", "feed", "feed", "feed"))
        if what in ("open", "like") and len(texts) < 5:
            like = rng.choice([*texts]) if what == "like" and texts else None
            texts[found.open(like)] = [] if like is None else list(texts[like])
        elif what == "close" and texts:
            handle = rng.choice([*texts])
            found.close(handle)
            del texts[handle]
        elif what == "rewind" and texts:
            handle = rng.choice([*texts])
            length = rng.randint(0, len(texts[handle]))
            found.rewind(handle, length)
            del texts[handle][length:]
        elif what == "feed":
            parts = []
            for handle in rng.sample([*texts], rng.randint(0, len(texts))):
                room = found.context - len(texts[handle])
                if room:
                    parts.append((handle, [rng.randrange(12) for _ in range(rng.randint(1, min(room, 4)))]))
            for (handle, tokens), logits in zip(parts, found.feed(parts), strict=True):
                texts[handle] += tokens
                np.testing.assert_array_equal(logits, CHANCE.logits_behind(texts[handle]))
        assert {handle: found.length(handle) for handle in texts} == {h: len(t) for h, t in texts.items()}
