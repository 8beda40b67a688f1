"""`load`: a file or a folder becomes a model that answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_model
from tilewright.api import with_examples
from tilewright.frontends.decoders import DecoderFrontEnd, files_of_folder, parts_of_file
from tilewright.frontends.decoders.checkpoint import read_checkpoint
from tilewright.frontends.decoders.source import STORED, DecoderSource
from tilewright.frontends.exported import ExportedDecoder
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.frontends.tflite import TfliteFrontEnd
from tilewright.frontends.torch import TorchFrontEnd
from tilewright.frontends.weights.forms import Wanted
from tilewright.ir.diag import ModelError
from tilewright.llm.decoder import CompiledDecoder, Decoder, Embedder, position_bytes
from tilewright.llm.model import LanguageModel
from tilewright.llm.reading.decoder import compiled_decoder
from tilewright.llm.sequences import SequenceDecoder, is_for_several
from tilewright.llm.speculation.drafts import DraftModel, Drafts, Lookup
from tilewright.llm.speculation.speculating import SpeculatingDecoder
from tilewright.llm.tokens.json_files import read_json
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.llm.vocabulary import read_vocabulary
from tilewright.options import OnProgress
from tilewright.runtime import Model
from tilewright.runtime import load as load_artefact
from tilewright.runtime.arena import release_free_memory
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.container import is_container_file
from tilewright.session import Session

LOOKUP = "lookup"
"""The draft that needs no model."""
_USUAL_CONTEXT = 4096
"""Of exported decoders that say nothing of it: their caches take memory as they are filled."""


def load(
    path: str | Path | Any,
    *,
    weights: Wanted = None,
    max_drop: float | None = None,
    text: str | Path | None = None,
    threads: int | None = None,
    context: int | None = None,
    sequences: int | None = None,
    caches: str | None = None,
    tokenizer: str | Path | None = None,
    template: str | None = None,
    draft: str | Path | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> LanguageModel:
    """A language model, compiled or from the cache, with its vocabulary and chat template.

    path: a GGUF file, a folder of Hugging Face (config.json, weights as .safetensors, tokenizer.json), or a compiled
        decoder (.tw) or any other model that is one, with `tokenizer` beside it. An object that `tilewright.compile`
        takes, such as a torch.export.ExportedProgram, needs `tokenizer`; a torch.nn.Module also `example_inputs` and
        `dynamic_shapes`, as there.
    weights: "float32", "float16", "bfloat16", "int8" or "int4" in place of what the file stores, or another form, or
        forms by patterns of names (see `tilewright.DecoderSource`); "auto": for each matrix the smallest one, such that
        no more than `max_drop` of all tokens of a text (a file; without one the built-in text) have another most likely
        token than the file's weights in float64. `certificate` of the model says what was found.
    threads: how many run it (None: all that it may use).
    context: the most tokens of prompt and answer together (None: what it was trained for; of an exported decoder what
        a config.json or genai_config.json beside it says, or 4096).
    sequences: how many go through the model together, 1 to 8, for `LanguageModel.sequences` (None: they would go one
        after the other). UnsupportedError for architectures that have no form for several.
    caches: what keys and values are stored in: "float32" (None), "float16", "bfloat16" or "int8" (see
        `tilewright.DecoderSource`).
    tokenizer: where the vocabulary is, if it is not in `path`: a GGUF file, or a folder with a tokenizer.json.
    template: the text of a chat template in place of the model's own.
    draft: guess what comes next, and look at several tokens in a call: "lookup" from what was there before, or the
        path of a smaller model with the same vocabulary. The text is what it is without, with `sequences` of 1.
    session, progress, fields: as for `tilewright.compile`.

    Raises ModelError, UnsupportedError, OptionError.
    """
    _check_options(context, fields)
    if draft is not None and (not isinstance(draft, str | Path) or not str(draft)):
        raise OptionError(f"draft={draft!r:.80} is not allowed: give '{LOOKUP}', or the path of a smaller model")
    how: dict[str, Any] = {"threads": threads, "session": session, "progress": progress, **fields}
    if not isinstance(path, str | Path):
        _check_program({"weights": weights, "sequences": sequences, "caches": caches, "draft": draft}, path)
        if tokenizer is None:
            raise OptionError("a program has no vocabulary", hint="tokenizer= is a GGUF file or a folder that has it")
        words = read_vocabulary(Path(tokenizer))
        decoder = compiled_decoder(_program(path, context, **how))
        return LanguageModel(decoder, words.tokenizer, words.with_template(template))
    place = Path(path)
    is_checkpoint = DecoderFrontEnd().accepts(place)
    if not is_checkpoint and not is_container_file(place):
        Session.of(session).front_end(place)  # says what it is, or lacks, which may be more than a vocabulary
    words = read_vocabulary(place if tokenizer is None else Path(tokenizer))
    if draft is not None and not is_checkpoint:
        raise OptionError(
            f"draft= needs a GGUF file or a folder with config.json, which {place} is not",
            hint="leave draft= out",
        )
    if is_checkpoint and (tokenizer is not None or place.is_dir()):
        _check_rows(place, words.tokenizer)
    promised = None
    if weights == "auto":
        from tilewright.llm.texts.promised import promised_weights

        promised = promised_weights(
            place, words.tokenizer, max_drop=max_drop, text=text, context=context, caches=caches, **how
        )
        weights = promised.certificate.forms or None
    elif max_drop is not None or text is not None:
        name = "max_drop" if max_drop is not None else "text"
        raise OptionError(f'{name}= is that of weights="auto"', hint=f"leave {name}= out, or ask for it")
    source = DecoderSource(
        place,
        capacity=context,
        weights=weights,
        importance=None if promised is None else promised.importance,
        # guesses are looked at as rows of a sequence of a model for several
        sequences=1 if draft is not None and sequences is None else sequences,
        caches=caches or STORED,
    )
    stamps = _stamps(place) if is_checkpoint else ()
    model = _model(source, **how)
    guessing = None if draft is None else _guessing(place, model, draft, words.tokenizer, how)
    embedder = partial(_embedder, source, stamps, **how) if is_checkpoint else None
    found = LanguageModel(guessing or _decoder(model), words.tokenizer, words.with_template(template), embedder)
    found.position_bytes = position_bytes(model)
    found.certificate = None if promised is None else promised.certificate
    release_free_memory()  # of reading the vocabulary 5 to 10 MB, of compiling more than 100
    return found


def load_decoder(
    path: str | Path | Any,
    *,
    weights: Wanted = None,
    threads: int | None = None,
    context: int | None = None,
    caches: str | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> CompiledDecoder:
    """The model alone, without vocabulary and template; the arguments are those of `load`."""
    _check_options(context, fields)
    how = {"threads": threads, "session": session, "progress": progress, **fields}
    if not isinstance(path, str | Path):
        _check_program({"weights": weights, "caches": caches}, path)
        return compiled_decoder(_program(path, context, **how))
    source = DecoderSource(path, capacity=context, weights=weights, caches=caches or STORED)
    return compiled_decoder(_model(source, **how))


def _check_options(context: object, fields: Mapping[str, Any]) -> None:
    """OptionError for what is no number of positions, and for a type given to the option about compiled models."""
    if context is not None and (
        isinstance(context, bool) or not isinstance(context, int) or not 1 <= context < 1 << 31
    ):
        raise OptionError(f"context={context!r:.80} is not allowed: give a number of positions, from 1 on")
    if isinstance(cache := fields.get("cache"), str):
        raise OptionError(
            f"cache={cache!r:.80} is not allowed: it says whether compiled models are kept, True or False",
            hint="caches= is what keys and values are stored in",
        )


def _model(source: DecoderSource, **how: Any) -> Model:
    place = Path(source.path)
    if DecoderFrontEnd().accepts(place):
        return compile_model(source, **how)
    is_compiled, context = is_container_file(place), source.capacity
    caches = None if source.caches == STORED else source.caches
    asked = {"weights": source.weights, "sequences": source.sequences, "caches": caches}
    _check_program(asked | ({"context": context} if is_compiled else {}), place)
    return load_artefact(place, how["threads"]) if is_compiled else _program(place, context, **how)


def _check_program(asked: Mapping[str, Any], program: Any) -> None:
    """OptionError for what is asked of a model that is a program already."""
    if name := next((name for name, value in asked.items() if value is not None), ""):
        what = program if isinstance(program, Path) else f"a {type(program).__name__}"
        raise OptionError(
            f"{name}= needs a GGUF file or a folder with config.json: {what} says by itself what it is",
            hint=f"leave {name}= out",
        )


def _program(program: Any, context: int | None, **how: Any) -> Model:
    """Of a file, or an object, of another format than those of weights."""
    examples = [how.pop(name, None) for name in ("example_inputs", "example_kwargs", "dynamic_shapes")]
    source = with_examples(program, *examples)
    if any(front_end.accepts(source) for front_end in (OnnxFrontEnd(), TorchFrontEnd())):
        source = ExportedDecoder(source)
    if context is None and not TfliteFrontEnd().accepts(program):  # whose states are variables, of fixed sizes
        context = _context_beside(program) if isinstance(program, Path) else _USUAL_CONTEXT
    room = {} if context is None else {"capacity": context}
    return compile_model(source, **{"states": True, **room, **how})


def _context_beside(place: Path) -> int:
    """The most positions of an exported decoder, as files beside it say; a model itself says nothing of them."""
    genai = read_json(place.parent / "genai_config.json").get("model")
    told = (genai if isinstance(genai, dict) else {}).get("context_length")
    fields = read_json(place.parent / "config.json")
    for found in (told, *(fields.get(name) for name in ("max_position_embeddings", "n_positions", "n_ctx"))):
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 31:
            return found
    return _USUAL_CONTEXT


def _decoder(model: Model) -> Decoder:
    return SequenceDecoder(model) if is_for_several(model) else compiled_decoder(model)


def _guessing(
    place: Path, model: Model, draft: str | Path, words: Tokenizer, how: dict[str, Any]
) -> SpeculatingDecoder:
    config = read_checkpoint(place).config
    window = config.count("sliding_window", least=0) if "sliding_window" in config else 0
    return SpeculatingDecoder(SequenceDecoder(model, window=window or None), _drafts(draft, words, how))


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


def _check_rows(place: Path, words: Tokenizer) -> None:
    """ModelError for a vocabulary of another model: compiling first may take minutes."""
    config = read_checkpoint(place).config
    if "vocab_size" in config:
        words.check(config.count("vocab_size"))


def _embedder(source: DecoderSource, stamps: Stamps, **how: Any) -> Embedder:
    """Compiled of the files that the model was loaded from; ModelError where others stand in their place now."""
    place = Path(source.path)
    if _stamps(place) != stamps:
        raise ModelError(
            "the files of the model have changed since it was loaded, and embeddings would be another one's",
            where=str(place),
            hint="load it again",
        )
    return Embedder(compile_model(replace(source, hidden=True, sequences=None), **how))


Stamps = tuple[tuple[str, int, int, int], ...]


def _stamps(place: Path) -> Stamps:
    """What tells the files of a checkpoint from others under the same names; of what cannot be read nothing."""
    with suppress(OSError):
        files = files_of_folder(place) or parts_of_file(place)
        found = [(file.name, file.stat()) for file in files]
        return tuple((name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found)
    return ()
