"""`load`: a file or a folder becomes a model that answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_model
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.checkpoint import read_checkpoint
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.decoder import CompiledDecoder
from tilewright.llm.model import LanguageModel
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.sequences import SequenceDecoder, is_for_several
from tilewright.llm.speculation.drafts import DraftModel, Drafts, Lookup
from tilewright.llm.speculation.rows import SequenceRows
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.vocabulary import Vocabulary, read_vocabulary
from tilewright.options import OnProgress
from tilewright.runtime import Model
from tilewright.runtime import load as load_artefact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.container import is_container_file
from tilewright.session import Session

LOOKUP = "lookup"
"""The draft that needs no model."""


def load(
    path: str | Path,
    *,
    weights: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    sequences: int | None = None,
    tokenizer: str | Path | None = None,
    template: str | None = None,
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
    sequences: how many go through the model together, 1 to 8, for `LanguageModel.sequences` (None: they would go one
        after the other). UnsupportedError for architectures that have no form for several.
    tokenizer: where the vocabulary is, if it is not in `path`: a GGUF file, or a folder with a tokenizer.json.
    template: the text of a chat template in place of the model's own.
    draft: guess what comes next, and look at several tokens in a call: "lookup" from what was there before, or the
        path of a smaller model with the same vocabulary. The text is what it is without.
    session, progress, fields: as for `tilewright.compile`.

    Raises ModelError, UnsupportedError, OptionError.
    """
    place = Path(path)
    words = read_vocabulary(place if tokenizer is None else Path(tokenizer))
    how = {"threads": threads, "session": session, "progress": progress, **fields}
    if draft is None:
        return _joined(_model(place, weights, context, sequences, **how), words, template)
    if not DecoderFrontEnd().accepts(place):
        raise OptionError(
            f"draft= needs a GGUF file or a folder with config.json, which {place} is not", hint="leave draft= out"
        )
    model = _model(place, weights, context, sequences or 1, **how)
    guessing = SpeculatingDecoder(SequenceRows(model, window=_window_of(place)), _drafts(draft, words.tokenizer, how))
    return LanguageModel(guessing, words.tokenizer, words.with_template(template))


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
    how = {"threads": threads, "session": session, "progress": progress, **fields}
    return compiled_decoder(_model(Path(path), weights, context, None, **how))


def _model(place: Path, weights: str | None, context: int | None, sequences: int | None, **how: Any) -> Model:
    if DecoderFrontEnd().accepts(place):
        return compile_model(DecoderSource(place, capacity=context, weights=weights, sequences=sequences), **how)
    asked = {"weights": weights, "context": context, "sequences": sequences}
    if name := next((name for name, value in asked.items() if value is not None), ""):
        raise OptionError(
            f"{name}= needs a GGUF file or a folder with config.json: {place} says by itself what it is",
            hint=f"leave {name}= out",
        )
    if is_container_file(place):
        return load_artefact(place, how["threads"])
    return compile_model(place, **{"states": True, **how})


def _joined(model: Model, words: Vocabulary, template: str | None) -> LanguageModel:
    decoder = SequenceDecoder(model) if is_for_several(model) else compiled_decoder(model)
    return LanguageModel(decoder, words.tokenizer, words.with_template(template))


def _window_of(place: Path) -> int | None:
    """Positions behind which some layer does not attend to all, None where there are none."""
    config = read_checkpoint(place).config
    return (config.count("sliding_window", least=0) if "sliding_window" in config else 0) or None


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
