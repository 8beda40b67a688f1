"""Exact arithmetic on the elements of symbolic tensors: integers as Syms, floats as quotients of Syms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ops.bodies import apply_scalar

MAX_DENOMINATOR = 1 << 10
"""A float factor of a dim counts as the fraction whose nearest float it is, with at most this denominator."""


class UnknownValueError(ValueError):
    """The element is not an expression of dims that can be written down."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """An element of a float tensor: `over / under`, where `under` is positive."""

    over: Sym
    under: Sym

    @property
    def is_const(self) -> bool:
        return self.over.is_const and self.under.is_const

    @property
    def value(self) -> float:
        """The value of a constant ratio."""
        return float(Fraction(self.over.value, self.under.value))


Element = Sym | Ratio


def element_of(x: Any, dtype: DType) -> Element:
    """A number of an element of `dtype` as computed with here; UnknownValueError for infinities and NaN."""
    if not dtype.is_float:
        return sym(int(x))
    if not math.isfinite(x):
        raise UnknownValueError(f"{x} is not a quotient")
    exact = Fraction(float(x))
    return Ratio(sym(exact.numerator), sym(exact.denominator))


def apply_exact(name: str, operands: Sequence[Element], operand_dtype: DType, dtype: DType) -> Element:
    """Scalar operation `name` on elements whose tensors have `operand_dtype`, giving one of `dtype`.

    UnknownValueError where the result is not an expression of dims. Sizes are taken not to overflow.
    """
    if all(x.is_const for x in operands):
        numbers = [_number(x, name == "select" and k == 0, operand_dtype) for k, x in enumerate(operands)]
        return element_of(apply_scalar(name, numbers, dtype), dtype)
    if any(isinstance(x, Ratio) for x in operands):
        return _on_ratios(name, [_rounded(x) if isinstance(x, Ratio) else x for x in operands])
    rule = _ON_SYMS.get(name)
    if rule is None or (name in _LOGICAL and operand_dtype.kind != "bool"):
        raise UnknownValueError(f"{name} of dims is not an expression of dims")
    return rule(*operands)


def cast_exact(x: Element, dtype: DType) -> Element:
    """Conversion of an element: floats to integers truncate, anything to bool is `!= 0`."""
    if dtype.is_float:
        if x.is_const:
            return element_of(float(np.asarray(x.value).astype(dtype.storage)), dtype)
        return x if isinstance(x, Ratio) else Ratio(x, sym(1))
    if dtype.kind == "bool":
        return s.ne(x.over if isinstance(x, Ratio) else x, 0)
    if isinstance(x, Ratio):
        x = _quotient(x.over, x.under)
    return sym(int(np.asarray(x.value).astype(dtype.storage))) if x.is_const else x


def _number(x: Element, is_condition: bool, dtype: DType) -> Any:
    return np.bool_(x.value) if is_condition else np.asarray(x.value).astype(dtype.storage)


def _rounded(x: Ratio) -> Ratio:
    """A constant as the simple fraction that it approximates, where there is one."""
    if not x.is_const:
        return x
    exact = Fraction(x.over.value, x.under.value)
    simple = exact.limit_denominator(MAX_DENOMINATOR)
    if np.float32(float(simple)) != np.float32(float(exact)):
        return x
    return Ratio(sym(simple.numerator), sym(simple.denominator))


def _quotient(a: Sym, b: Sym) -> Sym:
    """a / b truncated towards zero, for integers; a dim as divisor is taken to be positive."""
    if b.is_const and b.value < 0:
        return -_quotient(a, -b)
    if (b.bounds[0] or 0) < 0 or b.bounds[0] is None:
        raise UnknownValueError(f"the sign of the divisor {b} is not known")
    if s.ge0(a) == 1:
        return a // b
    return s.select(s.ge0(a), a // b, -((-a) // b))


def _power(a: Sym, b: Sym) -> Sym:
    if not b.is_const or not 0 <= b.value <= 8:
        raise UnknownValueError(f"the power {b} is not a small constant")
    result = sym(1)
    for _ in range(b.value):
        result = result * a
    return result


def _sign(a: Sym) -> Sym:
    return s.gt(a, 0) - s.lt(a, 0)


def _absolute(a: Sym) -> Sym:
    return s.select(s.ge0(a), a, -a)


_LOGICAL = frozenset({"and", "or", "xor", "not"})
_ON_SYMS: Mapping[str, Callable[..., Sym]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "rem": lambda a, b: a - _quotient(a, b) * b,
    "mod": lambda a, b: a % b,
    "pow": _power,
    "neg": lambda a: -a,
    "abs": _absolute,
    "sign": _sign,
    "min": s.minimum,
    "max": s.maximum,
    "eq": s.eq,
    "ne": s.ne,
    "lt": s.lt,
    "le": s.le,
    "gt": s.gt,
    "ge": s.ge,
    "and": s.logical_and,
    "or": s.logical_or,
    "xor": s.ne,
    "not": s.logical_not,
    "select": s.select,
}


def _on_ratios(name: str, operands: Sequence[Element]) -> Element:
    if name == "select":
        condition = operands[0]
        assert isinstance(condition, Sym)
        chosen, under = _over_common([_ratio(x) for x in operands[1:]])
        return Ratio(s.select(condition, *chosen), under)
    ratios = [_ratio(x) for x in operands]
    match name:
        case "mul":
            return _reduced(ratios[0].over * ratios[1].over, ratios[0].under * ratios[1].under)
        case "div":
            return _divided(*ratios)
        case "add" | "sub" | "min" | "max":
            overs, under = _over_common(ratios)
            return _reduced(_ON_SYMS[name](*overs), under)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return _ON_SYMS[name](*_over_common(ratios)[0])
        case "neg" | "abs":
            return Ratio(_ON_SYMS[name](ratios[0].over), ratios[0].under)
        case "floor" | "ceil" | "trunc" | "round":
            return Ratio(_ROUNDING[name](ratios[0].over, ratios[0].under), sym(1))
    raise UnknownValueError(f"{name} of a quotient is not one")


def _divided(a: Ratio, b: Ratio) -> Ratio:
    if b.over.is_const and b.over.value < 0:
        return _divided(Ratio(-a.over, a.under), Ratio(-b.over, b.under))
    if (b.over.bounds[0] or 0) < 0 or b.over.bounds[0] is None or b.over == sym(0):
        raise UnknownValueError("the sign of the divisor is not known")
    return _reduced(a.over * b.under, a.under * b.over)


def _ratio(x: Element) -> Ratio:
    assert isinstance(x, Ratio), "a float tensor holds ratios"
    return x


def _over_common(ratios: Sequence[Ratio]) -> tuple[list[Sym], Sym]:
    """Numerators over one denominator, and that denominator."""
    if len({r.under for r in ratios}) == 1:
        return [r.over for r in ratios], ratios[0].under
    (a, b) = ratios
    return [a.over * b.under, b.over * a.under], a.under * b.under


def _reduced(over: Sym, under: Sym) -> Ratio:
    """The quotient without the denominator where that divides evenly."""
    whole = over // under
    if whole * under == over:
        return Ratio(whole, sym(1))
    return Ratio(over, under)


def _nearest_even(over: Sym, under: Sym) -> Sym:
    doubled = 2 * over + under
    nearest = doubled // (2 * under)
    is_tie = s.eq(doubled % (2 * under), 0)
    return nearest - is_tie * (nearest % 2)


_ROUNDING: Mapping[str, Callable[[Sym, Sym], Sym]] = {
    "floor": lambda a, b: a // b,
    "ceil": lambda a, b: -((-a) // b),
    "trunc": _quotient,
    "round": _nearest_even,
}
