"""Integer operations whose LLVM instructions have undefined cases, defined for every operand."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.lanes import Reg, register_type, vector
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt


def _const(text: Text, like: Reg, value: int) -> Reg:
    return text.splat(Reg(str(value), like.dtype), like.lanes)


def _op(text: Text, opcode: str, a: Reg, b: Reg) -> Reg:
    return text.reg(a.dtype, a.lanes, f"{opcode} {a.typed}, {b.name}")


def _test(text: Text, relation: str, a: Reg, b: Reg) -> Reg:
    return text.reg(dt.bool_, a.lanes, f"icmp {relation} {a.typed}, {b.name}")


def _select(text: Text, flag: Reg, a: Reg, b: Reg) -> Reg:
    return text.reg(a.dtype, a.lanes, f"select {flag.typed}, {a.typed}, {b.typed}")


def is_zero(text: Text, divisor: Reg) -> Reg:
    """Where an integer divisor is 0."""
    return _test(text, "eq", divisor, _const(text, divisor, 0))


def safe_divisor(text: Text, divisor: Reg, zero: Reg) -> Reg:
    """The divisor, with 1 in the place of 0 (where `zero` holds)."""
    return _select(text, zero, _const(text, divisor, 1), divisor)


def zero_where(text: Text, zero: Reg, x: Reg) -> Reg:
    """0 where `zero` holds, else `x`."""
    return _select(text, zero, _const(text, x, 0), x)


def divide(text: Text, a: Reg, b: Reg) -> Reg:
    """a / b towards zero; the smallest integer over -1 wraps. b is not 0."""
    if a.dtype.kind == "uint":
        return _op(text, "udiv", a, b)
    if b.is_literal:
        return _op(text, "sdiv", a, b)
    flips, safe = _without_minus_one(text, b)
    negated = text.reg(a.dtype, a.lanes, f"sub {a.type} {_const(text, a, 0).name}, {a.name}")
    return _select(text, flips, negated, _op(text, "sdiv", a, safe))


def remainder(text: Text, a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the dividend. b is not 0."""
    if a.dtype.kind == "uint":
        return _op(text, "urem", a, b)
    safe = b if b.is_literal else _without_minus_one(text, b)[1]
    return _op(text, "srem", a, safe)


def _without_minus_one(text: Text, b: Reg) -> tuple[Reg, Reg]:
    """Where b is -1, and b with 1 in its place: x86 traps on the smallest integer over -1."""
    flips = _test(text, "eq", b, _const(text, b, -1))
    return flips, _select(text, flips, _const(text, b, 1), b)


def modulo(text: Text, a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the divisor. b is not 0."""
    rest = remainder(text, a, b)
    if a.dtype.kind == "uint":
        return rest
    zero = _const(text, a, 0)
    nonzero = _test(text, "ne", rest, zero)
    differ = _test(text, "slt", _op(text, "xor", rest, b), zero)
    adjust = text.reg(dt.bool_, a.lanes, f"and {nonzero.typed}, {differ.name}")
    return _select(text, adjust, _op(text, "add", rest, b), rest)


def shift_left(text: Text, a: Reg, count: Reg) -> Reg:
    """a * 2^count; 0 where the count is not below the width."""
    limit = _const(text, a, 8 * a.dtype.bytes)
    fits = _test(text, "ult", count, limit)
    safe = _select(text, fits, count, _const(text, a, 0))
    return _select(text, fits, _op(text, "shl", a, safe), _const(text, a, 0))


def shift_right(text: Text, a: Reg, count: Reg) -> Reg:
    """a / 2^count towards minus infinity; counts beyond the width leave the sign."""
    width = 8 * a.dtype.bytes
    fits = _test(text, "ult", count, _const(text, a, width))
    if a.dtype.kind == "uint":
        safe = _select(text, fits, count, _const(text, a, 0))
        return _select(text, fits, _op(text, "lshr", a, safe), _const(text, a, 0))
    return _op(text, "ashr", a, _select(text, fits, count, _const(text, a, width - 1)))


def integer_power(text: Text, base: Reg, exponent: Reg) -> Reg:
    """base^exponent with wrap-around; for negative exponents the real power towards zero."""
    signed = base.dtype.kind == "int"
    element = register_type(base.dtype)
    symbol = f"tw_power_{'s' if signed else 'u'}{element[1:]}"
    text.functions[symbol] = _power_text(symbol, element, signed)
    if base.lanes == 1:
        return text.call(base.dtype, 1, symbol, base, exponent)
    result = "poison"
    type = vector(element, base.lanes)
    for lane in range(base.lanes):
        pair = [text.reg(x.dtype, 1, f"extractelement {x.typed}, i64 {lane}") for x in (base, exponent)]
        one = text.call(base.dtype, 1, symbol, *pair)
        result = text.emit(f"insertelement {type} {result}, {one.typed}, i64 {lane}")
    return Reg(result, base.dtype, base.lanes)


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
