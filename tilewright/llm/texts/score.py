"""Whole texts: how likely a model finds one, how long a token of it takes, and how far it is from a reference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.llm.decoder import Decoder
from tilewright.llm.sampling.sampler import log_sum_exp
from tilewright.llm.texts.sample import SAMPLE
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.quantization.decoders.agreement import Agreement, ComparedLogits, compared, finite
from tilewright.runtime.errors import InputError, OptionError

BUILT_IN = "the built-in text"
WINDOW = 256
"""Tokens of a piece of a text, which follow one another."""
_MOST_LOGITS = 1 << 25
"""Of a piece: those of large vocabularies are shorter."""


@dataclass(frozen=True)
class TextScore:
    """Of a text in pieces of so many tokens at most (`window`), each a beginning of its own: `tokens` were fed one by
    one, and `scored` of them have a probability, as there is one before them. `perplexity` is that of the model, and
    `reference_perplexity` that of the reference, where there is one, with which the model has this `agreement`.
    `seconds_per_token` is the median."""

    tokens: int
    scored: int
    window: int
    perplexity: float
    seconds_per_token: float
    agreement: Agreement | None = None
    reference_perplexity: float | None = None

    def record(self) -> dict[str, Any]:
        """As JSON data."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "agreement"}
        return {**finite(own), "agreement": None if self.agreement is None else self.agreement.record()}


def text_of(file: str | Path | None) -> tuple[str, str]:
    """A text, and the name of where it is from: a file in UTF-8, or the built-in one."""
    if file is None:
        return SAMPLE, BUILT_IN
    try:
        return Path(file).read_text(encoding="utf-8"), str(file)
    except (OSError, ValueError) as error:  # bytes that are no text, or a path that is none
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"the text cannot be read: {reason}", where=str(file), hint="give a file in UTF-8") from error


def pieces_of(
    text: str, tokenizer: Tokenizer, context: int, *, window: int = WINDOW, most: int | None = None
) -> list[np.ndarray]:
    """A text as sequences of tokens that fit into the context, each behind what a text begins with; of more than `most`
    pieces so many, at equal distances."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 2:
        raise OptionError(f"window={window!r:.80} is not allowed: give a number of tokens, from 2 on")
    begin = tokenizer.encode("")
    tokens = tokenizer.encode(text, begin=False)
    size = min(window, context, max(_MOST_LOGITS // tokenizer.size, 32)) - len(begin)
    if size < 1 or len(begin) + min(size, len(tokens)) < 2:
        raise InputError(
            f"there is nothing to compare: the text has {len(tokens)} tokens, and the context {context} positions",
            hint="give a longer text",
        )
    pieces = [np.array([*begin, *tokens[k : k + size]], np.int64) for k in range(0, len(tokens), size)]
    if len(pieces[-1]) < 2:
        pieces.pop()
    if most is not None and len(pieces) > most:
        pieces = [pieces[k * len(pieces) // most] for k in range(most)]
    return pieces


def logits_of(decoder: Decoder, seconds: list[float] | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Gives logits [n, vocabulary] behind n tokens, which are fed one by one, as those of an answer are; the time of
    each is added to `seconds`."""

    def run(tokens: np.ndarray) -> np.ndarray:
        decoder.rewind(0)
        rows = []
        for k in range(len(tokens)):
            start = time.perf_counter()
            rows.append(decoder.feed(tokens[k : k + 1]))
            if seconds is not None:
                seconds.append(time.perf_counter() - start)
        return np.stack(rows)

    return run


def scored_text(
    decoder: Decoder,
    tokenizer: Tokenizer,
    pieces: Sequence[np.ndarray],
    *,
    reference: Callable[[np.ndarray], np.ndarray] | None = None,
    confidence: float = 0.95,
) -> TextScore:
    """The score of a text in pieces, beside a `reference` that gives logits [n, vocabulary] behind n tokens."""
    seconds: list[float] = []
    own = logits_of(decoder, seconds)
    likely: list[float] = []
    by_reference: list[float] = []
    parts: list[ComparedLogits] = []
    for tokens in pieces:
        logits = own(tokens)[:, : tokenizer.size]
        likely += _log_probabilities(logits, tokens)
        if reference is not None:
            wanted = reference(tokens)[:, : tokenizer.size]
            by_reference += _log_probabilities(wanted, tokens)
            parts.append(compared(wanted, logits))
    return TextScore(
        len(seconds), len(likely), max(map(len, pieces)), _perplexity(likely), float(np.median(seconds)),
        ComparedLogits.joined(parts).agreement(confidence) if parts else None,
        _perplexity(by_reference) if parts else None,
    )  # fmt: skip


def _log_probabilities(logits: np.ndarray, tokens: np.ndarray) -> list[float]:
    """Of each token but the first."""
    rows = zip(logits[:-1], tokens[1:], strict=True)
    return [float(row[token]) - log_sum_exp(row) for row, token in rows]


def _perplexity(log_probabilities: Sequence[float]) -> float:
    return math.exp(min(-math.fsum(log_probabilities) / len(log_probabilities), 700.0))
