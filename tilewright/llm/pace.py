"""How long a decoder takes for a token, by the length of what is before it: with its cache, and without."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.llm.decoder import Decoder
from tilewright.runtime.errors import InputError


@dataclass(frozen=True)
class TokenTimes:
    """Seconds for one token as the last of a sequence of `length`: with the others in the cache, and with all of them
    computed again."""

    length: int
    cached: float
    recomputed: float


def measured_pace(decoder: Decoder, lengths: Sequence[int], *, rounds: int = 5) -> list[TokenTimes]:
    """The least time of some rounds at each length, in a decoder of its own. Which tokens these are is drawn, as the
    time does not depend on it. InputError for lengths that the context has no room for."""
    for length in lengths:
        if not 1 <= length <= decoder.context:
            raise InputError(
                f"a sequence of {length} tokens cannot be measured: the context has {decoder.context} positions",
                hint="give smaller lengths, or a larger --context",
            )
    own = decoder.fork()
    tokens = np.random.default_rng(0).integers(0, decoder.vocabulary, max(lengths, default=1))
    return [_at(own, tokens[:length], rounds) for length in lengths]


def _at(decoder: Decoder, tokens: np.ndarray, rounds: int) -> TokenTimes:
    *_, last = tokens

    def again() -> None:
        decoder.rewind(0)
        decoder.feed(tokens)

    def one_more() -> None:
        decoder.feed([last])

    recomputed = min(_seconds(again) for _ in range(max(2, rounds // 2)))
    cached = math.inf
    for _ in range(rounds):
        decoder.rewind(len(tokens) - 1)  # nothing but the last token is forgotten
        cached = min(cached, _seconds(one_more))
    return TokenTimes(len(tokens), cached, recomputed)


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def slope(lengths: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of the power of the length that fits values best: the slope of their logarithms by least squares.
    Not a number for fewer than two lengths, or where values are not above 0."""
    if len(set(lengths)) < 2 or min(lengths) <= 0 or min(values) <= 0:
        return math.nan
    x, y = np.log(np.asarray(lengths, float)), np.log(np.asarray(values, float))
    x -= x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())
