"""How often two language models would take the same token, and how far apart what they expect is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.quantization.decision.bounds import clopper_pearson, mean_bound
from tilewright.runtime.errors import OptionError

Logits = Callable[[np.ndarray], np.ndarray]
"""Logits [n, vocabulary] behind each of n tokens, which follow one another."""

_ROWS_AT_ONCE = 4
_MOST_THREADS = 8


@dataclass(frozen=True)
class Agreement:
    """Of `tokens` positions of a text, each behind the text's own tokens: at how many both expect the same token most,
    and the mean over all of the divergence sum(p * log(p / q)) of what is expected (Kullback and Leibler), p that of
    the reference. With `confidence`, no more than `bound` of all positions of such texts differ (Clopper and Pearson),
    and the mean is at most `divergence_bound` (Student's t); both take positions for independent of each other."""

    tokens: int
    agreed: int
    divergence: float
    divergence_bound: float
    bound: float
    confidence: float

    @classmethod
    def of(cls, same: np.ndarray, divergences: np.ndarray, confidence: float) -> Agreement:
        """OptionError for a confidence that is no share from a half to 1."""
        if isinstance(confidence, bool) or not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
            raise OptionError(f"confidence={confidence!r:.80} is not allowed: give a number from 0.5 on, below 1")
        agreed, tokens = int(same.sum()), len(same)
        return cls(
            tokens, agreed, float(divergences.mean()), mean_bound(divergences, confidence),
            clopper_pearson(tokens - agreed, tokens, confidence), confidence,
        )  # fmt: skip

    @property
    def share(self) -> float:
        """Of positions that agree."""
        return self.agreed / self.tokens

    @property
    def drop(self) -> float:
        return 1 - self.share

    def record(self) -> dict[str, Any]:
        """Its fields as JSON data: a number that is not finite, such as the bound of a single divergence, is None."""
        return {**finite(asdict(self)), "share": self.share}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Agreement:
        """From JSON data. TypeError for what is none of an agreement."""
        given: dict[str, Any] = {name: math.inf if value is None else value for name, value in record.items()}
        given.pop("share", None)
        return cls(**given)

    def __str__(self) -> str:
        return (
            f"{100 * self.share:.2f} % of {self.tokens} tokens agree (at least {100 * (1 - self.bound):.2f} % with a "
            f"confidence of {self.confidence:.0%}), divergence {self.divergence:.3g} (at most "
            f"{self.divergence_bound:.3g})"
        )


def finite(data: Any) -> Any:
    """JSON data without what JSON has not: None in place of infinite and missing numbers."""
    if isinstance(data, dict):
        return {name: finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


@dataclass(frozen=True, eq=False)
class ComparedLogits:
    """For each position: is the most likely token the same, and the divergence."""

    same: np.ndarray
    divergences: np.ndarray

    @classmethod
    def joined(cls, parts: Iterable[ComparedLogits]) -> ComparedLogits:
        found = list(parts)
        return cls(np.concatenate([p.same for p in found]), np.concatenate([p.divergences for p in found]))

    def agreement(self, confidence: float) -> Agreement:
        return Agreement.of(self.same, self.divergences, confidence)


def compared(reference: np.ndarray, logits: np.ndarray) -> ComparedLogits:
    """Of logits [n, vocabulary] of both; a NaN of either agrees with nothing, and its divergence is infinite."""
    same, divergences = np.zeros(len(reference), bool), np.zeros(len(reference))

    def some(first: int) -> None:
        rows = slice(first, first + _ROWS_AT_ONCE)
        wanted, found = reference[rows].astype(np.float64), logits[rows].astype(np.float64)
        is_number = ~(np.isnan(wanted).any(axis=1) | np.isnan(found).any(axis=1))
        same[rows] = (wanted.argmax(axis=1) == found.argmax(axis=1)) & is_number
        wanted -= log_sums(wanted)[:, None]
        found -= log_sums(found)[:, None]
        likely = np.exp(wanted)
        with np.errstate(invalid="ignore"):
            terms = np.multiply(likely, wanted - found, out=np.zeros_like(likely), where=likely > 0)
        sums = terms.sum(axis=1)
        divergences[rows] = np.where(is_number, np.maximum(sums, 0.0), np.inf)

    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(some, range(0, len(reference), _ROWS_AT_ONCE)))
    return ComparedLogits(same, divergences)


def log_sums(logits: np.ndarray) -> np.ndarray:
    """log(sum(exp(logits))) of each row."""
    largest = logits.max(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1)))


def compare(windows: Sequence[np.ndarray], reference: Logits, model: Logits) -> ComparedLogits:
    """Of both on sequences of tokens, one after the other."""
    return ComparedLogits.joined(compared(reference(tokens), model(tokens)) for tokens in windows)
