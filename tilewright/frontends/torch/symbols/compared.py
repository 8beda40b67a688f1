"""A guard computed for many values of one size at once, in the numbers of Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_LARGEST = 2.0**62


class LongNumberError(Exception):
    """A whole number may leave 64 bits."""


def _raised_to(base: Any, exponent: Any) -> float:
    found = base**exponent
    if isinstance(found, complex):
        raise ValueError("no real number")
    return float(found)


_WHOLE: Mapping[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "negative": np.negative, "**": np.power, "abs": np.abs,
}  # fmt: skip
"""Operations that may make large whole numbers of small ones."""

_ARRAYS: Mapping[str, Callable[..., Any]] = {
    **{name: function for name, function in _WHOLE.items() if name != "**"},
    "//": np.floor_divide, "%": np.mod, "/": np.true_divide, "==": np.equal, "!=": np.not_equal, "<": np.less,
    "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "max": np.maximum, "min": np.minimum, "select": np.where,
    "float": lambda x: np.asarray(x, np.float64), "sqrt": np.sqrt,
    "trunc": np.trunc, "floor": np.floor, "ceil": np.ceil, "round": np.rint, ">>": np.right_shift, "&": np.bitwise_and,
    "|": np.bitwise_or, "^": np.bitwise_xor, "inverted": np.invert,
}  # fmt: skip
_EACH: Mapping[str, Callable[..., Any]] = {
    "**": _raised_to, "rounded to": lambda x, digits: round(x, int(digits)), "exp": math.exp, "log": math.log,
    "log2": math.log2, "log10": math.log10, "sin": math.sin, "cos": math.cos, "tan": math.tan, "sinh": math.sinh,
    "cosh": math.cosh, "tanh": math.tanh, "asin": math.asin, "acos": math.acos, "atan": math.atan,
}  # fmt: skip
"""Those in which NumPy is some units in the last place from Python."""
_QUICKLY: Mapping[str, Callable[..., Any]] = {"**": math.pow}
"""What gives the same where it gives no error, in a fifth of the time."""


class Compared:
    """Operations on arrays with an element for each value, as Python computes them one by one."""

    def __init__(self, count: int) -> None:
        self._fails = np.zeros(count, bool)

    def holds(self, found: Any) -> np.ndarray:
        """Where a condition holds: not where Python raises an error."""
        return np.broadcast_to(np.asarray(found) != 0, self._fails.shape) & ~self._fails

    def apply(self, name: str, *operands: np.ndarray) -> np.ndarray:
        """LongNumberError where the result is not known."""
        is_whole = all(x.dtype.kind in "bi" for x in operands)
        if is_whole:
            operands = tuple(np.asarray(x, np.int64) for x in operands)
        with np.errstate(all="ignore"):
            if name in ("/", "//", "%"):
                self._fails |= operands[1] == 0
            if is_whole and name in _WHOLE:
                return self._of_whole(name, *operands)
            if name in _EACH:
                return self._each(_EACH[name], *operands, quickly=_QUICKLY.get(name))
            if name not in _ARRAYS:
                raise LongNumberError
            if name == "sqrt":
                self._fails |= operands[0] < 0
            return np.asarray(_ARRAYS[name](*operands))

    def _of_whole(self, name: str, *operands: np.ndarray) -> np.ndarray:
        if name == "**" and np.any(operands[1] < 0):
            return self._each(operator.pow, *operands)
        about = np.abs(_WHOLE[name](*(np.asarray(x, np.float64) for x in operands)))
        if not np.all(about < _LARGEST):
            raise LongNumberError
        return np.asarray(_WHOLE[name](*operands))

    def _each(
        self, function: Callable[..., Any], *operands: np.ndarray, quickly: Callable[..., Any] | None = None
    ) -> np.ndarray:
        def one(*numbers: Any) -> float:
            try:
                return float(function(*numbers))
            except (ArithmeticError, ValueError, TypeError):
                return math.nan

        lists = [x.tolist() for x in np.broadcast_arrays(*operands)]
        if not isinstance(lists[0], list):
            found = np.asarray(one(*lists))
        else:
            try:
                found = np.fromiter(map(quickly or function, *lists), np.float64, len(lists[0]))
            except (ArithmeticError, ValueError, TypeError):  # of some values
                found = np.fromiter(map(one, *lists), np.float64, len(lists[0]))
        self._fails |= np.isnan(found)
        return found
