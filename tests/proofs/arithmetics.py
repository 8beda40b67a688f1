"""Scalar operations in the arithmetics in which z3 compares programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import z3

from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS

_FORMAT = (4, 5)
"""Bits of the exponent and of the mantissa, the hidden one included, of the floats in which programs are compared."""

_COMPARED = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_LOGIC = {"and": z3.And, "or": z3.Or, "xor": z3.Xor, "not": z3.Not, "eq": lambda a, b: a == b, "ne": z3.Xor}


class Moves:
    """Elements of which nothing is known, and operations that are unknown functions."""

    unrolls = False

    def __init__(self) -> None:
        self.element: Any = z3.DeclareSort("Element")
        self.axioms: list[Any] = []

    def sort(self, dtype: DType) -> Any:
        return z3.BoolSort() if dtype.kind == "bool" else self.element

    def literal(self, value: Any, dtype: DType) -> Any:
        if dtype.kind == "bool":
            return z3.BoolVal(bool(value))
        return z3.Const(f"number {float(value)!r} {dtype.name}", self.element)

    def index(self, expr: Any, dtype: DType) -> Any:
        """The integer `expr` as an element."""
        return z3.Function(f"index {dtype.name}", z3.IntSort(), self.element)(expr)

    def cast(self, x: Any, source: DType, target: DType) -> Any:
        if source == target:
            return x
        return z3.Function(f"cast {source.name} {target.name}", self.sort(source), self.sort(target))(x)

    def apply(self, name: str, operands: Sequence[Any], source: DType, target: DType) -> Any:
        if name == "select":
            return z3.If(*operands)
        if source.kind == "bool" and name in _LOGIC:
            return _LOGIC[name](*operands)
        return self.known(name, operands) if self.knows(name) else self.unknown(name, operands, source, target)

    def knows(self, name: str) -> bool:
        return False

    def known(self, name: str, operands: Sequence[Any]) -> Any:
        raise NotImplementedError

    def unknown(self, name: str, operands: Sequence[Any], source: DType, target: DType) -> Any:
        """A function of which nothing is known but that it commutes, where it does."""
        function = z3.Function(f"{name} {source.name}", *(x.sort() for x in operands), self.sort(target))
        made = function(*operands)
        if SCALAR_OPS[name].commutative:
            self.axioms.append(made == function(*reversed(operands)))
        return made

    def same(self, a: Any, b: Any) -> Any:
        return a == b


class Reals(Moves):
    """Real numbers. Roots are what their squares say, and powers of known small exponents products."""

    unrolls = True

    def __init__(self) -> None:
        super().__init__()
        self.element = z3.RealSort()

    def literal(self, value: Any, dtype: DType) -> Any:
        if dtype.kind == "bool" or not math.isfinite(value):
            return super().literal(value, dtype)
        return z3.RealVal(repr(float(value)) if float(value) != int(value) else int(value))

    def index(self, expr: Any, dtype: DType) -> Any:
        return z3.ToReal(expr)

    def cast(self, x: Any, source: DType, target: DType) -> Any:
        """What is only made wider, or rounded, is the same number."""
        widens = source.is_int and target.is_int and source.bits < target.bits and source.kind == "int"
        if widens or (target.is_float and (source.is_int or source.is_float)):
            return x
        return super().cast(x, source, target)

    def knows(self, name: str) -> bool:
        return name in _COMPARED or name in (
            "add", "sub", "mul", "div", "neg", "min", "max", "abs", "eq", "ne", "sqrt", "rsqrt", "pow",
        )  # fmt: skip

    def known(self, name: str, operands: Sequence[Any]) -> Any:
        a, b = (*operands, None)[:2]
        if name == "pow":
            return self._power(a, b)
        if name in ("sqrt", "rsqrt"):
            root = z3.Function("root", self.element, self.element)(a)
            self.axioms.append(z3.Implies(a >= 0, z3.And(root >= 0, root * root == a)))
            return root if name == "sqrt" else 1 / root
        if name in _COMPARED:
            return _COMPARED[name](a, b)
        return {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b, "neg": lambda: -a,
            "min": lambda: z3.If(a <= b, a, b), "max": lambda: z3.If(a >= b, a, b), "abs": lambda: z3.If(a >= 0, a, -a),
            "eq": lambda: a == b, "ne": lambda: a != b,
        }[name]()  # fmt: skip

    def _power(self, a: Any, exponent: Any) -> Any:
        number = float(exponent.as_fraction()) if z3.is_rational_value(exponent) else math.nan
        if abs(number) == 0.5:
            return self.known("sqrt" if number > 0 else "rsqrt", [a])
        if number in (-1, 0, 1, 2, 3):
            return 1 / a if number < 0 else math.prod([a] * int(number), start=z3.RealVal(1))
        return z3.Function("pow", self.element, self.element, self.element)(a, exponent)


class Floats(Moves):
    """IEEE 754 in a format of few bits, each operation rounded to the nearest even number."""

    unrolls = True

    def __init__(self, one_zero: bool = False) -> None:
        super().__init__()
        self.element = z3.FPSort(*_FORMAT)
        self.one_zero = one_zero

    def literal(self, value: Any, dtype: DType) -> Any:
        if dtype.kind == "bool":
            return z3.BoolVal(bool(value))
        return z3.FPVal(float(value), self.element)

    def knows(self, name: str) -> bool:
        return name in _COMPARED or name in ("add", "sub", "mul", "div", "neg", "min", "max", "abs", "eq", "ne", "sqrt")

    def known(self, name: str, operands: Sequence[Any]) -> Any:
        nearest = z3.RNE()
        a, b = (*operands, None)[:2]
        if name in ("min", "max"):
            first = z3.fpLEQ(a, b) if name == "min" else z3.fpGEQ(a, b)
            is_missing = z3.Or(z3.fpIsNaN(a), z3.fpIsNaN(b))
            return z3.If(is_missing, z3.fpNaN(self.element), z3.If(first, a, b))
        if name in _COMPARED:
            return {"lt": z3.fpLT, "le": z3.fpLEQ, "gt": z3.fpGT, "ge": z3.fpGEQ}[name](a, b)
        return {
            "add": lambda: z3.fpAdd(nearest, a, b), "sub": lambda: z3.fpSub(nearest, a, b),
            "mul": lambda: z3.fpMul(nearest, a, b), "div": lambda: z3.fpDiv(nearest, a, b),
            "neg": lambda: z3.fpNeg(a), "abs": lambda: z3.fpAbs(a), "sqrt": lambda: z3.fpSqrt(nearest, a),
            "eq": lambda: z3.fpEQ(a, b), "ne": lambda: z3.fpNEQ(a, b),
        }[name]()  # fmt: skip

    def same(self, a: Any, b: Any) -> Any:
        if a.sort() != self.element or not self.one_zero:
            return a == b
        return z3.Or(a == b, z3.And(z3.fpIsZero(a), z3.fpIsZero(b)))


class Integers(Moves):
    """Integers of 8 bits that wrap, signed."""

    unrolls = True

    def __init__(self) -> None:
        super().__init__()
        self.element = z3.BitVecSort(8)

    def literal(self, value: Any, dtype: DType) -> Any:
        return z3.BoolVal(bool(value)) if dtype.kind == "bool" else z3.BitVecVal(int(value), 8)

    def knows(self, name: str) -> bool:
        return name in _COMPARED or name in (
            "add", "sub", "mul", "div", "neg", "min", "max", "and", "or", "xor", "shl", "shr", "not", "eq", "ne",
        )  # fmt: skip

    def known(self, name: str, operands: Sequence[Any]) -> Any:
        a, b = (*operands, None)[:2]
        if name in _COMPARED:
            return _COMPARED[name](a, b)
        return {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b, "neg": lambda: -a,
            "min": lambda: z3.If(a <= b, a, b), "max": lambda: z3.If(a >= b, a, b), "not": lambda: ~a,
            "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b, "shl": lambda: a << b,
            "shr": lambda: a >> b, "eq": lambda: a == b, "ne": lambda: a != b,
        }[name]()  # fmt: skip


def arithmetic(name: str, one_zero: bool) -> Moves:
    """The arithmetic of a statement."""
    if name == "floats":
        return Floats(one_zero)
    return {"moves": Moves, "reals": Reals, "integers": Integers}[name]()
