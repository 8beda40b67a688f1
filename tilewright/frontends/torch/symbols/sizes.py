"""Sizes of exported programs: SymPy's expressions over symbols become ours over dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import sympy
import torch

from tilewright.frontends.torch.symbols.hosted import Hosted, function_of, times_of
from tilewright.frontends.translation import Translation
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym, var
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Element, Ratio, UnknownValueError
from tilewright.ops.define.staged import measure_size
from tilewright.ops.source import dim_value


def hint_of(size: torch.SymInt) -> int | None:
    """What a size was when PyTorch traced a program; None where it depends on data."""
    known = size.node.hint if size.node.has_hint() else None
    return None if known is None else int(known)


class UnboundSizeError(Exception):
    """An expression has a symbol that nothing has defined, or a function that has no counterpart."""


def _power(base: Sym, exponent: Sym) -> Sym:
    if not exponent.is_const or exponent.value < 0:
        raise UnboundSizeError(f"the power {base} ** {exponent}")
    result = sym(1)
    for _ in range(exponent.value):
        result = result * base
    return result


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

_ROUNDINGS: dict[str, tuple[str, Callable[[Value], Value]]] = {
    "FloorToInt": ("floor", ew.floor),
    "CeilToInt": ("ceil", ew.ceil),
    "TruncToInt": ("trunc", ew.trunc),
    "RoundToInt": ("round", ew.round_),
    "floor": ("floor", ew.floor),
    "ceiling": ("ceil", ew.ceil),
}
"""Functions that make an integer of a float, as operations on elements and on tensors."""

_QUOTIENTS = ("IntTrueDiv", "FloatTrueDiv")


class Sizes:
    """What the symbols of one program mean."""

    def __init__(self, translation: Translation, known: Mapping[sympy.Basic, Sym] | None = None) -> None:
        self._translation = translation
        self._symbols: dict[sympy.Basic, Sym] = dict(known or {})  # and roundings that are measured

    def inner(self) -> Sizes:
        """Those of a subgraph: what it defines is known in it alone."""
        return Sizes(self._translation, self._symbols)

    def knows(self, expression: sympy.Expr) -> bool:
        return all(symbol in self._symbols for symbol in expression.free_symbols)

    def named(self, symbol: str) -> Sym | None:
        """What the symbol of this name is, where that is known."""
        return next((size for known, size in self._symbols.items() if str(known) == symbol), None)

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
        if name in _ROUNDINGS:
            return self.rounded(e)
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

    # Sizes that are computed in floats

    def symbol_of(self, size: Sym) -> sympy.Symbol:
        """A symbol that stands for a size."""
        symbol = sympy.Symbol(f"size_{len(self._symbols)}", integer=True)
        self._symbols[symbol] = size
        return symbol

    def rounded(self, e: sympy.Basic, *, may_measure: bool = True) -> Sym:
        """The integer that PyTorch makes of a float: an expression where that is the same for all dims, else measured
        when the float has been computed, or an UnknownValueError."""
        if e in self._symbols:
            return self._symbols[e]
        name, operator = _ROUNDINGS[type(e).__name__]
        arithmetic = Arithmetic(exceptions=False)
        try:
            found = arithmetic.apply(name, (self._element(e.args[0], arithmetic),), dt.f64, dt.f64)
        except UnknownValueError:
            if not may_measure:
                raise
            self._symbols[e] = self._measured(e, operator)
            return self._symbols[e]
        for condition in arithmetic.conditions:
            self._translation.assume_exact(condition)
        assert isinstance(found, Ratio)
        return found.over

    def _measured(self, e: sympy.Basic, operator: Callable[[Value], Value]) -> Sym:
        """A size that is computed when the model is called: by native code where that rounds as Python does."""
        least = 0 if self._is_nonnegative(e.args[0]) else None
        if all(map(_is_rounded_alike, sympy.preorder_traversal(e.args[0]))):
            number = operator(self._computed(e.args[0]))
            return measure_size(ew.cast(number, dtype=dt.i64), var(self._translation.new_size().name, least))
        hosted = Hosted()
        self._write(e, hosted)
        if hosted.is_long:
            raise UnboundSizeError("it takes too many operations")
        return hosted.computed(self._translation, least=least)

    def _write(self, e: sympy.Basic, hosted: Hosted) -> None:
        """The operations that make a number, for the host."""
        if isinstance(e, sympy.Integer):
            hosted.number(int(e))
        elif isinstance(e, sympy.Float):
            hosted.number(float(e))
        elif isinstance(e, sympy.Rational):
            self._write(sympy.Integer(e.p), hosted)
            self._write(sympy.Integer(e.q), hosted)
            hosted.apply("/")
        elif not _has_floats(e):
            hosted.size(self.of(e))
        else:
            operation = function_of(e)
            if operation is None:
                raise UnboundSizeError(f"the function {type(e).__name__} has no counterpart")
            for operand in e.args:
                self._write(operand, hosted)
            hosted.apply(operation, times_of(operation, len(e.args)))

    def _element(self, e: sympy.Basic, arithmetic: Arithmetic) -> Element:
        """A float of 64 bits as PyTorch computes it; UnknownValueError where the arithmetic is not followed."""
        name = type(e).__name__
        if isinstance(e, sympy.Float):
            return element_of(float(e), dt.f64)
        if isinstance(e, sympy.Rational) and not isinstance(e, sympy.Integer):
            return Ratio(sym(int(e.p)), sym(int(e.q)))
        if name == "ToFloat":
            return self._element(e.args[0], arithmetic)
        if name in _QUOTIENTS or (isinstance(e, sympy.Add | sympy.Mul) and _is_float(e)):
            operation = "div" if name in _QUOTIENTS else "add" if isinstance(e, sympy.Add) else "mul"
            first, *others = (self._element(a, arithmetic) for a in e.args)
            for other in others:
                first = arithmetic.apply(operation, (first, other), dt.f64, dt.f64)
            return first
        if _is_float(e):
            raise UnknownValueError(f"{name} of floats")
        return arithmetic.cast(self._converted(e), dt.f64, dt.i64)

    def _is_nonnegative(self, e: sympy.Basic) -> bool:
        if isinstance(e, sympy.Number):
            return bool(e >= 0)
        if isinstance(e, sympy.Add | sympy.Mul) or type(e).__name__ in (*_QUOTIENTS, "ToFloat", "FloatPow"):
            return all(map(self._is_nonnegative, e.args[: 1 if type(e).__name__ == "FloatPow" else None]))
        return not _is_float(e) and self._converted(e).interval[0] >= 0

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
        return ew.cast(dim_value(self.of(e)), dtype=dt.f64)


def _is_float(e: sympy.Basic) -> bool:
    """Whether the value is a float: one that is rounded to an integer is none."""
    if type(e).__name__ in _ROUNDINGS:
        return False
    name = type(e).__name__
    return name in ("ToFloat", "Float", *_QUOTIENTS, "TruncToFloat", "FloatPow", "RoundDecimal") or (
        name.startswith("OpaqueUnaryFn_")
    ) or any(
        map(_is_float, e.args)
    )


def _has_floats(e: sympy.Basic) -> bool:
    """Whether floats are a part of how a number is computed."""
    return any(map(_is_float, sympy.preorder_traversal(e)))


def _is_rounded_alike(e: sympy.Basic) -> bool:
    """Whether native code computes a function to the last bit as Python does: the standard of floats says how."""
    name = type(e).__name__
    return name not in ("FloatPow", "RoundDecimal") and (
        not name.startswith("OpaqueUnaryFn_") or name == "OpaqueUnaryFn_sqrt"
    )


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
