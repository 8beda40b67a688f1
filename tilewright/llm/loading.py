"""`load`: a file or a folder becomes a model that answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_model
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.checkpoint import read_checkpoint
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.diag import UnsupportedError
from tilewright.llm.decoder import CompiledDecoder, Decoder
from tilewright.llm.model import LanguageModel
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.sequences import CompiledSequences, SequenceDecoder
from tilewright.llm.speculation.drafts import DraftModel, Drafts, Lookup
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.vocabulary import read_vocabulary
from tilewright.options import OnProgress
from tilewright.runtime import Model
from tilewright.runtime import load as load_artefact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.container import is_container_file
from tilewright.session import Session

LOOKUP = "lookup"
"""The draft that needs no model."""
_MOST_OPEN = (1 << 16) - 1


def load(
    path: str | Path,
    *,
    weights: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    tokenizer: str | Path | None = None,
    template: str | None = None,
    sequences: int | None = None,
    draft: str | Path | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> LanguageModel:
    """A language model, compiled or from the cache, with its vocabulary and chat template.

    path: a GGUF file, a folder of Hugging Face (config.json, weights as .safetensors, tokenizer.json), or a compiled
        decoder (.tw) or any other model that is one, with `tokenizer` beside it.
    weights: "float32", "float16", "bfloat16", "int8" or "int4" in place of what the file stores.
    threads: how many run it (None: all that it may use).
    context: the most tokens of prompt and answer together (None: what it was trained for).
    tokenizer: where the vocabulary is, if it is not in `path`: a GGUF file, or a folder with a tokenizer.json.
    template: the text of a chat template in place of the model's own.
    sequences: how many, up to 8, go through the model together where `sequences()` is asked (as for serving). Models
        that have no form for several take one after the other.
    draft: guess what comes next, and look at several tokens in a call: "lookup" from what was there before, or the
        path of a smaller model with the same vocabulary. The text is what it is without.
    session, progress, fields: as for `tilewright.compile`.

    Raises ModelError, UnsupportedError, OptionError.
    """
    place = Path(path)
    words = read_vocabulary(place if tokenizer is None else Path(tokenizer))
    how: dict[str, Any] = {"threads": threads, "session": session, "progress": progress, **fields}
    source = DecoderSource(place, capacity=context, weights=weights, sequences=sequences)
    decoder: Decoder
    if draft is not None:
        decoder = _guessing(replace(source, sequences=sequences or 1), draft, words.tokenizer, how)
    elif sequences is not None and DecoderFrontEnd().accepts(place):
        decoder = _one_of_several(source, how) or compiled_decoder(_model(place, weights, context, **how))
    else:
        decoder = compiled_decoder(_model(place, weights, context, **how))
    return LanguageModel(decoder, words.tokenizer, words.with_template(template))


def load_decoder(
    path: str | Path,
    *,
    weights: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> CompiledDecoder:
    """The model alone, without vocabulary and template; the arguments are those of `load`."""
    return compiled_decoder(
        _model(Path(path), weights, context, threads=threads, session=session, progress=progress, **fields)
    )


def _model(place: Path, weights: str | None, context: int | None, **how: Any) -> Model:
    if DecoderFrontEnd().accepts(place):
        return compile_model(DecoderSource(place, capacity=context, weights=weights), **how)
    if weights is not None or context is not None:
        name = "weights" if weights is not None else "context"
        raise OptionError(
            f"{name}= needs a GGUF file or a folder with config.json: {place} says by itself what it is",
            hint=f"leave {name}= out",
        )
    if is_container_file(place):
        return load_artefact(place, how["threads"])
    return compile_model(place, **{"states": True, **how})


def _one_of_several(source: DecoderSource, how: dict[str, Any]) -> SequenceDecoder | None:
    """None for an architecture that has no form for several sequences, or is not supported at all."""
    try:
        model = compile_model(source, **how)
    except UnsupportedError:
        return None
    return SequenceDecoder(CompiledSequences(model, _MOST_OPEN))


def _guessing(
    source: DecoderSource, draft: str | Path, words: Tokenizer, how: dict[str, Any]
) -> SpeculatingDecoder:
    if not DecoderFrontEnd().accepts(source.path):
        raise OptionError(
            f"draft= needs a GGUF file or a folder with config.json, which {source.path} is not",
            hint="leave draft= out",
        )
    sequences = CompiledSequences(compile_model(source, **how), _MOST_OPEN)
    config = read_checkpoint(Path(source.path)).config
    window = config.count("sliding_window", least=0) if "sliding_window" in config else 0
    decoder = SequenceDecoder(sequences, window=window or None)
    return SpeculatingDecoder(decoder, _drafts(draft, words, how))


def _drafts(draft: str | Path, words: Tokenizer, how: dict[str, Any]) -> Drafts:
    if draft == LOOKUP:
        return Lookup()
    other = read_vocabulary(Path(draft)).tokenizer
    if other.size != words.size or any(other.name(n) != words.name(n) for n in range(words.size)):
        raise OptionError(
            f"{draft} has another vocabulary than the model that it is to guess for",
            hint=f"give a smaller model of the same family, or '{LOOKUP}'",
        )
    return DraftModel(load_decoder(draft, **how), words.size)
