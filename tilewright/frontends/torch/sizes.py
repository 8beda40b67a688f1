"""Sizes of exported programs: SymPy's expressions over symbols become ours over dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import sympy
import torch

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.source import sym_tensor


class UnboundSizeError(Exception):
    """An expression has a symbol that nothing has defined, or a function that has no counterpart."""


def _power(base: Sym, exponent: Sym) -> Sym:
    if not exponent.is_const or exponent.value < 0:
        raise UnboundSizeError(f"the power {base} ** {exponent}")
    result = sym(1)
    for _ in range(exponent.value):
        result = result * base
    return result


def _rounded_to_even(a: Sym, b: Sym) -> Sym:
    """The quotient of positive numbers, rounded to the nearest, of two the even one."""
    floor, twice = a // b, 2 * (a % b)
    up = s.logical_or(s.gt(twice, b), s.logical_and(s.eq(twice, b), s.eq(floor % 2, 1)))
    return floor + s.truth(up)


def _truncated(a: Sym, b: Sym) -> Sym:
    is_negative = s.ne(s.lt(a, 0), s.lt(b, 0))
    return s.select(is_negative, s.ceildiv(a, b), a // b)


_FUNCTIONS: dict[str, Callable[..., Sym]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": s.ceildiv,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Where": s.select,
    "PowByNatural": _power,
    "Pow": _power,
    "Identity": lambda a: a,
    "Equality": s.eq,
    "Unequality": s.ne,
    "StrictLessThan": s.lt,
    "LessThan": s.le,
    "StrictGreaterThan": s.gt,
    "GreaterThan": s.ge,
    "And": s.logical_and,
    "Or": s.logical_or,
    "Not": s.logical_not,
}

_OF_QUOTIENTS: dict[str, Callable[[Sym, Sym], Sym]] = {
    "FloorToInt": lambda a, b: a // b,
    "CeilToInt": s.ceildiv,
    "TruncToInt": _truncated,
    "RoundToInt": _rounded_to_even,
    "floor": lambda a, b: a // b,
    "ceiling": s.ceildiv,
}
"""Functions that make an integer of the exact quotient of two."""


class Sizes:
    """What the symbols of one program mean."""

    def __init__(self, known: Mapping[sympy.Symbol, Sym] | None = None) -> None:
        self._symbols: dict[sympy.Symbol, Sym] = dict(known or {})

    def inner(self) -> Sizes:
        """Those of a subgraph: what it defines is known in it alone."""
        return Sizes(self._symbols)

    def knows(self, expression: sympy.Expr) -> bool:
        return all(symbol in self._symbols for symbol in expression.free_symbols)

    def bind(self, symbol: sympy.Symbol, size: Sym) -> None:
        self._symbols.setdefault(symbol, size)

    def of(self, size: object) -> Sym:
        """The size that an int, a SymInt, a SymBool (0 or 1) or an expression stands for; UnsupportedError where it has
        a symbol or a function that is not known here."""
        if isinstance(size, int):
            return sym(int(size))
        expression = size.node.expr if isinstance(size, torch.SymInt | torch.SymBool) else size
        assert isinstance(expression, sympy.Basic)
        try:
            return self._converted(expression)
        except UnboundSizeError as error:
            raise UnsupportedError(
                f"the size {expression} is not followed: {error}",
                hint="export the model with this size fixed",
            ) from error

    def number(self, size: object) -> Value:
        """A float64 scalar that is computed from sizes: a SymFloat, or an expression."""
        expression = size.node.expr if isinstance(size, torch.SymFloat) else size
        assert isinstance(expression, sympy.Basic)
        return self._computed(expression)

    def _converted(self, e: sympy.Basic) -> Sym:
        if isinstance(e, sympy.Symbol):
            if e not in self._symbols:
                raise UnboundSizeError(f"nothing defines {e}")
            return self._symbols[e]
        if isinstance(e, sympy.Integer) or e in (sympy.true, sympy.false):
            return sym(int(bool(e)) if not isinstance(e, sympy.Integer) else int(e))
        if isinstance(e, sympy.Add):
            numerator, denominator = _fraction(e)
            if denominator != 1:
                return self._converted(numerator) // self._converted(denominator)
            return sum((self._converted(a) for a in e.args), sym(0))
        if isinstance(e, sympy.Mul):
            return self._product(e)
        name = type(e).__name__
        if name in ("Max", "Min"):
            extremum = s.maximum if name == "Max" else s.minimum
            return extremum(*map(self._converted, e.args))
        if name in _OF_QUOTIENTS:
            return _OF_QUOTIENTS[name](*self._quotient(e.args[0]))
        if name == "Piecewise":
            return self._piecewise(e)
        if name not in _FUNCTIONS:
            raise UnboundSizeError(f"the function {name} has no counterpart")
        return _FUNCTIONS[name](*map(self._converted, e.args))

    def _product(self, e: sympy.Mul) -> Sym:
        numerator, denominator = _fraction(e)
        if denominator != 1:  # sizes are whole numbers, so that the division leaves no remainder
            return self._converted(numerator) // self._converted(denominator)
        result = sym(1)
        for a in e.args:
            result = result * self._converted(a)
        return result

    def _piecewise(self, e: sympy.Basic) -> Sym:
        *ways, (last, _) = [(pair.args[0], pair.args[1]) for pair in e.args]
        result = self._converted(last)
        for value, condition in reversed(ways):
            result = s.select(self._converted(condition), self._converted(value), result)
        return result

    def _quotient(self, e: sympy.Basic) -> tuple[Sym, Sym]:
        """Numerator and denominator of a number that is a quotient of sizes; exact where the float that PyTorch
        computes is, which it is for the sizes of tensors."""
        name = type(e).__name__
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            (a, b), (c, d) = map(self._quotient, e.args)
            return a * d, b * c
        if name == "ToFloat":
            return self._quotient(e.args[0])
        if isinstance(e, sympy.Float | sympy.Rational) and not isinstance(e, sympy.Integer):
            exact = sympy.Rational(*float(e).as_integer_ratio()) if isinstance(e, sympy.Float) else e
            return sym(int(exact.p)), sym(int(exact.q))
        if isinstance(e, sympy.Mul):
            top, below = sym(1), sym(1)
            for a, b in map(self._quotient, e.args):
                top, below = top * a, below * b
            return top, below
        if isinstance(e, sympy.Add):
            top, below = sym(0), sym(1)
            for a, b in map(self._quotient, e.args):
                top, below = (top + a, below) if b == below else (top * b + a * below, below * b)
            return top, below
        return self._converted(e), sym(1)

    def _computed(self, e: sympy.Basic) -> Value:
        name = type(e).__name__
        if isinstance(e, sympy.Number):
            return _float64(float(e))
        if isinstance(e, sympy.Add | sympy.Mul) or name in ("FloatTrueDiv", "IntTrueDiv", "FloatPow"):
            operator = ew.add if isinstance(e, sympy.Add) else ew.mul
            operator = {"FloatTrueDiv": ew.div, "IntTrueDiv": ew.div, "FloatPow": ew.pow_}.get(name, operator)
            first, *others = map(self._computed, e.args)
            for other in others:
                first = operator(first, other)
            return first
        if isinstance(e, sympy.Pow):
            return ew.pow_(self._computed(e.base), self._computed(e.exp))
        if name == "ToFloat":
            return self._computed(e.args[0])
        function = _FLOAT_FUNCTIONS.get(name)
        if function is not None:
            return function(self._computed(e.args[0]))
        return ew.cast(sym_tensor(values=(self.of(e),), scalar=True), dtype=dt.f64)


def _float64(number: float) -> Value:
    return constant(np.array(number, np.float64), "")


_FLOAT_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "OpaqueUnaryFn_sqrt": ew.sqrt,
    "OpaqueUnaryFn_exp": ew.exp,
    "OpaqueUnaryFn_log": ew.log,
    "OpaqueUnaryFn_log2": lambda x: ew.div(ew.log(x), _float64(math.log(2))),
    "OpaqueUnaryFn_sin": ew.sin,
    "OpaqueUnaryFn_cos": ew.cos,
    "TruncToFloat": ew.trunc,
}


def _fraction(e: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Numerator and denominator, of rational coefficients alone."""
    denominators = [
        c.q for c in (a.as_coeff_Mul()[0] for a in sympy.Add.make_args(e)) if isinstance(c, sympy.Rational)
    ]
    by = sympy.ilcm(*denominators) if len(denominators) > 1 else (denominators or [1])[0]
    return (sympy.expand(e * by), sympy.Integer(by)) if by != 1 else (e, sympy.Integer(1))
