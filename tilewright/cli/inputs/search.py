"""Sizes of dims that meet conditions, as a model assumes them: few are changed, to usual or to small ones."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

Values = Mapping[str, Any]
"""Sizes of dims: integers, or arrays of int64 of several at once."""

CANDIDATES = {1: 1 << 16, 2: 640, 3: 72}
"""Sizes that are tried of each dim where so many are changed at once."""

MOST_EVALUATED = 1 << 26
"""Values of conditions that a search computes at most: about a second."""

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg, ast.Not: np.logical_not,
    ast.And: np.logical_and, ast.Or: np.logical_or,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": np.minimum, "max": np.maximum, "select": np.where}
_WORDS = {*_FUNCTIONS, "and", "or", "not"}
_ONE_IS_1 = " or one of them is 1"


def variables(text: str) -> set[str]:
    """The dims of which a size is computed, or about which a condition is."""
    return set(re.findall(r"[^\W\d]\w*", text.removesuffix(_ONE_IS_1))) - _WORDS


def value_of(text: str, sizes: Values) -> Any:
    """A size that is computed of others, as inputs are described ("past + 1"), or whether a condition holds. ValueError
    for what cannot be computed."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(operand))
            case ast.BoolOp(op, values):
                return reduce(_OPERATORS[type(op)], map(value, values))
            case ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id="select"), args=[condition, then, other]):
                return np.where(value(condition), value(then), value(other))
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, *_] as args):
                return reduce(_FUNCTIONS[name], map(value, args))
        raise ValueError(f"{text} cannot be computed")

    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError, TypeError, MemoryError) as error:
        raise ValueError(f"{text} cannot be computed") from error


@dataclass(frozen=True)
class Search:
    """A search for sizes of the dims of `choices`, the most usual first, beside `known` ones. The `elements` of all
    inputs that are made are no more than `most`, or than they are with the usual sizes."""

    choices: Mapping[str, Sequence[int]]
    known: Mapping[str, int]
    elements: Callable[[Values], Any]
    most: int

    def satisfying(self, conditions: Sequence[str]) -> dict[str, int]:
        """Sizes with which the conditions hold that say something of these dims: the usual ones, and as few others as
        possible. Where none are found, with which as many hold as were found."""
        found = {name: usual[0] for name, usual in self.choices.items()}
        texts = [text for text in dict.fromkeys(conditions) if self._is_readable(text, found)]
        budget = MOST_EVALUATED
        while broken := [text for text in texts if not self._holds(text, found)]:
            for names in self._changed(broken):
                about = [text for text in texts if variables(text) & set(names)]
                budget -= len(about) * min(CANDIDATES[len(names)], CANDIDATES[1]) ** len(names)
                if budget < 0:
                    return found
                better = self._best(names, about, found, sum(text in broken for text in about))
                if better is not None:
                    found = better
                    break
            else:
                return found
        return found

    def _is_readable(self, text: str, sizes: Values) -> bool:
        if not variables(text) & set(self.choices):
            return False
        try:
            self._holds(text, sizes)
        except ValueError:
            return False
        return True

    def _holds(self, text: str, sizes: Values) -> Any:
        """Whether a condition holds, for all sizes at once."""
        values = {**self.known, **sizes}
        condition = text.removesuffix(_ONE_IS_1)
        with np.errstate(all="ignore"):
            holds = value_of(condition, values)
            if condition != text:
                for side in condition.split(" == "):
                    holds = np.logical_or(holds, np.equal(value_of(side, values), 1))
        return holds

    def _changed(self, broken: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Which dims may be changed together: those of conditions that do not hold, batches last."""
        used = [name for name in self.choices if any(name in variables(text) for text in broken)]
        used.sort(key=lambda name: self.choices[name][0] == 1)
        for count in CANDIDATES:
            yield from combinations(used, count)

    def _best(
        self, names: Sequence[str], about: Sequence[str], found: Mapping[str, int], broken: int
    ) -> dict[str, int] | None:
        """The most usual sizes of these dims with which the fewest conditions about them do not hold, if they are fewer
        than `broken`."""
        tried = [self._candidates(name, about, CANDIDATES[len(names)]) for name in names]
        grid = np.meshgrid(*(np.array(sizes, np.int64) for sizes in tried), indexing="ij")
        places = sum(np.meshgrid(*(np.arange(len(sizes)) for sizes in tried), indexing="ij"))
        sizes = {**found, **dict(zip(names, grid, strict=True))}
        wrong = np.zeros(grid[0].shape, np.int64)
        for text in about:
            wrong += np.logical_not(self._holds(text, sizes))
        is_large = self.elements(sizes) > max(self.most, self.elements(found))
        wrong[np.broadcast_to(is_large, wrong.shape)] = len(about) + 1
        if wrong.min() >= broken:
            return None
        best = int(np.argmin(np.where(wrong == wrong.min(), places, np.iinfo(np.int64).max)))
        return {**found, **{name: int(values.flat[best]) for name, values in zip(names, grid, strict=True)}}

    def _candidates(self, name: str, about: Sequence[str], count: int) -> list[int]:
        """Usual sizes, then numbers from 1 on and those that conditions name."""
        named = {int(number) for text in about for number in re.findall(r"\b\d{1,9}\b", text)} - {0}
        return list(dict.fromkeys([*self.choices[name], *sorted({*named, *range(1, count)})]))[: count + len(named)]


def elements_of(shapes: Sequence[Sequence[int | str]], sizes: Values) -> Any:
    """How many elements arrays of these shapes have in all, as floats; infinite where a dim cannot be computed."""
    try:
        dims = [[value_of(dim, sizes) if isinstance(dim, str) else dim for dim in shape] for shape in shapes]
    except ValueError:
        return math.inf
    return sum(math.prod((np.asarray(dim, np.float64) for dim in shape), start=np.float64(1)) for shape in dims)
