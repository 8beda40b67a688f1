"""Scalar operations on registers of lanes: one function for each name of `ir.scalar.SCALAR_OPS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tilewright.codegen.cpu import vmath
from tilewright.codegen.cpu.kernel.convert import convert, is_narrow, narrow, widen, wrap
from tilewright.codegen.cpu.kernel.functions import absolute, by_lane, copysign, fma, intrinsic
from tilewright.codegen.cpu.kernel.integers import (
    divide,
    integer_power,
    modulo,
    remainder,
    shift_left,
    shift_right,
)
from tilewright.codegen.cpu.kernel.lanes import register_type
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import has_one_use
from tilewright.ir.scalar import scalar_operation
from tilewright.target.machine import REGISTERS

Emit = Callable[..., Reg]

_FUSED = (dt.f32, dt.f64)


def apply_scalar(name: str, operands: Sequence[Reg], result: DType) -> Reg:
    """Scalar operation `name` on operands of equally many lanes.

    Integer divisors must not be 0 (see `integers.safe_divisor`). Narrow floats are computed in float32.
    """
    if (emit := _OF_ALL.get(name)) is not None:
        return emit(*operands)
    if not is_narrow(operands[0].dtype):
        found = _apply_wide(name, operands)
        return found if found.dtype.kind == "bool" else wrap(found, result)
    wide = _apply_wide(name, [widen(x) for x in operands])
    return narrow(wide, result) if is_narrow(result) else wide


def _apply_wide(name: str, operands: Sequence[Reg]) -> Reg:
    dtype = operands[0].dtype
    kind = "float" if dtype.is_float else "bool" if dtype.kind == "bool" else "int"
    function = _TABLES[kind].get(name)
    if function is None:
        raise UnsupportedError(f"the scalar operation '{name}' does not exist for {dtype}")
    return function(*operands)


def _instruction(opcode: str) -> Emit:
    return lambda a, b: a.op(opcode, b)


def _comparison(signed: str, unsigned: str = "") -> Emit:
    return lambda a, b: a.test(unsigned if unsigned and a.dtype.kind != "int" else signed, b)


def _intrinsic(name: str) -> Emit:
    return lambda *operands: intrinsic(name, *operands)


# Floats


def _float_extremum(name: str) -> Emit:
    """min or max that is nan if either operand is; of zeros either one.

    x86's instruction yields its second operand when one is nan; of `llvm.minimum` and `llvm.maximum` LLVM makes that
    and puts the first operand back where it is nan. So the first is a literal, which never is, or else `b`: what a
    reduction adds to, `a`, then waits for one comparison less.
    """

    def emit(a: Reg, b: Reg) -> Reg:
        first, second = (a, b) if a.is_literal else (b, a)
        suffix = a.dtype.name if a.lanes == 1 else f"v{a.lanes}{a.dtype.name}"
        operands = f"{first.typed}, {second.typed}"
        return a.text.reg(a.dtype, a.lanes, f"call nsz {a.type} @llvm.{name}.{suffix}({operands})")

    return emit


def _float_modulo(a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the divisor, as Python has it."""
    left = _vector_math("rem")(a, b)
    differ = (left < 0.0) ^ (b < 0.0)
    adjust = left.differs(0.0) & differ
    moved = adjust.select(left + b, left)
    return left.equals(0.0).select(copysign(left.like(0.0), b), moved)


def _float_sign(x: Reg) -> Reg:
    above, below = x > 0.0, x < 0.0
    zero_or_nan = _flushed(x)
    return above.select(x.like(1.0), below.select(x.like(-1.0), zero_or_nan))


def _is_inf(x: Reg) -> Reg:
    return absolute(x).equals(float("inf"))


def _vector_math(name: str) -> Emit:
    def emit(*operands: Reg) -> Reg:
        x, text = operands[0], operands[0].text
        symbol = vmath.vmath_symbol(name, x.dtype.name, x.lanes)
        if symbol not in text.functions:
            text.declarations.update(dict.fromkeys(vmath.vmath_declarations(name, x.dtype.name)))
            text.functions[symbol] = vmath.vmath_function(
                name, x.dtype.name, x.lanes, text.scale, fuses=text.fuses
            )
        return text.call(x.dtype, x.lanes, symbol, *operands)

    return emit


def _computed(emit: Emit) -> Emit:
    """Code that may hand on an operand, or integer arithmetic's result, without a denormal: the thread's modes say
    whether it counts as zero."""
    return lambda *operands: _flushed(emit(*operands))


def _flushed(x: Reg) -> Reg:
    """`x`, with zeros for denormals that count as zero."""
    if x.lanes != 2:
        return intrinsic("canonicalize", x)
    # Two lanes of float32 one by one: LLVM's code generator for x86 has no code for them and ends the process, and
    # its passes make two lanes of four that only two are used of.
    return by_lane(x.dtype, lambda one: intrinsic("canonicalize", one), x)


def _library(single: str, double: str) -> Emit:
    """A function of the platform's math library, called for each lane."""

    def emit(*operands: Reg) -> Reg:
        x, text = operands[0], operands[0].text
        element = register_type(x.dtype)
        symbol = single if x.dtype is dt.f32 else double
        text.declarations[f"declare {element} @{symbol}({', '.join([element] * len(operands))})"] = None
        return by_lane(x.dtype, lambda *ones: text.call(x.dtype, 1, symbol, *ones), *operands)

    return emit


# Integers


def _int_abs(x: Reg) -> Reg:
    return x if x.dtype.kind == "uint" else (x < 0).select(-x, x)


def _int_sign(x: Reg) -> Reg:
    one = x.differs(0).convert("zext", x.dtype)
    return one if x.dtype.kind == "uint" else (x < 0).select(x.like(-1), one)


def _ticks(x: Reg) -> Reg:
    """x plus the count of cycles of this core."""
    count = convert(x.text.call(dt.u64, 1, "llvm.readcyclecounter"), x.dtype)
    return x + count.splat(x.lanes)


def _int_extremum(name: str) -> Emit:
    return lambda a, b: intrinsic(f"{'s' if a.dtype.kind == 'int' else 'u'}{name}", a, b)


def _never(x: Reg) -> Reg:
    return x.text.constant(dt.bool_, False, x.lanes)


_OF_ALL: dict[str, Emit] = {"select": lambda condition, a, b: condition.select(a, b)}
"""Operations that are one for all types."""

_BITWISE: dict[str, Emit] = {
    "and": _instruction("and"),
    "or": _instruction("or"),
    "xor": _instruction("xor"),
    "not": lambda x: ~x,
}


# Sums of products. Which of them are one operation is decided here and not by LLVM, whose code generator fuses what it
# happens to see in one block at one level of optimisation: the bits of a kernel are those of its loops, whatever effort
# its code is made with.


class SummedProduct(NamedTuple):
    """An operation, and which operand of a sum it is."""

    op: Op
    operand: int


def product_in(op: Op) -> SummedProduct | None:
    """The product in a sum or a difference which nothing else reads and that is computed beside it, the first one of
    two; None where there is none."""
    if not scalar_operation(op).is_sum or op.result.scalar.dtype not in _FUSED:
        return None
    for k, value in enumerate(op.operands):
        product = value.op
        if product is None or product.parent is not op.parent or not has_one_use(value):
            continue
        if scalar_operation(product).linear == "each":
            return SummedProduct(product, k)
    return None


def fused(sum: Op, operand: int, factors: Sequence[Reg], other: Reg, *, masked: bool = False) -> Reg:
    """The sum or difference of `other` and the product of two factors, which is its first or second `operand`, with one
    rounding; with one or two on machines that have no other instruction. `masked` gives the freedom of
    `masked_sum`."""
    left, right = factors
    if not scalar_operation(sum).commutative:
        left, other = (left, -other) if operand == 0 else (-left, other)
    suffix = other.dtype.name if other.lanes == 1 else f"v{other.lanes}{other.dtype.name}"
    # `contract` stays where LLVM takes vectors of several registers apart
    function, freedom = ("fma", "") if other.text.fuses else ("fmuladd", "contract ")
    call = f"call {freedom}{'nsz ' if masked else ''}{other.type} @llvm.{function}.{suffix}"
    return other.text.reg(other.dtype, other.lanes, f"{call}({left.typed}, {right.typed}, {other.typed})")


def masked_sum(total: Reg, x: Reg) -> Reg:
    """total + x, of which some lanes are not wanted; x where `total` is known to be 0, even if x is -0.

    Without that freedom the first sum of products under a mask is a fused multiply-add that zeroes the other lanes.
    LLVM 22 folds a masked load into it, and may take it out again as a load of whole vectors, beyond the buffer.
    """
    return total.op("fadd nsz", x)


def is_kept_in_registers(add: Op) -> bool:
    """Whether a sum is one of an array in registers, to which more is added."""
    stores = [user for user in add.result.users if user.name == "store"]
    return any(store.operands[1].buffer.space == REGISTERS.name for store in stores)


def _quotient(x: Reg, divisor: Reg, inverse: Reg) -> Reg:
    """x / divisor as a division rounds it; where there is no end, there is no error to take off."""
    exact = finite_quotient(x, divisor, inverse)
    return exact if not x.text.fuses else exact.is_nan().select(x * inverse, exact)


def finite_quotient(x: Reg, divisor: Reg, inverse: Reg) -> Reg:
    """x / divisor, which is finite, as a division rounds it (Markstein, 1990): the error of x * inverse is computed and
    taken off. That takes a product which is not rounded before it is added: machines without divide."""
    if not x.text.fuses:
        return x / divisor
    near = x * inverse
    error = fma(-near, divisor, x)
    return fma(error, inverse, near)


_NEAR_THEIR_OPERAND = ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"]
"""Functions that give their operand for a small one."""

_FLOAT: dict[str, Emit] = {
    # LLVM is given no freedom to fuse or to reorder: `product_in` says which products and sums are one operation.
    "add": _instruction("fadd"),
    "sub": _instruction("fsub"),
    "mul": _instruction("fmul"),
    "div": _instruction("fdiv"),
    "rem": _computed(_vector_math("rem")),
    "mod": _float_modulo,
    "min": _float_extremum("minimum"),
    "max": _float_extremum("maximum"),
    "atan2": _computed(_library("atan2f", "atan2")),
    "eq": _comparison("fcmp oeq"),
    "ne": _comparison("fcmp une"),
    "lt": _comparison("fcmp olt"),
    "le": _comparison("fcmp ole"),
    "gt": _comparison("fcmp ogt"),
    "ge": _comparison("fcmp oge"),
    "neg": lambda x: -x,
    "abs": absolute,
    "sign": _float_sign,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "sqrt": _intrinsic("sqrt"),
    "quotient": _quotient,
    "is_nan": lambda x: x.is_nan(),
    "is_inf": _is_inf,
    **{name: _vector_math(name) for name in vmath.SUPPORTED},
    **{name: _computed(_vector_math(name)) for name in _NEAR_THEIR_OPERAND},
}
_COMPARE: dict[str, Emit] = {
    "eq": _comparison("icmp eq"),
    "ne": _comparison("icmp ne"),
    "lt": _comparison("icmp slt", "icmp ult"),
    "le": _comparison("icmp sle", "icmp ule"),
    "gt": _comparison("icmp sgt", "icmp ugt"),
    "ge": _comparison("icmp sge", "icmp uge"),
    "is_nan": _never,
    "is_inf": _never,
}
_INT: dict[str, Emit] = {
    **_BITWISE,
    **_COMPARE,
    "add": _instruction("add"),
    "sub": _instruction("sub"),
    "mul": _instruction("mul"),
    "div": divide,
    "rem": remainder,
    "mod": modulo,
    "pow": integer_power,
    "min": _int_extremum("min"),
    "max": _int_extremum("max"),
    "shl": shift_left,
    "shr": shift_right,
    "neg": lambda x: -x,
    "abs": _int_abs,
    "sign": _int_sign,
    "ticks": _ticks,
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), lambda x: x),
}
_BOOL: dict[str, Emit] = {
    **_BITWISE,
    **_COMPARE,
    "add": _instruction("or"),
    "mul": _instruction("and"),
    "min": _instruction("and"),
    "max": _instruction("or"),
}
_TABLES: Mapping[str, Mapping[str, Emit]] = MappingProxyType({"float": _FLOAT, "int": _INT, "bool": _BOOL})


def horizontal(combine: str, x: Reg) -> Reg:
    """All lanes of `x` combined into one: halves onto halves, so the order never depends on the target.

    Sums of integers are LLVM's own, as their order does not matter: of a sum of products of bytes that is written out,
    its code generator for x86 makes `vpdpbusd` and leaves out adding up the lanes of the result.
    """
    if combine == "add" and x.dtype.is_int and x.dtype.bits >= 8 and x.lanes > 1:
        return x.text.call(x.dtype, 1, f"llvm.vector.reduce.add.v{x.lanes}{register_type(x.dtype)}", x)
    while x.lanes > 1:
        half = 1 << (x.lanes - 1).bit_length() - 1
        low, high = x.part(0, half), x.part(half, x.lanes - half)
        if high.lanes < half:
            left = low.part(high.lanes, half - high.lanes)
            low = apply_scalar(combine, [low.part(0, high.lanes), high], x.dtype)
            return apply_scalar(combine, [horizontal(combine, low), horizontal(combine, left)], x.dtype)
        x = apply_scalar(combine, [low, high], x.dtype)
    return x
