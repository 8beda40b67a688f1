"""Functions of registers that LLVM has as intrinsics, and formulas of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.cpu.kernel.lanes import register_type
from tilewright.codegen.cpu.kernel.text import Number, Operand, Reg
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


def intrinsic(name: str, x: Reg, *others: Operand) -> Reg:
    """A call of an LLVM intrinsic that is overloaded on the type of its operands."""
    element = x.dtype.name if x.dtype.is_float else register_type(x.dtype)
    suffix = element if x.lanes == 1 else f"v{x.lanes}{element}"
    return x.text.call(x.dtype, x.lanes, f"llvm.{name}.{suffix}", x, *map(x.like, others))


def fma(a: Reg, b: Operand, c: Operand) -> Reg:
    """a * b + c with one rounding."""
    return intrinsic("fma", a, b, c)


def exact_fma(a: Reg, b: Operand, c: Operand) -> Reg:
    """a * b + c with an exact product also where the machine does not fuse it with the sum: float32 in float64, and
    float64 with factors in two parts (Dekker, 1971), to the last bit where one is a whole number below 2^51, and to 105
    bits elsewhere. The sum is rounded once where a and b cancel most of c."""
    if a.text.fuses:
        return fma(a, b, c)
    b, c = a.like(b), a.like(c)
    if a.dtype.bits == 32:
        return (a.to(dt.f64) * b.to(dt.f64) + c.to(dt.f64)).to(a.dtype)
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return (product + c) + lost


def _halves(x: Reg) -> tuple[Reg, Reg]:
    """A float64 as a sum of numbers of 26 and 27 bits."""
    high = (x.bits & -(1 << 27)).as_float
    return high, x - high


def sqrt(x: Reg) -> Reg:
    return intrinsic("sqrt", x)


def absolute(x: Reg) -> Reg:
    """The magnitude of a float."""
    return intrinsic("fabs", x)


def floor(x: Reg) -> Reg:
    return intrinsic("floor", x)


def copysign(magnitude: Reg, sign: Reg) -> Reg:
    return intrinsic("copysign", magnitude, sign)


def at_most(x: Reg, bound: Number) -> Reg:
    """min(x, bound); nan stays nan.

    The comparison is written so that x86 makes one `minps` of it, whose second operand wins when it is nan.
    """
    limit = x.like(bound)
    return (limit < x).select(limit, x)


def at_least(x: Reg, bound: Number) -> Reg:
    """max(x, bound); nan stays nan."""
    limit = x.like(bound)
    return (limit > x).select(limit, x)


def clamp(x: Reg, low: Number, high: Number) -> Reg:
    """x within [low, high]; nan stays nan."""
    return at_most(at_least(x, low), high)


def polynomial(x: Reg, coefficients: Sequence[float]) -> Reg:
    """sum(coefficients[i] * x**i) by Horner's rule, which takes the fewest instructions."""
    total: Operand = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = fma(x, total, coefficient)
    return x.like(total)


def any_lane(flag: Reg) -> Reg:
    """Whether a flag holds in any lane."""
    if flag.lanes == 1:
        return flag
    return flag.text.call(flag.dtype, 1, f"llvm.vector.reduce.or.v{flag.lanes}i1", flag)


def by_lane(result: DType, function: Callable[..., Reg], *operands: Reg) -> Reg:
    """A register of what a function of single elements gives, lane by lane."""
    first = operands[0]
    if first.lanes == 1:
        return function(*operands)
    text = first.text
    made = text.named("poison", result, first.lanes)
    for lane in range(first.lanes):
        one = function(*[o.part(lane, 1) for o in operands])
        made = text.reg(result, first.lanes, f"insertelement {made.typed}, {one.typed}, i64 {lane}")
    return made
