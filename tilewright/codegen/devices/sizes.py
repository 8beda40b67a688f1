"""Expressions of sizes as JSON, which what runs a program evaluates before a call (`runtime/devices/sizes.py`).

A number is itself, `["dim", k]` the k-th variable of the program, and other expressions are a name and its operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from tilewright.ir.sym import Sym


def encoded(e: Sym, numbers: Mapping[str, int]) -> Any:
    """An expression; `numbers` are those of the variables, by name."""
    match e.kind:
        case "const":
            return e.value
        case "var":
            return ["dim", numbers[e.name]]
        case "add":
            return _sum(e, numbers)
        case "mul" if len(e.terms) != 1 or e.terms[0][0] is not e:
            return _sum(e, numbers)
    return _nested(e.kind, [encoded(arg, numbers) for arg in e.args])


def _sum(e: Sym, numbers: Mapping[str, int]) -> Any:
    terms = [
        coef if mono.kind == "const" else encoded(mono, numbers) if coef == 1 else ["mul", coef, encoded(mono, numbers)]
        for mono, coef in e.terms
    ]
    return _nested("add", terms or [0])


def _nested(kind: str, operands: list[Any]) -> Any:
    """Sums, products and extrema have two operands."""
    if kind in ("add", "mul", "min", "max"):
        return reduce(lambda a, b: [kind, a, b], operands)
    return [kind, *operands]
