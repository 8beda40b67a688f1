"""Beam search: the answers that are most likely as wholes, among those that continue the best begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.llm.decoder import Decoder
from tilewright.llm.sampling.partial import largest
from tilewright.llm.sampling.sampler import check_finite, log_sum_exp
from tilewright.runtime.errors import OptionError

_MOST_PENALTY = 30
"""Of lengths: that power of a context of 2^31 is a number."""


@dataclass(frozen=True)
class Beam:
    """Tokens behind the prompt, the logarithm of their probability together, and whether the model ended them (the
    probability of the token that did is part of it)."""

    tokens: tuple[int, ...]
    log_probability: float
    ended: bool

    def score(self, length_penalty: float) -> float:
        """The logarithm for each token, or for its `length_penalty`-th power: above 1, long ones are better."""
        return self.log_probability / float(max(len(self.tokens) + self.ended, 1)) ** length_penalty


@dataclass
class _Live:
    decoder: Decoder
    tokens: tuple[int, ...]
    log_probability: float
    logits: np.ndarray


def beam_search(
    decoder: Decoder,
    prompt: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    ends: frozenset[int],
    size: int,
    length_penalty: float = 1.0,
    never: frozenset[int] = frozenset(),
) -> list[Beam]:
    """The best `width` continuations of the prompt, the best first; each branch is a fork of the decoder. `size`: rows
    of logits beyond it are no tokens, and those of `never` are in none. A search ends when none of the open begins can
    become better than what is found. OptionError for numbers outside of their ranges, ExecutionError for logits that
    are not finite.
    """
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= 1000:
        raise OptionError(f"beams={width!r:.40} is not allowed: give an integer from 1 to 1000")
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 0:
        raise OptionError(f"max_tokens={max_tokens!r:.40} is not allowed: give an integer of at least 0")
    is_number = isinstance(length_penalty, int | float) and not isinstance(length_penalty, bool)
    if not is_number or not abs(length_penalty) <= _MOST_PENALTY:
        raise OptionError(
            f"length_penalty={length_penalty!r:.40} is not allowed: give a number from {-_MOST_PENALTY} to "
            f"{_MOST_PENALTY}"
        )
    if not max_tokens:
        return [Beam((), 0.0, False)]
    live = [_Live(decoder, (), 0.0, decoder.feed(prompt))]
    found: list[Beam] = []
    most = min(max_tokens, decoder.context - decoder.length + 1)
    for length in range(most):
        next_ones: list[tuple[_Live, int, float]] = []
        for parent, token, log_probability in _continued(live, 2 * width, size, never):
            if token in ends:
                found.append(Beam(parent.tokens, log_probability, True))
            elif len(next_ones) < width:
                next_ones.append((parent, token, log_probability))
        found = sorted(found, key=lambda beam: -beam.score(length_penalty))[:width]
        if length == most - 1:
            found += [Beam((*p.tokens, token), probability, False) for p, token, probability in next_ones]
            break
        if _settled(found, next_ones, width, most, length_penalty):
            break
        live = _fed(next_ones)
    return sorted(found, key=lambda beam: -beam.score(length_penalty))[:width]


def _continued(
    live: list[_Live], count: int, size: int, never: frozenset[int]
) -> list[tuple[_Live, int, float]]:
    """The most likely `count` of all begins with one token more."""
    found: list[tuple[_Live, int, float]] = []
    for beam in live:
        logits = beam.logits[:size]
        check_finite(logits)
        total = log_sum_exp(logits)
        found += [
            (beam, int(token), beam.log_probability + float(logits[token]) - total)
            for token in largest(logits, count + len(never))
            if int(token) not in never
        ]
    return sorted(found, key=lambda one: -one[2])[:count]


def _settled(
    found: list[Beam], open_ones: list[tuple[_Live, int, float]], width: int, most: int, length_penalty: float
) -> bool:
    """Whether no open begin can become better than the worst of what is found: probabilities only fall, and lengths
    are at most `most`."""
    if not open_ones:
        return True
    if len(found) < width:
        return False
    best = max(log_probability for _, _, log_probability in open_ones)
    longest = float(most if length_penalty > 0 else len(open_ones[0][0].tokens) + 2)
    return best / longest**length_penalty <= found[-1].score(length_penalty)


def _fed(next_ones: list[tuple[_Live, int, float]]) -> list[_Live]:
    """Each begin with its token; the last one of a parent takes over its decoder."""
    last = {id(parent): n for n, (parent, _, _) in enumerate(next_ones)}
    decoders = [
        parent.decoder if last[id(parent)] == n else parent.decoder.fork()
        for n, (parent, _, _) in enumerate(next_ones)
    ]
    return [
        _Live(decoder, (*parent.tokens, token), log_probability, decoder.feed([token]))
        for decoder, (parent, token, log_probability) in zip(decoders, next_ones, strict=True)
    ]
