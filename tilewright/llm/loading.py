"""`load`: a file or a folder becomes a model that answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_model
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.decoder import CompiledDecoder
from tilewright.llm.model import LanguageModel
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.vocabulary import Vocabulary, read_vocabulary
from tilewright.options import OnProgress
from tilewright.runtime import Model
from tilewright.runtime import load as load_artefact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.container import is_container_file
from tilewright.session import Session


def load(
    path: str | Path,
    *,
    weights: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    tokenizer: str | Path | None = None,
    template: str | None = None,
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
    session, progress, fields: as for `tilewright.compile`.

    Raises ModelError, UnsupportedError, OptionError.
    """
    place = Path(path)
    words = read_vocabulary(place if tokenizer is None else Path(tokenizer))
    model = _model(place, weights, context, threads=threads, session=session, progress=progress, **fields)
    return _joined(model, words, template)


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


def _joined(model: Model, words: Vocabulary, template: str | None) -> LanguageModel:
    return LanguageModel(compiled_decoder(model), words.tokenizer, words.with_template(template))
