"""What the table of scalar operations says of each holds for numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.ir.scalar import SCALAR_OPS, ScalarOp

WHOLE = np.array([-(2.0**24), -128, -7, -1, -0.0, 0, 1, 2, 5, 127, 2.0**25, np.inf, -np.inf, np.nan], np.float32)
FLOATS = np.array([-3.5, -1.25, -0.4, 0.3, 0.75, 2.5, 6.02e23, -1e-40], np.float32)
NUMBERS = np.concatenate([WHOLE, FLOATS])
FINITE = NUMBERS[np.isfinite(NUMBERS)]
EXACT = np.array([-6, -1.5, -1, 0, 0.25, 1, 3, 8], np.float32)
"""Of which sums and products are exact."""
INTEGERS = np.array([-(2**31), -128, -3, -1, 0, 1, 2, 7, 2**31 - 1], np.int32)
FLAGS = np.array([False, True])


def wrong(op: ScalarOp) -> Iterator[str]:
    """The facts about an operation that numbers contradict, each with an example."""
    for name, check in CHECKS.items():
        if getattr(op, name) != NOTHING[name]:
            yield from (f"{op.name} does not have '{name}' for {x}" for x in check(op))


def operands(op: ScalarOp, numbers: np.ndarray) -> list[tuple[Any, ...]]:
    """All combinations of numbers, with flags for conditions."""
    return list(product(*([FLAGS] * op.conditions), *([numbers] * (op.arity - op.conditions))))


def given(op: ScalarOp, *x: Any) -> Any:
    with np.errstate(all="ignore"):
        return op.evaluate(*x)


def takes_floats(op: ScalarOp) -> bool:
    try:
        given(op, *operands(op, FLOATS)[0])
    except TypeError:
        return False
    return True


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=isinstance(a, np.floating)))


def _commutative(op: ScalarOp) -> list[Any]:
    numbers = NUMBERS if takes_floats(op) else INTEGERS
    return [(a, b) for a, b in operands(op, numbers) if not same(given(op, a, b), given(op, b, a))]


def _identity(op: ScalarOp) -> list[Any]:
    numbers = NUMBERS if takes_floats(op) else INTEGERS
    return [x for x in numbers if not same(given(op, x, numbers.dtype.type(op.identity)), x)]


def _absorbing(op: ScalarOp) -> list[Any]:
    numbers = FINITE if takes_floats(op) else INTEGERS
    n = numbers.dtype.type(op.absorbing)
    return [x for x in numbers if not (same(given(op, x, n), n) and same(given(op, n, x), n))]


def _linear(op: ScalarOp) -> list[Any]:
    places = {"together": [range(op.arity)], "each": [[k] for k in range(op.arity)], "first": [[0]]}[op.linear]
    lines = [x for x in operands(op, EXACT) if not op.divides or x[1] in (1, 0.25, 8)]
    found = []
    for moved, x, step in product(places, lines, EXACT):
        steps = (step, *EXACT[-2:])
        more = tuple(steps[k] if k in moved else a for k, a in enumerate(x))
        both = tuple(a + steps[k] if k in moved else a for k, a in enumerate(x))
        if given(op, *both) != given(op, *x) + given(op, *more):
            found.append((x, more))
    return found


def _whole(op: ScalarOp) -> list[Any]:
    numbers = WHOLE if op.whole == "keeps" else NUMBERS
    results = [(x, given(op, *x)) for x in operands(op, numbers)]
    return [x for x, y in results if np.isfinite(y) and not float(y).is_integer()]


def _size(op: ScalarOp) -> list[Any]:
    assert op.size is not None
    found = []
    for x in operands(op, NUMBERS):
        sizes = [abs(float(a)) for a in x]
        most = op.size(*sizes) * (1 + 1e-6) + 1e-38
        if most < 1e38 and not any(map(math.isnan, sizes)) and abs(float(given(op, *x))) > most:
            found.append(x)
    return found


def _signs(op: ScalarOp) -> list[Any]:
    pairs = [*operands(op, INTEGERS), *operands(op, NUMBERS[~np.isnan(NUMBERS)])]
    return [(a, b) for a, b in pairs if bool(given(op, a, b)) != (int(a > b) - int(a < b) in op.signs)]


def _is_exact(op: ScalarOp) -> list[Any]:
    found = []
    for x in operands(op, np.concatenate([EXACT, WHOLE[-3:], [0.1, 3]]).astype(np.float16)):
        y = given(op, *x)
        wide = given(op, *(a if a.dtype == bool else a.astype(np.float64) for a in x))
        if not same(np.asarray(y)[()], np.asarray(wide).astype(np.asarray(y).dtype)[()]):
            found.append(x)
    return found


def _is_finite(op: ScalarOp) -> list[Any]:
    if not takes_floats(op):
        return []
    moderate = EXACT[np.abs(EXACT) < 5].astype(np.float64)
    return [x for x in operands(op, moderate) if not np.isfinite(given(op, *x))]


CHECKS: dict[str, Callable[[ScalarOp], list[Any]]] = {
    "commutative": _commutative,
    "identity": _identity,
    "absorbing": _absorbing,
    "linear": _linear,
    "whole": _whole,
    "size": _size,
    "signs": _signs,
    "is_exact": _is_exact,
    "is_finite": _is_finite,
}
NOTHING: dict[str, Any] = {f.name: f.default for f in fields(ScalarOp)} | {"is_finite": False}
"""What each fact is of an operation of which it is not claimed."""

CLAIMS = [op for op in SCALAR_OPS.values() if op.name != "quotient"]
"""Facts about a quotient hold where its last operand is the inverse of the divisor, a normal number."""


@pytest.mark.parametrize("op", CLAIMS, ids=lambda op: op.name)
def test_what_is_said_of_an_operation_holds(op: ScalarOp) -> None:
    assert list(wrong(op)) == []


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("sub", {"commutative": True}),
        ("mul", {"identity": 0}),
        ("add", {"absorbing": 0}),
        ("mul", {"linear": "together"}),
        ("max", {"linear": "together"}),
        ("div", {"whole": "keeps"}),
        ("exp", {"whole": "makes"}),
        ("mul", {"size": lambda a, b: a + b}),
        ("lt", {"signs": frozenset({-1, 0})}),
        ("log", {"is_finite": True}),
    ],
)
def test_a_fact_that_does_not_hold_is_told_with_an_example(name: str, facts: dict[str, Any]) -> None:
    (fact,) = facts
    assert any(w.startswith(f"{name} does not have '{fact}' for ") for w in wrong(replace(SCALAR_OPS[name], **facts)))


def test_operations_without_a_value_at_zero_are_those_that_divide() -> None:
    failing = []
    for op in SCALAR_OPS.values():
        if op.arity == 2 and op.result == "same" and op.name not in ("atan2", "pow"):
            with np.errstate(divide="raise"):
                try:
                    op.evaluate(np.int32([3]), np.int32([0]))
                except FloatingPointError:
                    failing.append(op.name)
    assert failing == [op.name for op in SCALAR_OPS.values() if op.divides]
