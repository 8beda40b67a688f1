"""Weights as small as a promise about text allows: `weights="auto"`."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.load import context_of
from tilewright.frontends.decoders.source import STORED, DecoderSource
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.texts.score import WINDOW, logits_of, pieces_of, text_of
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.options import OnProgress, Options, Request
from tilewright.quantization.decoders.probe import DecoderProbe
from tilewright.quantization.decoders.promise import Choosing, Chosen, ComparedText, Importance, Promise
from tilewright.runtime.errors import InputError, OptionError
from tilewright.session import Session

MOST_PIECES = 32
"""Of a longer text so many are taken, at equal distances."""


def promised_weights(
    path: Path,
    tokenizer: Tokenizer,
    *,
    max_drop: float | None,
    confidence: float = 0.95,
    text: str | Path | None = None,
    context: int | None = None,
    caches: str | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    threads: int | None = None,
    cache: bool = True,
    **fields: Any,
) -> Chosen:
    """The smallest forms of the matrices with which no more than `max_drop` of all tokens change (see `Promise`).
    `text` is a file, the built-in text without one. `caches` (see `DecoderSource`) and `fields` (activations=, ...) say
    how the model is compiled that is judged. What was found is kept in the cache of compiled models.

    PromiseError where no choice keeps it; InputError for a text that cannot show it; OptionError.
    """
    if max_drop is None:
        raise OptionError('weights="auto" needs max_drop=', hint="max_drop=0.02 lets two of a hundred tokens differ")
    if not DecoderFrontEnd().accepts(path):
        raise OptionError(
            f'weights="auto" needs a GGUF file or a folder with config.json: {path} says by itself what it is',
            hint="leave weights= out",
        )
    promise, session = Promise(max_drop, confidence), Session.of(session)
    content, name = text_of(text)
    digest = digest_of_text(content)
    source = DecoderSource(path, capacity=context, caches=caches or STORED)
    key = session.key(Request.of(source, None, None), Options(threads=threads, **fields)) if cache else None
    pieces = pieces_of(content, tokenizer, min(context or WINDOW, context_of(path)), most=MOST_PIECES)
    tokens = hashlib.blake2b(b"".join(p.tobytes() for p in pieces), digest_size=16).hexdigest()  # by this vocabulary
    about = f"forms of {key}: {promise} {digest} {tokens}"
    known = session.recall(about) if key else None
    if known is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, InputError):  # it is damaged
            return Chosen.of(json.loads(known))
    how: dict[str, Any] = {"session": session, "progress": progress, "threads": threads, "cache": cache}

    def compiled(forms: dict[str, str], importance: Importance) -> Callable[[np.ndarray], np.ndarray]:
        own = replace(source, weights=forms or None, importance=importance)
        return logits_of(compiled_decoder(compile_model(own, **how, **fields)))

    found = Choosing(path, ComparedText.of(pieces, name, digest), promise, compiled, **how).chosen()
    if key:
        session.note(about, json.dumps(found.record()).encode())
    return found


def digest_of_text(content: str) -> str:
    """What tells a text from another one in certificates."""
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def reference_of(path: Path, context: int, **how: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Gives logits f64[n, vocabulary] behind n tokens, at most `context` of them: of the weights that a checkpoint
    stores, computed in float64. `how`: threads, session, progress and cache of `tilewright.compile`."""
    if not DecoderFrontEnd().accepts(path):
        raise OptionError(
            f"there is no reference: {path} is no GGUF file and no folder with config.json",
            hint="give the checkpoint that the model was made of",
        )
    return DecoderProbe(path, min(context, context_of(path)), **how).wide()
