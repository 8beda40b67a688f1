"""Language models: text from decoders that the compiler has compiled.

`load(path)` gives a `LanguageModel`, which has `generate`, `stream`, `chat`, `score` and more. Names are imported when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.llm.beams import Beam as Beam
    from tilewright.llm.conversation import Conversation as Conversation
    from tilewright.llm.decoder import CompiledDecoder as CompiledDecoder
    from tilewright.llm.decoder import Decoder as Decoder
    from tilewright.llm.generation import Answer as Answer
    from tilewright.llm.generation import Stream as Stream
    from tilewright.llm.loading import load as load
    from tilewright.llm.model import LanguageModel as LanguageModel
    from tilewright.llm.model import Score as Score
    from tilewright.llm.sampling.settings import Sampling as Sampling
    from tilewright.llm.sequences import CompiledSequences as CompiledSequences
    from tilewright.llm.sequences import ForkedSequences as ForkedSequences
    from tilewright.llm.sequences import SequenceError as SequenceError
    from tilewright.llm.sequences import Sequences as Sequences
    from tilewright.llm.texts.score import TextScore as TextScore
    from tilewright.llm.tokens.tokenizer import Tokenizer as Tokenizer

_HOMES = {
    "Answer": "generation",
    "Beam": "beams",
    "CompiledDecoder": "decoder",
    "CompiledSequences": "sequences",
    "Conversation": "conversation",
    "Decoder": "decoder",
    "ForkedSequences": "sequences",
    "Sampling": "sampling.settings",
    "Score": "model",
    "SequenceError": "sequences",
    "Sequences": "sequences",
    "Stream": "generation",
    "LanguageModel": "model",
    "TextScore": "texts.score",
    "Tokenizer": "tokens.tokenizer",
    "load": "loading",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright.llm' has no attribute '{name}'", name=name)
    value = getattr(import_module(f"tilewright.llm.{home}"), name)
    globals()[name] = value
    return value
