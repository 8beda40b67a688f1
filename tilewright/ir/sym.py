"""Symbolic integers: the dims, loop bounds, indices, offsets and guards of every level of the compiler.

A `Sym` is immutable and interned: two expressions that are built in different ways and have the same canonical
form are the same object, so `is`, `==` and dictionary lookups are one pointer comparison. The canonical form
is a polynomial with integer coefficients over atoms (variables, `//`, `%`, min, max, comparisons, select).

Arithmetic is exact, over the mathematical integers; `//` and `%` round towards minus infinity, as Python's do.
A division assumes that its divisor is not zero: where it is, the value is unspecified, and a simplification
may have given it one (`(a*n) // n` is `a`). Conditions are expressions whose value is 0 or 1.

This module is the one to import from; it gathers the arithmetic, the conditions, the proofs and the parser.
"""

from __future__ import annotations

from tilewright.ir.symbolic.arith import ONE, ZERO, Sym, const, floordiv, mod, sym, var
from tilewright.ir.symbolic.cases import at_most_one, may_be_one_beside, sure_broadcast, unbounded
from tilewright.ir.symbolic.cond import (
    eq,
    eq0,
    ge,
    ge0,
    gt,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    select,
    truth,
)
from tilewright.ir.symbolic.extremes import lower, upper
from tilewright.ir.symbolic.parse import parse_sym, parse_sym_prefix
from tilewright.ir.symbolic.prove import Ranges, affine_in, prove, prove_ge0, prove_ge0_within, simplify
from tilewright.ir.symbolic.sums import ceildiv, rebuild, weighted_sum

__all__ = [
    "ONE",
    "ZERO",
    "Ranges",
    "Sym",
    "affine_in",
    "at_most_one",
    "ceildiv",
    "const",
    "eq",
    "eq0",
    "floordiv",
    "ge",
    "ge0",
    "gt",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "lower",
    "lt",
    "maximum",
    "may_be_one_beside",
    "minimum",
    "mod",
    "ne",
    "parse_sym",
    "parse_sym_prefix",
    "prove",
    "prove_ge0",
    "prove_ge0_within",
    "rebuild",
    "select",
    "simplify",
    "sure_broadcast",
    "sym",
    "truth",
    "unbounded",
    "upper",
    "var",
    "weighted_sum",
]
