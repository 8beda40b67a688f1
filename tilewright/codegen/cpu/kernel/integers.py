"""Integer operations whose LLVM instructions have undefined cases, defined for every operand."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import any_lane, by_lane, intrinsic
from tilewright.codegen.cpu.kernel.lanes import register_type
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op


def safe_divisor(divisor: Reg, zero: Reg) -> Reg:
    """The divisor, with 1 in the place of 0 (where `zero` holds)."""
    return zero.select(divisor.like(1), divisor)


def has_constant_divisor(op: Op) -> bool:
    """Whether its second operand is a constant other than 0."""
    divisor = op.operands[1].op
    return divisor is not None and divisor.name == "const" and divisor.attrs["value"] != 0


def divide(a: Reg, b: Reg) -> Reg:
    """a / b towards zero; the smallest integer over -1 wraps. b is not 0."""
    if _has_instruction(a, b):
        return _divided(a, b)
    return _divided_as_floats(a, b) if a.dtype.bits <= 32 else _divided_by_magnitude(a, b)


def remainder(a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the dividend. b is not 0."""
    if not _has_instruction(a, b):
        return a - b * divide(a, b)
    safe = b if a.dtype.kind == "uint" or b.is_literal else _without_minus_one(b)[1]
    return a.op("urem" if a.dtype.kind == "uint" else "srem", safe)


def _has_instruction(a: Reg, b: Reg) -> bool:
    """Whether a division is left to LLVM: of single numbers, by known divisors, which are multiplications, and where
    there are to be no floats. Machines have no division of vectors of integers."""
    return a.lanes == 1 or b.is_literal or not a.text.has_floats


def _divided(a: Reg, b: Reg) -> Reg:
    """The quotient by LLVM's instruction, of each lane for itself."""
    if a.dtype.kind == "uint":
        return a.op("udiv", b)
    if b.is_literal:
        return a.op("sdiv", b)
    flips, safe = _without_minus_one(b)
    return flips.select(-a, a.op("sdiv", safe))


def _divided_as_floats(a: Reg, b: Reg) -> Reg:
    """The quotient of vectors of up to 32 bits: floats of more than twice the bits round no quotient up to a whole
    number that it is below, as it is at least 1 / b below."""
    flips, safe = (None, b) if a.dtype.kind == "uint" else _without_minus_one(b)
    wide = dt.f64 if a.dtype.bits > 8 else dt.f32
    quotient = (a.to(wide) / safe.to(wide)).convert("fptosi" if a.dtype.kind == "int" else "fptoui", a.dtype)
    return quotient if flips is None else flips.select(-a, quotient)


NEAR = 1 << 51
"""Integers of less magnitude are exact in float64, and quotients of two of them are at least 2^-51 of themselves below
the next whole number. The bits of `FAR_FLOAT` plus such an integer are those of an integer plus a constant."""
FAR_FLOAT, FAR_BITS = 1.5 * 2.0**52, 0x4338000000000000


def _divided_by_magnitude(a: Reg, b: Reg) -> Reg:
    """The quotient of vectors of 64 bits: as floats where all lanes are near 0, and else of each lane for itself."""
    text, signed = a.text, a.dtype.kind == "int"
    near = [(x + NEAR if signed else x).test("icmp ult", 2 * NEAR if signed else NEAR) for x in (a, b)]
    as_floats, lanes, end = (text.label(name) for name in ("near", "far", "divided"))
    text.branch(any_lane(~(near[0] & near[1])).name, lanes, as_floats)
    text.start(as_floats)
    wide = [(x + FAR_BITS).as_float - FAR_FLOAT for x in (a, b)]
    found = (intrinsic("trunc", wide[0] / wide[1]) + FAR_FLOAT).convert("bitcast", a.dtype) - FAR_BITS
    text.jump(end)
    text.start(lanes)
    exact = _divided(a, b)
    text.jump(end)
    text.start(end)
    ways = f"[ {found.name}, %{as_floats} ], [ {exact.name}, %{lanes} ]"
    return text.reg(a.dtype, a.lanes, f"phi {a.type} {ways}")


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
