"""The vocabularies that the package `tokenizers` computes: byte-level pairs, and whatever a tokenizer.json says.

Imported only where one is needed, as the package takes 30 ms and is an extra."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.llm.tokens.spelling import SPACE, Spelling
from tilewright.llm.tokens.splits import Splits
from tilewright.runtime.errors import InputError, TilewrightError, short_name
from tilewright.runtime.process.forks import free_in_children


def byte_pairs(
    tokens: Mapping[str, int], merges: Sequence[tuple[str, str]], splits: Splits, source: str
) -> Callable[[str], list[int]]:
    """Byte-pair encoding over the alphabet for bytes, with the ranks of pairs by their order."""
    pairs = list(merges)
    model = _made(
        lambda: models.BPE(vocab=dict(tokens), merges=pairs, ignore_merges=splits.ignore_merges),
        "the vocabulary and its merges contradict each other",
        source,
    )
    tokenizer = tokenizers.Tokenizer(model)
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in splits.expressions]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, level])
    return lambda text: _encoded(tokenizer, text, source)


def likely_pieces(
    pieces: Sequence[tuple[str, float]], unknown: int, characters: bytes, *, space: bool, joins: bool, source: str
) -> Callable[[str], list[int]]:
    """The pieces of a text that together are the most likely (unigrams of SentencePiece), by the logarithms of their
    probabilities. `characters` is SentencePiece's table of what characters are written as; `joins`: of several spaces
    one is left, and none at either end, but one before the text with `space`."""
    tokenizer = _made(
        lambda: tokenizers.Tokenizer(models.Unigram(list(pieces), unknown, byte_fallback=False)),
        "the vocabulary contradicts itself",
        source,
    )
    written: list[Any] = []
    if characters:
        written.append(_made(lambda: normalizers.Precompiled(characters), "the table of characters is damaged", source))
    if joins:
        written += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(written)
    scheme = "always" if space and joins else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=True)
    return lambda text: _encoded(tokenizer, text, source)


class LibraryText:
    """A segmenter that a tokenizer.json describes. `lead` and `trail` are the tokens that it puts around a text."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._tokenizer = _made(
            lambda: tokenizers.Tokenizer.from_file(str(path)), "the tokeniser cannot be read", self.source
        )
        # settings of batches that whoever saved the file had made: they would cut prompts off, and fill them up
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lock = free_in_children(threading.Lock())
        self.names: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self.lead, self.trail = self._around()

    def encode(self, text: str, *, control: bool, first: bool) -> list[int]:
        """See `Segmenter`. InputError for a text that the vocabulary has no tokens for, not even one that stands for
        what is unknown."""
        with self._lock:  # whether special tokens are text is a property of the whole object
            self._tokenizer.encode_special_tokens = not control
            return _encoded(self._tokenizer, text, self.source)

    def name(self, token: int) -> str | None:
        """Of any number that a configuration names: -1 stands for none in some."""
        return self._tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None

    def _around(self) -> tuple[list[int], list[int]]:
        """Found around a short text, as nothing says which of both stands around none. Vocabularies of whole words may
        not know a letter, but their own words."""
        for text in chain(("a",), self.names):
            with suppress(InputError):
                whole, alone = (_encoded(self._tokenizer, text, self.source, special=s) for s in (True, False))
                break
        else:
            return [], []
        last = len(whole) - len(alone)
        places = [k for k in range(last + 1) if whole[k : k + len(alone)] == alone]
        return (whole[: places[0]], whole[places[0] + len(alone) :]) if places and alone else ([], [])

    def spelling(self) -> tuple[Spelling, bool]:
        """How it spells tokens, and whether a space before the first word is its own; UnsupportedError where that is
        not known."""
        decoder = self._tokenizer.decoder
        if decoder is None:  # the package then joins tokens by spaces, whatever the model is
            return "words", True
        state = json.loads(decoder.__getstate__())
        parts = state.get("decoders", [state])
        kinds = {part["type"] for part in parts}
        if "ByteLevel" in kinds:
            return "bytes", False
        if "WordPiece" in kinds:
            return "wordpiece", True
        replaced = any(part.get("pattern", {}).get("String") == SPACE for part in parts)
        if "Metaspace" in kinds or "ByteFallback" in kinds or replaced:
            first = any(p.get("prepend_scheme", "never") != "never" for p in parts)
            return "sentencepiece", first or "Strip" in kinds
        raise UnsupportedError(
            f"how the tokeniser makes text of tokens is not known: {short_name(', '.join(sorted(kinds)), 200)}",
            where=self.source,
            hint="known are ByteLevel, Metaspace, ByteFallback and WordPiece",
        )


def _encoded(tokenizer: Any, text: str, source: str, *, special: bool = False) -> list[int]:
    """The tokens of a text; InputError where the vocabulary has none for it, or what the package was given for it is
    damaged."""
    found: list[int] = _made(
        lambda: tokenizer.encode(text, add_special_tokens=special).ids,
        f"the vocabulary cannot spell '{short_name(text, 40)}'",
        source,
        InputError,
    )
    return found


def _made(make: Callable[[], Any], wrong: str, source: str, kind: type[TilewrightError] = ModelError) -> Any:
    try:
        return make()
    except BaseException as error:
        # what panics in the package is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise kind(f"{wrong}: {short_name(str(error), 300)}", where=source) from None
