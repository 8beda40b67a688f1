"""Arithmetic on sizes in the numbers of Python: whole ones of any length, and floats of 64 bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.staged.functions.registry import HostFunction, prepared

_LONGEST = 1 << 22
"""Bits of a whole number that a power or a shift may give."""


def _short(bits: float) -> None:
    if bits > _LONGEST:
        raise OverflowError(f"a whole number of {bits:.4g} bits")


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _short(base.bit_length() * abs(exponent))
    found = base**exponent
    if isinstance(found, complex):
        raise ValueError(f"{base} ** {exponent} is no real number")
    return found


def _shifted(number: int, places: int) -> int:
    _short(number.bit_length() + places)
    return number << places


_UNARY: dict[str, Callable[[Any], Any]] = {
    "negative": operator.neg, "not": operator.not_, "inverted": operator.invert, "float": float, "trunc": math.trunc,
    "floor": math.floor, "ceil": math.ceil, "round": round, "abs": abs, "sqrt": math.sqrt, "exp": math.exp,
    "log": math.log, "log2": math.log2, "log10": math.log10, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "asin": math.asin, "acos": math.acos, "atan": math.atan,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": _power, "<<": _shifted, ">>": operator.rshift, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge, "and": lambda a, b: a and b, "or": lambda a, b: a or b, "max": max, "min": min,
    "rounded to": lambda x, digits: round(x, digits),
}  # fmt: skip
_TERNARY: dict[str, Callable[[Any, Any, Any], Any]] = {"select": lambda holds, a, b: a if holds else b}

OPERATIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    name: (count, function)
    for count, known in ((1, _UNARY), (2, _BINARY), (3, _TERNARY))
    for name, function in known.items()
}
"""How many numbers each takes, and what it makes of them."""


@prepared
def arithmetic(*, program: Sequence[str | int | float], otherwise: int | None) -> HostFunction:
    """A whole number made of those in a vector. The program is in postfix order: "size 2" is the third of the vector,
    numbers are themselves, anything else takes its operands off the stack. Where Python raises an error, as for a
    division by zero, the result is `otherwise`, or the error is one of the call where that is None."""
    steps = [_step(item) for item in program]
    _check_depth(steps)

    def compute(sizes: np.ndarray) -> tuple[np.ndarray, ...]:
        try:
            return (np.array(_run(steps, sizes.tolist()), np.int64),)
        except (ArithmeticError, ValueError, TypeError) as error:
            if otherwise is None:
                raise ValueError(f"a size cannot be computed: {error}") from error
            return (np.array(otherwise, np.int64),)

    return compute


_Step = tuple[int, Any]
"""How many numbers are taken off the stack, and the function of them; -1 for a size and its place, -2 for a number."""

_SIZE, _NUMBER = -1, -2


def _step(item: str | int | float) -> _Step:
    if not isinstance(item, str):
        return _NUMBER, item
    return (_SIZE, int(item.removeprefix("size "))) if item.startswith("size ") else OPERATIONS[item]


def _check_depth(steps: Sequence[_Step]) -> None:
    depth = 0
    for taken, _ in steps:
        depth -= max(taken, 0)
        if depth < 0:
            raise ValueError("an operation has too few operands")
        depth += 1
    if depth != 1:
        raise ValueError(f"{depth} numbers are left")


def _run(steps: Sequence[_Step], sizes: Sequence[int]) -> int:
    stack: list[Any] = []
    for taken, what in steps:
        if taken == _NUMBER:
            stack.append(what)
        elif taken == _SIZE:
            stack.append(sizes[what])
        else:
            operands = stack[-taken:]
            del stack[-taken:]
            stack.append(what(*operands))
    return int(stack[0])
