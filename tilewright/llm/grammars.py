"""Answers that keep a JSON schema, a grammar or a regular expression, by the package `llguidance`.

Before each token the package says which tokens can go on; all others are forbidden, and the model chooses among what is
left. White space of JSON is as the model likes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import InputError, OptionError, short_name

_LEAST = -9e18
"""Of numbers in schemas: llguidance 1.9 ends the process where one becomes the least integer of 64 bits."""
_BELOW_ZERO = re.compile(r"-\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

_MEANING = {"NoExtensionBias": "no text satisfies it"}
"""Of errors that the package names without saying more."""


class Grammars:
    """Makes constraints for one vocabulary, of which all tokens are looked at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ends = sorted(tokenizer.special.ends)
        if not ends:
            raise OptionError(
                "answers cannot keep a grammar: no token of the vocabulary ends one",
                hint="use a model whose files name such a token (eos_token)",
            )
        self._size = tokenizer.size
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Words(tokenizer, ends[0])), tokenizer.size, ends)

    def of_schema(self, schema: Mapping[str, Any] | str) -> Callable[[], GrammarConstraint]:
        """A JSON schema, as an object or a text. InputError for one that is wrong or that nothing can satisfy."""
        try:
            value = json.loads(schema) if isinstance(schema, str) else schema
            if not isinstance(value, Mapping):
                raise TypeError(f"it is an object, not {type(value).__name__}")
            value = dict(value)
            _check_numbers(_numbers_in(value))
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the schema is no JSON schema: {short_name(str(error), 300)}") from None
        return self._made(grammar, "the schema")

    def of_grammar(self, grammar: str) -> Callable[[], GrammarConstraint]:
        """A grammar in the language of Lark. InputError for one that is wrong."""
        if "%json" in _text(grammar, "the grammar"):
            _check_numbers(float(found[0]) for found in _BELOW_ZERO.finditer(grammar))
        return self._made(LLMatcher.grammar_from_lark(grammar), "the grammar")

    def of_regex(self, expression: str) -> Callable[[], GrammarConstraint]:
        """A regular expression that the whole answer matches. InputError for one that is wrong."""
        what = "the regular expression"
        return self._made(LLMatcher.grammar_from_regex(_text(expression, what)), what)

    def _made(self, grammar: str, what: str) -> Callable[[], GrammarConstraint]:
        first = LLMatcher(self._tokenizer, grammar, log_level=0)
        _check(first, f"{what} cannot be kept")
        return lambda: GrammarConstraint(first.deep_copy(), self._size, what)


class GrammarConstraint:
    """A `Constraint` by a grammar."""

    def __init__(self, matcher: LLMatcher, size: int, what: str) -> None:
        self._matcher, self._size, self._what = matcher, size, what

    def allowed(self) -> np.ndarray:
        """See `Constraint`."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        _check(self._matcher, f"{self._what} cannot be kept")
        return np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        """See `Constraint`."""
        self._matcher.consume_token(token)
        _check(self._matcher, f"{self._what} is not kept")


class _Words:
    """What the package asks of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.eos_token_id, self.bos_token_id = end, tokenizer.special.begin
        self.special_token_ids = sorted(tokenizer.special.control)
        names = (tokenizer.control_name(token) or tokenizer.piece(token) for token in range(tokenizer.size))
        self.tokens = list(names)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        found = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(found, begin=False, control=False)


def _check(matcher: LLMatcher, wrong: str) -> None:
    if matcher.is_error():
        (first, *others) = (matcher.get_error() or "it is too complex").splitlines()
        # of expressions the reason stands below a picture of them
        reasons = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
        told = " ".join([_MEANING.get(first, first), *reasons])
        raise InputError(f"{wrong}: {short_name(told, 300)}", hint="change it, or leave it out")


def _text(text: str, what: str) -> str:
    """The text; InputError where it is none in UTF-8."""
    try:
        text.encode("utf-8")
    except (AttributeError, UnicodeEncodeError) as error:
        raise InputError(f"{what} is no text: {short_name(str(error), 200)}") from None
    return text


def _numbers_in(value: Any) -> Iterator[float]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, int | float):
            yield one


def _check_numbers(numbers: Iterable[float]) -> None:
    """InputError for those that no integer of 64 bits comes near."""
    least = min(numbers, default=0)
    if least < _LEAST:
        raise InputError(
            f"the schema has the number {short_name(str(least), 40)}, which is not supported",
            hint=f"numbers of schemas are at least {_LEAST:g}",
        )
