"""Integer operations whose LLVM instructions have undefined cases, defined for every operand."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import by_lane
from tilewright.codegen.cpu.kernel.lanes import register_type
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt


def safe_divisor(divisor: Reg, zero: Reg) -> Reg:
    """The divisor, with 1 in the place of 0 (where `zero` holds)."""
    return zero.select(divisor.like(1), divisor)


def divide(a: Reg, b: Reg) -> Reg:
    """a / b towards zero; the smallest integer over -1 wraps. b is not 0."""
    if a.dtype.kind == "uint":
        return a.op("udiv", b) if _has_instruction(a, b) else _divided_as_floats(a, b)
    if b.is_literal:
        return a.op("sdiv", b)
    flips, safe = _without_minus_one(b)
    quotient = a.op("sdiv", safe) if _has_instruction(a, b) else _divided_as_floats(a, safe)
    return flips.select(-a, quotient)


def remainder(a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the dividend. b is not 0."""
    safe = b if a.dtype.kind == "uint" or b.is_literal else _without_minus_one(b)[1]
    if _has_instruction(a, b):
        return a.op("urem" if a.dtype.kind == "uint" else "srem", safe)
    return a - safe * _divided_as_floats(a, safe)


def _has_instruction(a: Reg, b: Reg) -> bool:
    """Whether a division is left to LLVM: of single numbers, by known divisors, which are multiplications, of integers
    that floats do not hold, and where there are to be no floats."""
    return a.lanes == 1 or b.is_literal or a.dtype.bits > 32 or not a.text.has_floats


def _divided_as_floats(a: Reg, b: Reg) -> Reg:
    """The quotient of vectors, for which machines have no integer division: floats of more than twice the bits round
    no quotient up to a whole number that it is below, as it is at least 1 / b below."""
    wide = dt.f64 if a.dtype.bits > 8 else dt.f32
    return (a.to(wide) / b.to(wide)).convert("fptosi" if a.dtype.kind == "int" else "fptoui", a.dtype)


def _without_minus_one(b: Reg) -> tuple[Reg, Reg]:
    """Where b is -1, and b with 1 in its place: x86 traps on the smallest integer over -1."""
    flips = b.equals(-1)
    return flips, flips.select(b.like(1), b)


def modulo(a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the divisor. b is not 0."""
    left = remainder(a, b)
    if a.dtype.kind == "uint":
        return left
    adjust = left.differs(0) & ((left ^ b) < 0)
    return adjust.select(left + b, left)


def shift_left(a: Reg, count: Reg) -> Reg:
    """a * 2^count; 0 where the count is not below the width."""
    fits = count.test("icmp ult", 8 * a.dtype.bytes)
    return fits.select(a << fits.select(count, 0), 0)


def shift_right(a: Reg, count: Reg) -> Reg:
    """a / 2^count towards minus infinity; counts beyond the width leave the sign."""
    width = 8 * a.dtype.bytes
    fits = count.test("icmp ult", width)
    if a.dtype.kind == "uint":
        return fits.select(a >> fits.select(count, 0), 0)
    return a.arithmetic_shift(fits.select(count, width - 1))


def integer_power(base: Reg, exponent: Reg) -> Reg:
    """base^exponent with wrap-around; for negative exponents the real power towards zero."""
    text, signed = base.text, base.dtype.kind == "int"
    element = register_type(base.dtype)
    symbol = f"tw_power_{'s' if signed else 'u'}{element[1:]}"
    text.functions[symbol] = _power_text(symbol, element, signed)
    return by_lane(base.dtype, lambda x, n: text.call(x.dtype, 1, symbol, x, n), base, exponent)


def _power_text(symbol: str, element: str, signed: bool) -> str:
    """Square and multiply; a base of 1 or -1 keeps its powers when the exponent is negative, others give
    0."""
    negative = f"icmp slt {element} %n, 0" if signed else "icmp ne i1 false, false"
    return f"""\
define internal {element} @{symbol}({element} %x, {element} %n) noinline nounwind {{
entry:
  %is_negative = {negative}
  %flipped = sub {element} 0, %n
  %start = select i1 %is_negative, {element} %flipped, {element} %n
  %next = add {element} %x, 1
  %is_unit = icmp ule {element} %next, 2
  %is_zero = icmp eq {element} %x, 0
  %not_unit = xor i1 %is_unit, true
  %fades = or i1 %not_unit, %is_zero
  %vanishes = and i1 %is_negative, %fades
  br label %loop
loop:
  %left = phi {element} [ %start, %entry ], [ %rest, %loop ]
  %square = phi {element} [ %x, %entry ], [ %squared, %loop ]
  %product = phi {element} [ 1, %entry ], [ %taken, %loop ]
  %bit = and {element} %left, 1
  %is_odd = icmp ne {element} %bit, 0
  %times = mul {element} %product, %square
  %taken = select i1 %is_odd, {element} %times, {element} %product
  %squared = mul {element} %square, %square
  %rest = lshr {element} %left, 1
  %more = icmp ne {element} %rest, 0
  br i1 %more, label %loop, label %end
end:
  %result = select i1 %vanishes, {element} 0, {element} %taken
  ret {element} %result
}}
"""
