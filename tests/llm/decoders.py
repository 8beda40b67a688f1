"""Decoders of NumPy: what generation is tested with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.llm.decoder import Tokens, check_length, check_tokens


class Chance:
    """Logits follow from the last `memory` tokens by chance, the same for the same ones. `fed` and `forks` count what
    it was asked for."""

    def __init__(
        self, vocabulary: int = 12, context: int = 64, *, memory: int = 3, seed: int = 0, scale: float = 2.0
    ):
        self.vocabulary, self.context = vocabulary, context
        self._memory, self._seed, self._scale = memory, seed, scale
        self.past: list[int] = []
        self.fed: list[int] = []
        self.forks = 0

    @property
    def length(self) -> int:
        return len(self.past)

    def feed(self, tokens: Tokens) -> np.ndarray:
        new = check_tokens(self, tokens).tolist()
        self.past += new
        self.fed += new
        return self.logits_behind(self.past)

    def logits_behind(self, past: Sequence[int]) -> np.ndarray:
        """What follows a sequence."""
        rng = np.random.default_rng([self._seed, *past[-self._memory :]])
        return (rng.standard_normal(self.vocabulary) * self._scale).astype(np.float32)

    def rewind(self, length: int) -> None:
        del self.past[check_length(self, length) :]

    def fork(self) -> Chance:
        self.forks += 1
        copy = type(self).__new__(type(self))
        copy.__dict__.update({**self.__dict__, "past": list(self.past), "fed": []})
        return copy


class Scripted(Chance):
    """Says one answer after the other: an answer begins behind the tokens that were fed together."""

    def __init__(self, vocabulary: int, answers: Sequence[Sequence[int]], context: int = 4096):
        super().__init__(vocabulary, context)
        self._answers = [list(answer) for answer in answers]
        self._asked = itertools.count()  # shared by forks
        self._answer: list[int] = []
        self._begin = 0

    def feed(self, tokens: Tokens) -> np.ndarray:
        super().feed(tokens)
        if len(tokens) > 1:
            self._answer = self._answers[next(self._asked) % len(self._answers)]
            self._begin = self.length
        logits = np.zeros(self.vocabulary, np.float32)
        logits[self._answer[min(self.length - self._begin, len(self._answer) - 1)]] = 30.0
        return logits
