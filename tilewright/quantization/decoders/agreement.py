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
from tilewright.runtime.storage.records import record as typed

Logits = Callable[[np.ndarray], np.ndarray]
"""Logits [n, vocabulary] behind each of n tokens, which follow one another."""

_ROWS_AT_ONCE = 8
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
        """From JSON data. ValueError for what is none of an agreement."""
        given: dict[str, Any] = {name: math.inf if value is None else value for name, value in record.items()}
        given.pop("share", None)
        found = typed(cls, given)
        if not 0 <= found.agreed <= found.tokens or found.tokens < 1:
            raise ValueError(f"{found.agreed} of {found.tokens} tokens agree")
        return found

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


@dataclass(frozen=True, eq=False)
class KnownLogits:
    """Logits [n, vocabulary] that others are compared with, and what of them is the same each time: of each row the
    most likely token, and log(sum(exp(row)))."""

    rows: np.ndarray
    greatest: np.ndarray
    log_sums: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> KnownLogits:
        greatest, log_sums = np.zeros(len(rows), np.int64), np.zeros(len(rows))

        def some(places: range) -> None:
            room = np.empty(rows.shape[1])
            for k in places:
                greatest[k] = rows[k].argmax()  # of a NaN, if there is one
                log_sums[k] = _log_sum(rows[k], room)

        _in_parts(len(rows), some)
        return cls(rows, greatest, log_sums)


def compared(reference: np.ndarray | KnownLogits, logits: np.ndarray) -> ComparedLogits:
    """Of logits [n, vocabulary] of both; a NaN of either agrees with nothing, and its divergence is infinite."""
    known = reference if isinstance(reference, KnownLogits) else KnownLogits.of(reference)
    same, divergences = np.zeros(len(logits), bool), np.full(len(logits), np.inf)

    def some(places: range) -> None:
        wanted, found, likely = (np.empty(logits.shape[1]) for _ in range(3))
        for k in places:
            greatest = logits[k].argmax()
            if np.isnan(logits[k, greatest]) or np.isnan(known.rows[k, known.greatest[k]]):
                continue
            same[k] = greatest == known.greatest[k]
            log_sum = _log_sum(logits[k], found)
            np.subtract(logits[k], log_sum, out=found, dtype=np.float64)
            np.subtract(known.rows[k], known.log_sums[k], out=wanted, dtype=np.float64)
            divergences[k] = _divergence(wanted, found, likely)

    _in_parts(len(logits), some)
    return ComparedLogits(same, divergences)


def _divergence(wanted: np.ndarray, found: np.ndarray, room: np.ndarray) -> float:
    """Of the logarithms of what is expected; all of them are written to."""
    likely = np.exp(wanted, out=room)
    with np.errstate(invalid="ignore"):
        terms = np.subtract(wanted, found, out=found)
        total = np.multiply(likely, terms, out=wanted).sum()
        if not np.isfinite(total):  # what cannot be counts nothing, however far apart the logarithms are
            total = np.multiply(likely, terms, out=np.zeros_like(likely), where=likely > 0).sum()
    return float(np.maximum(total, 0.0))


def _log_sum(row: np.ndarray, room: np.ndarray) -> float:
    """log(sum(exp(row))) in float64."""
    largest = np.float64(row.max())
    with np.errstate(invalid="ignore"):
        np.exp(np.subtract(row, largest, out=room, dtype=np.float64), out=room)
        return float(largest + np.log(room.sum()))


def _in_parts(count: int, run: Callable[[range], None]) -> None:
    """Of so many rows some at a time, on all cores. Rows of large vocabularies are computed one by one: several of them
    would not stay in caches."""
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(run, (range(k, min(k + _ROWS_AT_ONCE, count)) for k in range(0, count, _ROWS_AT_ONCE))))


def compare(windows: Sequence[np.ndarray], reference: Logits, model: Logits) -> ComparedLogits:
    """Of both on sequences of tokens, one after the other."""
    return ComparedLogits.joined(compared(reference(tokens), model(tokens)) for tokens in windows)
