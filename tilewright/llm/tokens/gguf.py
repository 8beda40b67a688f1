"""The tokeniser that the metadata of a GGUF file describes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.llm.tokens.sentencepiece import ScoredPairs
from tilewright.llm.tokens.spelling import SPACE, Spelling
from tilewright.llm.tokens.splits import splits_named
from tilewright.llm.tokens.tokenizer import ANSWER_ENDS, MARKED, CutText, Special, Tokenizer, numbered
from tilewright.llm.tokens.whole import WholeTokens
from tilewright.runtime.errors import short_name

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""Types of tokens, as SentencePiece numbers them."""

_ENDS = ("eos", "eot", "eom")
_PREFIX = "tokenizer.ggml."


@dataclass(frozen=True)
class _Metadata:
    """The keys below `tokenizer.ggml.`, each of the type that it must have."""

    values: Mapping[str, Any]
    source: str

    def text(self, key: str, otherwise: str) -> str:
        found = self.values.get(_PREFIX + key, otherwise)
        return found if isinstance(found, str) else self._wrong(key, "a text")

    def flag(self, key: str, otherwise: bool) -> bool:
        found = self.values.get(_PREFIX + key)
        if found is None:
            return otherwise
        return bool(found) if isinstance(found, int) else self._wrong(key, "true or false")

    def token(self, key: str, size: int) -> int | None:
        found = self.values.get(f"{_PREFIX}{key}_token_id")
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int):
            return self._wrong(f"{key}_token_id", "a number")
        token = int(found)
        if not 0 <= token < size:
            # writers put the greatest number where there is no such token
            if token in (-1, 2**32 - 1):
                return None
            raise ModelError(
                f"{_PREFIX}{key}_token_id is {token}, but there are {size} tokens", where=self.source
            )
        return token

    def octets(self, key: str) -> bytes:
        """An array of bytes, which some writers have as signed ones; none where it is missing."""
        found = self.values.get(_PREFIX + key)
        if found is None:
            return b""
        items = np.asarray(found) if isinstance(found, np.ndarray | list) else np.empty((), object)
        if items.dtype.kind not in "iu":
            self._wrong(key, "an array of bytes")
        return items.astype(np.uint8).tobytes()

    def list(self, key: str, kind: type, what: str) -> list[Any]:
        found = self.values.get(_PREFIX + key)
        if found is None:
            raise ModelError(
                f"the file has no {_PREFIX}{key}: its vocabulary cannot be used", where=self.source
            )
        items = (
            found.tolist()
            if hasattr(found, "tolist")
            else list(found)
            if isinstance(found, Sequence)
            else None
        )
        if items is None or isinstance(found, str) or not all(map(kind.__instancecheck__, items)):
            return self._wrong(key, what)
        return items

    def _wrong(self, key: str, what: str) -> NoReturn:
        raise ModelError(f"{_PREFIX}{key} is not {what}", where=self.source)


def gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokeniser of a file's metadata; `source` names the file in errors. ModelError for what contradicts itself,
    UnsupportedError for kinds of vocabularies that are not known."""
    data = _Metadata(metadata, source)
    kind = data.text("model", "none")
    make = _KINDS.get(kind)
    if make is None:
        raise UnsupportedError(
            f"vocabularies of the kind '{short_name(kind, 80)}' (tokenizer.ggml.model) are not known",
            where=source,
            hint=f"known are {', '.join(sorted(_KINDS))}",
        )
    names: list[str] = data.list("tokens", str, "a list of texts")
    if not names:
        raise ModelError("the vocabulary has no tokens", where=source)
    kinds = _types(data, len(names))
    return make(data, names, kinds)


def _types(data: _Metadata, size: int) -> list[int]:
    if data.values.get(_PREFIX + "token_type") is None:
        return [_NORMAL] * size
    types: list[int] = data.list("token_type", int, "a list of numbers")
    if len(types) != size:
        raise ModelError(f"there are {size} tokens, but types of {len(types)}", where=data.source)
    return types


def _byte_level(data: _Metadata, names: list[str], types: list[int]) -> Tokenizer:
    from tilewright.llm.tokens.library import byte_pairs

    splits = splits_named(data.text("pre", "default"))
    merges = [tuple(text.split(" ", 1)) for text in data.list("merges", str, "a list of texts")]
    wrong = next((n for n, merge in enumerate(merges) if len(merge) != 2), None)
    if wrong is not None:
        raise ModelError(
            f"merge {wrong} is not two words: '{short_name(merges[wrong][0], 80)}'", where=data.source
        )
    tokens = {name: token for token, name in enumerate(names)}
    ordinary = byte_pairs(tokens, merges, splits, data.source)
    return _finished(data, names, types, "bytes", ordinary, begins=splits.begins, space=False)


def _scored(data: _Metadata, names: list[str], types: list[int]) -> Tokenizer:
    scores = _scores(data, names)
    parts = (_NORMAL, _USER_DEFINED, _UNUSED)
    tokens = {name: n for n, (name, kind) in enumerate(zip(names, types, strict=True)) if kind in parts}
    of_bytes = {
        int(name[3:5], 16): n
        for n, (name, kind) in enumerate(zip(names, types, strict=True))
        if kind == _BYTE and len(name) == 6 and name.startswith("<0x") and _hexadecimal(name[3:5])
    }
    pairs = ScoredPairs(tokens, array("d", scores), of_bytes, data.token("unknown", len(names)))
    space = data.flag("add_space_prefix", True)
    return _finished(data, names, types, "sentencepiece", pairs.encode, begins=True, space=space)


def _likely(data: _Metadata, names: list[str], types: list[int]) -> Tokenizer:
    """Unigrams, as encoder-decoders have them (T5): what is read ends with the token that ends answers, too."""
    from tilewright.llm.tokens.library import likely_pieces

    scores = _scores(data, names)
    characters = data.octets("precompiled_charsmap")
    kinds = zip(names, scores, types, strict=True)
    pieces = [(name, score, kind in (_NORMAL, _USER_DEFINED)) for name, score, kind in kinds]
    least = min((score for _, score, is_piece in pieces if is_piece), default=0.0)
    # of others the names are such as no text has, so that they are in none
    parts = [(n, s) if is_piece else (f"{MARKED[0]}{k}", least) for k, (n, s, is_piece) in enumerate(pieces)]
    space, joins = data.flag("add_space_prefix", True), data.flag("remove_extra_whitespaces", True)
    named = data.token("unknown", len(names))
    unknown = types.index(_UNKNOWN) if named is None and _UNKNOWN in types else named
    if unknown is None:
        raise ModelError("the vocabulary has no token for what is unknown", where=data.source)
    ordinary = likely_pieces(parts, unknown, characters, space=space, joins=joins, source=data.source)
    found = _finished(data, names, types, "sentencepiece", ordinary, begins=False, space=space)
    begin, end = data.token("bos", len(names)), data.token("eos", len(names))
    lead = (begin,) if begin is not None and data.flag("add_bos_token", False) else ()
    trail = (end,) if end is not None and data.flag("add_eos_token", True) else ()
    return replace(found, special=replace(found.special, lead=lead, trail=trail, start=_start(data, len(names))))


def _start(data: _Metadata, size: int) -> tuple[int, ...]:
    """What answers of an encoder-decoder begin with."""
    token = data.values.get(f"{data.values.get('general.architecture')}.decoder_start_token_id")
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
        return ()
    return (token,)


def _scores(data: _Metadata, names: list[str]) -> list[float]:
    scores: list[float] = data.list("scores", float, "a list of numbers")
    if len(scores) != len(names):
        raise ModelError(f"there are {len(names)} tokens, but scores of {len(scores)}", where=data.source)
    return scores


def _hexadecimal(text: str) -> bool:
    return all(character in "0123456789ABCDEF" for character in text)


def _finished(
    data: _Metadata,
    names: list[str],
    types: list[int],
    spelling: Spelling,
    ordinary: Callable[[str], list[int]],
    *,
    begins: bool,
    space: bool,
) -> Tokenizer:
    size = len(names)
    begin = data.token("bos", size)
    named = {token for key in _ENDS if (token := data.token(key, size)) is not None}
    control = {n for n, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)} | named
    control |= {begin} if begin is not None else set()
    added = {n for n, kind in enumerate(types) if kind == _USER_DEFINED}
    begins = data.flag("add_bos_token", begins)
    special = Special(
        frozenset(control),
        frozenset(n for n in added if spelling == "bytes" or SPACE not in names[n]),
        begin,
        frozenset(named | _answer_ends(names, control)),
        begins,
        begins,
    )
    whole = WholeTokens(
        {names[n]: n for n in sorted(control)}, {names[n]: n for n in sorted(added - control)}
    )
    return Tokenizer(
        size, numbered(names), spelling, CutText(whole, ordinary, space), special, space, data.source
    )


def _answer_ends(names: Sequence[str], control: Iterable[int]) -> set[int]:
    return {n for n in control if names[n] in ANSWER_ENDS}


_KINDS: dict[str, Callable[[_Metadata, list[str], list[int]], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _scored,
    "t5": _likely,
}
