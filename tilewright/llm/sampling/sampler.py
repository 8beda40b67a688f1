"""The next token of one sequence: bias and penalties, filters, and a draw."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.llm.sampling.partial import heaviest, largest
from tilewright.llm.sampling.settings import Sampling
from tilewright.runtime.errors import ExecutionError, InputError

_BLOCK = 512
"""Weights that are summed apart from the others: a draw looks at the sums first."""
_SEED_BITS = 53
"""Of seeds that are made here: programs that keep numbers as doubles keep these."""


@dataclass(frozen=True)
class Drawn:
    """A token, the logarithm of its probability as the model has it (before bias, penalties and filters), and the most
    likely tokens with theirs; None and () where these were not asked for."""

    token: int
    log_probability: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one sequence, whose first ones are `prompt`. `size`: rows of logits beyond it are no tokens.
    The draws follow from `seed`: one number for each."""

    def __init__(self, settings: Sampling, size: int, prompt: Iterable[int] = ()) -> None:
        self.settings = settings
        self.seed = secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed
        self._size = size
        self._bias = _bias(settings, size)
        self._counts: dict[int, int] = {}
        self._seen = _known(prompt if settings.repetition_penalty != 1 else (), size)

    @cached_property
    def _numbers(self) -> np.random.Generator:
        """Made for the first draw: texts of the most likely tokens need none, and numpy.random takes 3 MB."""
        return np.random.Generator(np.random.PCG64(self.seed))

    def draw(self, logits: np.ndarray, top: int | None = None, allowed: np.ndarray | None = None) -> Drawn:
        """The next token, which counts as part of the answer from now on; `logits` f32[rows] are written to. `top`: how
        many of the most likely tokens are told. `allowed` bool[rows] are those that may come."""
        logits = logits[: self._size]
        check_finite(logits)
        if top is None:
            return Drawn(self._next(logits, allowed))
        raw, log_sum = logits.copy(), log_sum_exp(logits)
        told = [(int(n), float(raw[n]) - log_sum) for n in largest(raw, top)]
        token = self._next(logits, allowed)
        return Drawn(token, float(raw[token]) - log_sum, tuple(told))

    def _next(self, logits: np.ndarray, allowed: np.ndarray | None) -> int:
        self._change(logits)
        if allowed is not None:
            logits[~allowed[: self._size]] = -np.inf
        token = self._chosen(logits)
        self._count(token)
        return token

    def _count(self, token: int) -> None:
        times = self._counts.get(token, 0)
        self._counts[token] = times + 1
        if not times and token not in self._seen:
            self._seen = np.append(self._seen, token)

    def _change(self, logits: np.ndarray) -> None:
        """Bias and penalties, in place."""
        settings = self.settings
        if self._bias is not None:
            tokens, bias = self._bias
            logits[tokens] += bias
        if settings.repetition_penalty != 1:
            values, penalty = logits[self._seen], np.float32(settings.repetition_penalty)
            with np.errstate(over="ignore"):  # of what a bias has made large; below it is -inf, which forbids
                changed = np.where(values > 0, values / penalty, values * penalty)
            logits[self._seen] = np.minimum(changed, np.finfo(np.float32).max)
        if self._counts and (settings.presence_penalty or settings.frequency_penalty):
            drawn = np.fromiter(self._counts, np.int64)
            times = np.fromiter(self._counts.values(), np.float32)
            logits[drawn] -= (
                np.float32(settings.presence_penalty) + np.float32(settings.frequency_penalty) * times
            )

    def _chosen(self, logits: np.ndarray) -> int:
        greatest = int(logits.argmax())
        peak = float(logits[greatest])
        if peak == -math.inf:
            raise InputError(
                "no token may come next: logit_bias or the grammar forbids all of them",
                hint="allow some, or end the text before",
            )
        if self.settings.temperature == 0 or self.settings.top_k == 1:
            return greatest
        places, weights = filtered(logits, peak, self.settings)
        place = drawn_place(weights, self._numbers.random())
        return place if places is None else int(places[place])


def filtered(logits: np.ndarray, peak: float, settings: Sampling) -> tuple[np.ndarray | None, np.ndarray]:
    """The tokens that may be drawn (None: all), and their weights f32; `peak` is the greatest logit."""
    places = None
    if 0 < settings.top_k < logits.size:
        places = largest(logits, settings.top_k)
        logits = logits[places]
    with np.errstate(over="ignore"):  # at most 0: -inf is right
        scaled = (logits - np.float32(peak)) / np.float32(max(settings.temperature, 1e-30))
    if settings.top_p < 1:
        weights = np.exp(scaled)
        kept = heaviest(scaled, weights, settings.top_p * float(weights.sum(dtype=np.float64)))
        places, scaled = _of(places, kept), scaled[kept]
    if settings.min_p > 0:
        kept = np.flatnonzero(scaled >= np.float32(math.log(settings.min_p)))
        places, scaled = _of(places, kept), scaled[kept]
    if settings.typical_p < 1:
        kept = _typical(scaled, settings.typical_p)
        places, scaled = _of(places, kept), scaled[kept]
    return places, np.exp(scaled)


def drawn_place(weights: np.ndarray, number: float) -> int:
    """The place at which the sum of weights f32[n], of which one is positive, goes beyond `number` (0 to 1) of all."""
    whole = weights.size // _BLOCK * _BLOCK
    of_blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    sums = np.cumsum(np.append(of_blocks, weights[whole:].sum()), dtype=np.float64)
    wanted = number * sums[-1]
    block = min(int(np.searchsorted(sums, wanted, side="right")), sums.size - 1)
    first = block * _BLOCK
    within = np.cumsum(weights[first : first + _BLOCK], dtype=np.float64)
    place = first + int(np.searchsorted(within, wanted - (sums[block - 1] if block else 0.0), side="right"))
    if place < first + within.size:
        return place
    # sums of blocks are rounded in another order: the last that is possible
    return int(np.flatnonzero(weights[:place])[-1])


def check_finite(logits: np.ndarray) -> None:
    """ExecutionError for logits of which the greatest is no finite number."""
    if not math.isfinite(float(logits.max())):
        raise ExecutionError(
            "the model's logits are not finite",
            hint="its weights are damaged, or numbers are too large for its types",
        )


def log_sum_exp(logits: np.ndarray) -> float:
    """The logarithm of the sum of exponentials of f32[n]."""
    peak = float(logits.max())
    return peak + math.log(float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))


def _typical(scaled: np.ndarray, mass: float) -> np.ndarray:
    weights = np.exp(scaled)
    total = float(weights.sum(dtype=np.float64))
    information = np.float32(math.log(total)) - scaled
    possible = weights > 0
    expected = float(weights[possible] @ information[possible]) / total
    return heaviest(-np.abs(information - np.float32(expected)), weights, mass * total)


def _of(places: np.ndarray | None, kept: np.ndarray) -> np.ndarray:
    return kept if places is None else places[kept]


def _known(tokens: Iterable[int], size: int) -> np.ndarray:
    found = np.unique(np.fromiter(tokens, np.int64))
    return found[(found >= 0) & (found < size)]


def _bias(settings: Sampling, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    if not settings.logit_bias:
        return None
    wrong = next((token for token in settings.logit_bias if not 0 <= token < size), None)
    if wrong is not None:
        raise InputError(f"logit_bias names the token {wrong}, but the vocabulary has {size} tokens")
    return np.fromiter(settings.logit_bias, np.int64), np.fromiter(settings.logit_bias.values(), np.float32)
