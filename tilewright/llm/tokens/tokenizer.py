"""What generation needs of a vocabulary: tokens of a text, and the text of tokens as they come."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tilewright.ir.diag import ModelError
from tilewright.llm.tokens.spelling import Spelling, bytes_of
from tilewright.llm.tokens.whole import WholeTokens
from tilewright.runtime.errors import InputError

MARKED = ("\ufdd0", "\ufdd1")
"""Between these, which are characters that no text has, the name of a control token is text (see `Tokenizer.typed`)."""


class Segmenter(Protocol):
    """Turns a part of a text into tokens."""

    def encode(self, text: str, *, control: bool, first: bool) -> list[int]:
        """`control`: names of control tokens become these; `first`: nothing is before it."""


@dataclass(frozen=True)
class Special:
    """What of a vocabulary is no ordinary text. `control` tokens have no text of their own; `literal` ones are their
    names; a sequence begins with `begin` where `begins` (a chat, where `chat_begins`), and `ends` end an answer. What
    an encoder reads stands between `lead` and `trail`; an answer to it begins with `start`, and with `forced` tokens
    behind it unless somebody wants others; `never` are in none of them."""

    control: frozenset[int] = frozenset()
    literal: frozenset[int] = frozenset()
    begin: int | None = None
    ends: frozenset[int] = frozenset()
    begins: bool = False
    chat_begins: bool = False
    lead: tuple[int, ...] = ()
    trail: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    never: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Tokenizer:
    """Tokens 0 to `size` - 1, by `name`; `leading_space`: a space before the first word belongs to the vocabulary, not
    to the text."""

    size: int
    name: Callable[[int], str | None]
    spelling: Spelling
    segmenter: Segmenter
    special: Special
    leading_space: bool = False
    source: str = "the vocabulary"

    def encode(self, text: str, *, begin: bool = True, control: bool = True) -> list[int]:
        """The tokens of a text. `begin`: as the begin of a sequence, with the token for it where the model has one;
        `control`: names of control tokens in the text, such as <|im_end|>, become these."""
        found = self.segmenter.encode(_text(text), control=control, first=True)
        return self._begun(found) if begin and self.special.begins else found

    def encode_read(self, text: str) -> list[int]:
        """The tokens of a text for an encoder, with those that stand around it."""
        return [*self.special.lead, *self.encode(text, begin=False), *self.special.trail]

    def encode_chat(self, text: str) -> list[int]:
        """The tokens of what a template made: its control tokens count, those between `MARKED` characters do not."""
        found: list[int] = []
        for n, part in enumerate(_text(text).replace(MARKED[1], MARKED[0]).split(MARKED[0])):
            if part:
                found += self.segmenter.encode(part, control=n % 2 == 0, first=not found)
        return self._begun(found) if self.special.chat_begins else found

    def typed(self, text: str) -> str:
        """A text for a template, with the names of control tokens in it marked: a user who types <|im_end|> does not
        end the turn."""
        clean = text.replace(MARKED[0], "").replace(MARKED[1], "")
        parts = self._control_names.cut(clean, control=True)
        return "".join(p if isinstance(p, str) else f"{MARKED[0]}{self.name(p)}{MARKED[1]}" for p in parts)

    def decode(self, tokens: Iterable[int], *, control: bool = False) -> str:
        """The text of tokens; with `control` also the names of control tokens."""
        text = TextOfTokens(self, control=control)
        return "".join([text.push(token) for token in tokens]) + text.end()

    def piece(self, token: int) -> bytes:
        """The bytes of a token, which need not be whole characters; none for control tokens."""
        return b"" if token in self.special.control else self._spelled(token)

    def control_name(self, token: int) -> bytes:
        """The name of a control token; none for others."""
        return self._spelled(token) if token in self.special.control else b""

    def control_text(self, token: int) -> str:
        """The name of a control token; "" for others."""
        return self.control_name(token).decode("utf-8", "replace")

    def check(self, rows: int) -> None:
        """ModelError where there are more tokens than the model has rows for (fewer is usual: rows are padded)."""
        if self.size > rows:
            raise ModelError(
                f"the vocabulary has {self.size} tokens, but the model's embedding has {rows} rows",
                where=self.source,
                hint="the tokeniser belongs to another model, or tokens were added without resizing the embedding",
            )

    def _spelled(self, token: int) -> bytes:
        name = self.name(token) if 0 <= token < self.size else None
        if name is None:
            return b""
        special = self.special
        # among whole words one that was added is one of them
        whole = token in special.control or (token in special.literal and self.spelling != "words")
        return name.encode("utf-8", "replace") if whole else bytes_of(name, self.spelling)

    def _begun(self, tokens: list[int]) -> list[int]:
        begin = self.special.begin
        return tokens if begin is None or tokens[:1] == [begin] else [begin, *tokens]

    @cached_property
    def _control_names(self) -> WholeTokens:
        named = {name: token for token in self.special.control if (name := self.name(token))}
        return WholeTokens(named, {})


class TextOfTokens:
    """The text of tokens as they come: a character is given when its last byte is there; bytes that are none become
    U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, *, control: bool = False, continued: bool = False) -> None:
        """`continued`: there is text before it, so that a space at its begin is one."""
        self._tokenizer = tokenizer
        self._control = control
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = tokenizer.leading_space and not continued

    def push(self, token: int) -> str:
        """What of the text is certain with this token."""
        piece = self._tokenizer.piece(token)
        if not piece:
            # a character that is begun cannot go on behind a control token
            name = self._tokenizer.control_name(token)
            return "" if not name else self._decoder.decode(name if self._control else b"", final=True)
        text = self._decoder.decode(piece)
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text

    def end(self) -> str:
        """What is left: U+FFFD for a character that is not whole."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True)
class CutText:
    """A segmenter of whole tokens, and of a function for what is between them; `space_first`: a space is put before
    what follows a whole token or the begin."""

    whole: WholeTokens
    ordinary: Callable[[str], list[int]]
    space_first: bool = False

    def encode(self, text: str, *, control: bool, first: bool) -> list[int]:
        found: list[int] = []
        alone = first
        for part in self.whole.cut(text, control):
            if isinstance(part, int):
                found.append(part)
            else:
                found += self.ordinary(" " + part if alone and self.space_first else part)
            alone = isinstance(part, int)
        return found


def numbered(names: Sequence[str]) -> Callable[[int], str | None]:
    """The name of each token of a list."""
    return lambda token: names[token]


ANSWER_ENDS = frozenset((
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<eos>",
    "<|end_of_turn|>", "<|eot|>", "<|return|>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<EOT>", "</s>",
))  # fmt: skip
"""Control tokens by which models end an answer, beside the one that their files name."""


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"a text is a str, not {type(text).__name__}", hint="decode bytes first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start} of a text is no character (U+{ord(text[error.start]):04X})",
            hint="the text was read with another encoding than it has: give UTF-8",
        ) from None
    return text
