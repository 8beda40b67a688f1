"""What decoders take: the checks that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pytest

from tilewright.llm.decoder import Decoder, Tokens, check_length, check_tokens
from tilewright.runtime.errors import InputError


class _Sums:
    """The next token is the sum of all before it."""

    vocabulary = 11
    context = 4

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def feed(self, tokens: Tokens) -> np.ndarray:
        self.tokens += check_tokens(self, tokens).tolist()
        return np.eye(self.vocabulary, dtype=np.float32)[sum(self.tokens) % self.vocabulary]

    def rewind(self, length: int) -> None:
        del self.tokens[check_length(self, length) :]

    def fork(self) -> Self:
        return type(self)(self.tokens)


def test_a_decoder_of_a_few_lines_has_the_protocol() -> None:
    decoder: Decoder = _Sums()
    assert decoder.feed([3, 4]).argmax() == 7
    other = decoder.fork()
    assert decoder.feed([7]).argmax() == 3
    other.rewind(1)
    assert other.feed(np.array([9], np.int32)).argmax() == 1
    assert (decoder.length, other.length) == (3, 2)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "at least one, not none"),
        ([[1, 2]], r"not an array int64\[1, 2\]"),
        ([0.5], "float64"),
        ([2, 11], "there is no token 11: the vocabulary has 11"),
        ([-1], "there is no token -1"),
        ([1, 2, 3], "3 tokens behind 2 are more than the context of 4 positions"),
    ],
)
def test_tokens_that_do_not_fit_change_nothing(tokens: Sequence[int], said: str) -> None:
    decoder = _Sums([1, 2])
    with pytest.raises(InputError, match=said):
        decoder.feed(tokens)
    assert decoder.tokens == [1, 2]


@pytest.mark.parametrize("length", [-1, 3, 1.5, True])
def test_a_sequence_is_only_cut_off(length: int) -> None:
    with pytest.raises(InputError, match=r"cannot rewind to .*: the sequence has 2 positions"):
        _Sums([1, 2]).rewind(length)
