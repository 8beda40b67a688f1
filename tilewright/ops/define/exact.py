"""Arithmetic on the elements of symbolic tensors: integers as Syms, floats as exact quotients or as what rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.symbolic.reach import limits
from tilewright.ops.define.bodies import apply_scalar
from tilewright.ops.define.floats import (
    MOST_EXCEPTIONS,
    ROUNDED,
    Computed,
    Element,
    Float,
    Ratio,
    UnknownValueError,
    conditions_of,
    is_binary,
    is_plain,
    mantissa,
)
from tilewright.ops.define.roundings import READINGS, proven_conditions, readings


def element_of(x: Any, dtype: DType) -> Element:
    """A number of an element of `dtype` as computed with here; UnknownValueError for infinities and NaN."""
    if not dtype.is_float:
        return sym(int(x))
    if not math.isfinite(x):
        raise UnknownValueError(f"{x} is not a quotient")
    exact = Fraction(float(x))
    return Ratio(sym(exact.numerator), sym(exact.denominator))


class Arithmetic:
    """Scalar operations on elements. `conditions` collects what dims must fulfil for the results to be right: floats
    are exact up to a limit only. Integers are taken not to overflow. Without `exceptions` no dim up to the largest that
    is compared may be one of which exact arithmetic makes another integer; with them such dims become conditions."""

    def __init__(self, *, exceptions: bool = True) -> None:
        self.conditions: dict[Sym, None] = {}
        self._exceptions = (MOST_EXCEPTIONS,) if exceptions else ()

    def apply(self, name: str, operands: Sequence[Element], operand_dtype: DType, dtype: DType) -> Element:
        """Operation `name` on elements whose tensors have `operand_dtype`, giving one of `dtype`.

        UnknownValueError where the result is not an expression of dims.
        """
        if all(x.is_const for x in operands):
            numbers = [_number(x, name == "select" and k == 0, operand_dtype) for k, x in enumerate(operands)]
            return element_of(apply_scalar(name, numbers, dtype), dtype)
        if not any(isinstance(x, Ratio | Computed) for x in operands):
            rule = _ON_SYMS.get(name)
            if rule is None or (name in _LOGICAL and operand_dtype.kind != "bool"):
                raise UnknownValueError(f"{name} of dims is not an expression of dims")
            return rule(*operands)
        if dtype.is_float and name not in _ROUNDING:
            return self._float(name, tuple(operands), operand_dtype, dtype)
        return self._settled(name, tuple(operands), operand_dtype, dtype)

    def cast(self, x: Element, dtype: DType, operand_dtype: DType) -> Element:
        """Conversion of an element: floats to integers truncate, anything to bool is `!= 0`."""
        if x.is_const:
            assert not isinstance(x, Computed)
            value = x.value if isinstance(x, Sym) else _number(x, False, operand_dtype)
            return element_of(np.asarray(value).astype(dtype.storage)[()], dtype)
        if dtype.is_float:
            if isinstance(x, Computed):
                return Computed("cast", (x,), operand_dtype, dtype)
            return self._held(x if isinstance(x, Ratio) else Ratio(x, sym(1)), dtype)
        if isinstance(x, Sym):
            return s.ne(x, 0) if dtype.kind == "bool" else x
        if dtype.kind == "bool":
            return self._settled("ne", (x, Ratio(sym(0), sym(1))), operand_dtype, dt.bool_)
        whole = self._settled("trunc", (x,), operand_dtype, operand_dtype)
        assert isinstance(whole, Ratio)
        return whole.over

    def _float(self, name: str, operands: tuple[Element, ...], operand_dtype: DType, dtype: DType) -> Float:
        """A float of floats: exact where the operands are and the result has few digits."""
        if all(map(is_plain, operands)):
            exact = _on_ratios(name, operands)
            if isinstance(exact, Ratio) and is_binary(exact):
                return self._held(exact, dtype)
        if name not in ROUNDED:
            raise UnknownValueError(f"{name} of a quotient is not one")
        return Computed(name, operands, operand_dtype, dtype)

    def _held(self, x: Ratio, dtype: DType) -> Ratio:
        """`x`, on condition that a float of `dtype` holds it: its numerator needs no more digits than that has."""
        largest = 1 << mantissa(dtype)
        low, high = limits(x.over)
        if high > largest:
            self._assume(s.le(x.over, largest))
        if low < -largest:
            self._assume(s.ge(x.over, -largest))
        return x

    def _settled(
        self, name: str, operands: tuple[Element, ...], operand_dtype: DType, dtype: DType
    ) -> Element:
        """An integer or a truth value of floats."""
        if not any(isinstance(x, Computed) for x in operands):
            return _on_ratios(name, operands)
        if (proven := proven_conditions(name, operands)) is not None:
            for condition in proven:
                self._assume(condition)
            return _on_ratios(name, [_quotient_of(x, 0) for x in operands])
        failure = UnknownValueError(f"{name} of a quotient is not an expression of dims")
        for exceptions in (0, *self._exceptions):
            for reading in range(READINGS):
                try:
                    result = _on_ratios(name, [_quotient_of(x, reading) for x in operands])
                    guess = result.over if isinstance(result, Ratio) else result
                    assert isinstance(guess, Sym)
                    conditions = conditions_of(guess, name, operands, operand_dtype, dtype, exceptions)
                except UnknownValueError as e:
                    failure = e
                    continue
                for condition in conditions:
                    self._assume(condition)
                return result
        raise failure

    def _assume(self, condition: Sym) -> None:
        if condition.is_const and not condition.value:
            raise UnknownValueError("the number is too large to be exact")
        if not condition.is_const:
            self.conditions[condition] = None


def _quotient_of(x: Element, reading: int) -> Element:
    """What `x` is in exact arithmetic, where its constants are what they are in this one of their `readings`."""
    if isinstance(x, Sym):
        return x
    if isinstance(x, Ratio):
        known = readings(x)
        return known[min(reading, len(known) - 1)]
    operands = [_quotient_of(o, reading) for o in x.operands]
    return operands[0] if x.name == "cast" else _on_ratios(x.name, operands)


def _number(x: Any, is_condition: bool, dtype: DType) -> Any:
    return np.bool_(x.value) if is_condition else np.asarray(x.value).astype(dtype.storage)


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
