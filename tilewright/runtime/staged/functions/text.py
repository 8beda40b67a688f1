"""Functions of tensors of strings: arrays of objects, which are Python strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.staged.functions.registry import HostFunction, host_function, prepared
from tilewright.runtime.values.dtypes import is_integer, numpy_dtype


def text_array(values: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    """An array of objects of a shape, its elements in row-major order."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


@prepared
def text_constant(*, values: Sequence[str], shape: Sequence[int]) -> HostFunction:
    """An array that is known when compiling; nobody writes to it."""
    array = text_array(values, shape)
    array.flags.writeable = False
    return lambda: (array,)


@host_function
def take_text(places: np.ndarray, *sources: np.ndarray) -> tuple[np.ndarray, ...]:
    """The elements at `places` of all `sources`, flattened, one after the other."""
    flat = np.concatenate([source.reshape(-1) for source in sources])
    return (np.asarray(flat[places], object),)


@host_function
def equal_text(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """Which elements are equal."""
    return (np.asarray(np.equal(x, y), bool),)


@host_function
def concatenate_text(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    """x + y, element by element."""
    return (np.asarray(np.add(x, y), object),)


@prepared
def normalize_text(*, action: str, is_case_sensitive: bool, stopwords: Sequence[str]) -> HostFunction:
    """A vector (or a matrix of one row) without the stop words, its letters in one case: "LOWER", "UPPER", or as they
    are ("NONE"). One empty string where nothing is left. ONNX operator `StringNormalizer`."""
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    changed = changes[action]
    compared: Callable[[str], str] = str if is_case_sensitive else str.lower
    stops = {compared(word) for word in stopwords}

    def normalize(x: np.ndarray) -> tuple[np.ndarray, ...]:
        if x.ndim == 2 and x.shape[0] != 1:
            raise ValueError(f"one row of strings is expected, not {x.shape[0]}")
        kept = [changed(word) for word in x.flat if compared(word) not in stops] or [""]
        return (text_array(kept, (*x.shape[:-1], len(kept))),)

    return normalize


@host_function
def split_text(x: np.ndarray, *, delimiter: str, most: int) -> tuple[np.ndarray, ...]:
    """The parts of each string along a new last axis, filled up with empty strings, and how many there are: split at a
    delimiter, or at white space where it is empty, `most` times at most (-1: everywhere)."""
    parts = [word.split(delimiter or None, most) for word in x.flat]
    width = max(map(len, parts), default=0)
    filled = [part for found in parts for part in (*found, *[""] * (width - len(found)))]
    counts = np.array([len(found) for found in parts], np.int64)
    return text_array(filled, (*x.shape, width)), counts.reshape(x.shape)


_START, _END = "\x02", "\x03"
"""Tokens that mark where a text begins and ends."""


@prepared
def tokenize_text(
    *, expression: str, separators: Sequence[str], least: int, is_marked: bool, padding: str
) -> HostFunction:
    """The tokens of each string along a new last axis, filled up with `padding`: what an expression of Python matches
    or, if it is empty, what is left between separators, one after the other; none of less than `least` characters.
    ONNX Runtime's operator `Tokenizer`."""
    matches = re.compile(expression).finditer
    splits = [re.compile(f"(?:{separator})").finditer for separator in separators]

    def tokens(text: str) -> list[str]:
        found = [m.group() for m in matches(text)] if expression else [text]
        for separated in splits:
            found = [part for piece in found for part in _between(piece, separated(piece))]
        return [token for token in found if len(token) >= least]

    def tokenize(x: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = [tokens(text) for text in x.flat]
        if is_marked and any(rows):
            rows = [[_START, *row, _END] for row in rows]
        width = max(map(len, rows), default=0)
        filled = [token for row in rows for token in (*row, *[padding] * (width - len(row)))]
        return (text_array(filled, (*x.shape, width)),)

    return tokenize


def _between(text: str, matches: Iterable[re.Match[str]]) -> Iterator[str]:
    """What is before, between and behind matches."""
    start = 0
    for match in matches:
        yield text[start : match.start()]
        start = match.end()
    yield text[start:]


@prepared
def match_text(*, pattern: str) -> HostFunction:
    """Which strings a regular expression matches as a whole; the pattern is one of Python's."""
    matches = re.compile(pattern).fullmatch
    return lambda x: (np.array([matches(word) is not None for word in x.flat], bool).reshape(x.shape),)


@host_function
def numbers_to_text(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Numbers as text: with as few digits as tell them from others of their type, without an exponent; NaN, INF and
    -INF; bools as 1 and 0. ONNX operator `Cast`."""
    if x.dtype.kind in "biu":
        written = [str(int(e)) for e in x.flat]
    else:
        plain = x if x.dtype.kind == "f" else x.astype(np.float32)
        written = [_float_text(e) for e in plain.reshape(-1)]
    return (text_array(written, x.shape),)


def _float_text(x: np.floating[Any]) -> str:
    if np.isfinite(x):
        return np.format_float_positional(x, trim="-")
    return "NaN" if np.isnan(x) else "INF" if x > 0 else "-INF"


@prepared
def text_to_numbers(*, dtype: str) -> HostFunction:
    """Texts as numbers: decimal ones, with or without an exponent, INF and NaN in small or capital letters. Integers
    lose their fraction, and have a range. ONNX operator `Cast`."""
    target = numpy_dtype(dtype)
    number = _whole_number if is_integer(target) else _number

    def convert(x: np.ndarray) -> tuple[np.ndarray, ...]:
        found = [number(word) for word in x.flat]
        if target.kind == "b":
            return (np.array([e != 0 for e in found], bool).reshape(x.shape),)
        with np.errstate(over="ignore"):
            return (np.array(found, target if target.kind in "iu" else np.float64).astype(target).reshape(x.shape),)

    return convert


def _number(text: str) -> float:
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r:.80} is not a number") from None


def _whole_number(text: str) -> int:
    try:
        return int(text) if "_" not in text else int(_number(text))
    except ValueError:
        number = _number(text)
    if not np.isfinite(number):
        raise ValueError(f"{text!r:.80} is not a whole number")
    return int(number)
