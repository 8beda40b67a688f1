"""Tokens that stand for a piece of text as a whole, and are cut out of it before the rest becomes tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping


class WholeTokens:
    """`control` tokens are matched only on demand: a text that somebody typed must not end the user's turn; `always`
    ones (words that were added to the vocabulary) in any text. The longest one that begins somewhere counts."""

    def __init__(self, control: Mapping[str, int], always: Mapping[str, int]) -> None:
        self._all = _Finder({**always, **control})
        self._always = _Finder(always)

    def cut(self, text: str, control: bool) -> Iterator[str | int]:
        """The text in order: tokens, and what is between them (never empty)."""
        return (self._all if control else self._always).cut(text)


class _Finder:
    """Finds words by their first two characters: vocabularies have thousands of such tokens, and few ways to begin."""

    def __init__(self, words: Mapping[str, int]) -> None:
        self._words = {word: token for word, token in words.items() if word}
        self._lengths: dict[str, list[int]] = {}
        for begin, length in sorted({(w[:2], len(w)) for w in self._words}, key=lambda found: -found[1]):
            self._lengths.setdefault(begin, []).append(length)
        self._begin = _one_of(self._lengths)

    def cut(self, text: str) -> Iterator[str | int]:
        done = at = 0
        while self._begin and (match := self._begin.search(text, at)):
            at = match.start()
            word = self._longest(text, at)
            if word is None:
                at += 1
                continue
            if done < at:
                yield text[done:at]
            yield self._words[word]
            done = at = at + len(word)
        if done < len(text):
            yield text[done:]

    def _longest(self, text: str, at: int) -> str | None:
        lengths = [*self._lengths.get(text[at : at + 2], ()), *self._lengths.get(text[at], ())]
        return next((w for n in lengths if (w := text[at : at + n]) in self._words), None)


def _one_of(begins: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds where one of them begins."""
    second: dict[str, set[str]] = {}
    for begin in begins:
        second.setdefault(begin[0], set()).add(begin[1:])
    parts = [_with_next(first, nexts) for first, nexts in sorted(second.items())]
    return re.compile("|".join(parts)) if parts else None


def _with_next(first: str, nexts: set[str]) -> str:
    if "" in nexts:
        return re.escape(first)
    return re.escape(first) + "[" + "".join(re.escape(c) for c in sorted(nexts)) + "]"
