"""Scalar operations on registers of lanes: one function for each name of `ir.scalar.SCALAR_OPS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tilewright.codegen import vmath
from tilewright.codegen.cpu.kernel.convert import convert_text, is_narrow, narrow, widen, wrap
from tilewright.codegen.cpu.kernel.integers import (
    divide,
    integer_power,
    modulo,
    remainder,
    shift_left,
    shift_right,
)
from tilewright.codegen.cpu.kernel.lanes import Reg, literal, register_type
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType

Operands = Sequence[Reg]


def apply_scalar(text: Text, name: str, operands: Operands, result: DType) -> Reg:
    """Scalar operation `name` on operands of equally many lanes.

    Integer divisors must not be 0 (see `integers.safe_divisor`). Narrow floats are computed in float32.
    """
    if name == "select":
        return select(text, *operands)
    if not is_narrow(operands[0].dtype):
        found = _apply_wide(text, name, operands)
        return found if found.dtype.kind == "bool" else wrap(text, found, result)
    wide = _apply_wide(text, name, [widen(text, x) for x in operands])
    return narrow(text, wide, result) if is_narrow(result) else wide


def _apply_wide(text: Text, name: str, operands: Operands) -> Reg:
    dtype = operands[0].dtype
    kind = "float" if dtype.is_float else "bool" if dtype.kind == "bool" else "int"
    function = _TABLES[kind].get(name)
    if function is None:
        raise UnsupportedError(f"the scalar operation '{name}' does not exist for {dtype}")
    return function(text, *operands)


def select(text: Text, condition: Reg, a: Reg, b: Reg) -> Reg:
    """Lanes of `a` where the condition holds, of `b` elsewhere."""
    return text.reg(a.dtype, a.lanes, f"select {condition.typed}, {a.typed}, {b.typed}")


def constant(text: Text, like: Reg, value: float | int) -> Reg:
    """`value` in the dtype and lanes of `like`."""
    return text.splat(Reg(literal(like.dtype, value), like.dtype), like.lanes)


def intrinsic(text: Text, name: str, *operands: Reg) -> Reg:
    """A call of an LLVM intrinsic that is overloaded on the type of its operands."""
    x = operands[0]
    element = x.dtype.name if x.dtype.is_float else register_type(x.dtype)
    suffix = element if x.lanes == 1 else f"v{x.lanes}{element}"
    return text.call(x.dtype, x.lanes, f"llvm.{name}.{suffix}", *operands)


def _instruction(opcode: str) -> Callable[[Text, Reg, Reg], Reg]:
    def emit(text: Text, a: Reg, b: Reg) -> Reg:
        return text.reg(a.dtype, a.lanes, f"{opcode} {a.typed}, {b.name}")

    return emit


def _comparison(signed: str, unsigned: str = "") -> Callable[[Text, Reg, Reg], Reg]:
    def emit(text: Text, a: Reg, b: Reg) -> Reg:
        opcode = unsigned if unsigned and a.dtype.kind != "int" else signed
        return text.reg(dt.bool_, a.lanes, f"{opcode} {a.typed}, {b.name}")

    return emit


def _intrinsic(name: str) -> Callable[..., Reg]:
    return lambda text, *operands: intrinsic(text, name, *operands)


def _same(text: Text, x: Reg) -> Reg:
    return x


# Floats


def _float_extremum(name: str) -> Callable[[Text, Reg, Reg], Reg]:
    """min or max that is nan if either operand is; of zeros either one.

    x86's instruction yields its second operand when one is nan; of `llvm.minimum` and `llvm.maximum` LLVM makes that
    and puts the first operand back where it is nan. So the first is a literal, which never is, or else `b`: what a
    reduction adds to, `a`, then waits for one comparison less.
    """

    def emit(text: Text, a: Reg, b: Reg) -> Reg:
        first, second = (a, b) if a.is_literal else (b, a)
        suffix = a.dtype.name if a.lanes == 1 else f"v{a.lanes}{a.dtype.name}"
        operands = f"{first.typed}, {second.typed}"
        return text.reg(a.dtype, a.lanes, f"call nsz {a.type} @llvm.{name}.{suffix}({operands})")

    return emit


def _float_modulo(text: Text, a: Reg, b: Reg) -> Reg:
    """The remainder with the sign of the divisor, as Python has it."""
    rest = text.reg(a.dtype, a.lanes, f"frem {a.typed}, {b.name}")
    zero = constant(text, a, 0.0)
    negative_rest = text.reg(dt.bool_, a.lanes, f"fcmp olt {rest.typed}, {zero.name}")
    negative_divisor = text.reg(dt.bool_, a.lanes, f"fcmp olt {b.typed}, {zero.name}")
    differ = text.emit(f"xor {negative_rest.typed}, {negative_divisor.name}")
    nonzero = text.reg(dt.bool_, a.lanes, f"fcmp one {rest.typed}, {zero.name}")
    adjust = text.reg(dt.bool_, a.lanes, f"and {nonzero.typed}, {differ}")
    moved = select(text, adjust, text.reg(a.dtype, a.lanes, f"fadd {rest.typed}, {b.name}"), rest)
    is_zero = text.reg(dt.bool_, a.lanes, f"fcmp oeq {rest.typed}, {zero.name}")
    return select(text, is_zero, intrinsic(text, "copysign", zero, b), moved)


def _float_sign(text: Text, x: Reg) -> Reg:
    zero = constant(text, x, 0.0)
    above = text.reg(dt.bool_, x.lanes, f"fcmp ogt {x.typed}, {zero.name}")
    below = text.reg(dt.bool_, x.lanes, f"fcmp olt {x.typed}, {zero.name}")
    zero_or_nan = _flushed(text, x)
    return select(
        text, above, constant(text, x, 1.0), select(text, below, constant(text, x, -1.0), zero_or_nan)
    )


def _is_inf(text: Text, x: Reg) -> Reg:
    size = intrinsic(text, "fabs", x)
    return text.reg(dt.bool_, x.lanes, f"fcmp oeq {size.typed}, {constant(text, x, float('inf')).name}")


def _is_nan(text: Text, x: Reg) -> Reg:
    return text.reg(dt.bool_, x.lanes, f"fcmp uno {x.typed}, {x.name}")


def _vector_math(name: str) -> Callable[..., Reg]:
    def emit(text: Text, *operands: Reg) -> Reg:
        x = operands[0]
        symbol = vmath.vmath_symbol(name, x.dtype.name, x.lanes)
        if symbol not in text.functions:
            text.declarations.update(dict.fromkeys(vmath.vmath_declarations(name, x.dtype.name)))
            text.functions[symbol] = vmath.vmath_function(name, x.dtype.name, x.lanes, text.scale)
        return text.call(x.dtype, x.lanes, symbol, *operands)

    return emit


def _computed(emit: Callable[..., Reg]) -> Callable[..., Reg]:
    """Code that may hand on an operand, or integer arithmetic's result, without a denormal: the thread's modes say
    whether it counts as zero."""
    return lambda text, *operands: _flushed(text, emit(text, *operands))


def _flushed(text: Text, x: Reg) -> Reg:
    """`x`, with zeros for denormals that count as zero."""
    if x.lanes != 2:
        return intrinsic(text, "canonicalize", x)
    # Two lanes of float32 one by one: LLVM's code generator for x86 has no code for them and ends the process, and
    # its passes make two lanes of four that only two are used of.
    return _by_lane(text, x.dtype, lambda one: intrinsic(text, "canonicalize", one), x)


def _library(single: str, double: str) -> Callable[..., Reg]:
    """A function of the platform's math library, called for each lane."""

    def emit(text: Text, *operands: Reg) -> Reg:
        x = operands[0]
        element = register_type(x.dtype)
        symbol = single if x.dtype is dt.f32 else double
        text.declarations[f"declare {element} @{symbol}({', '.join([element] * len(operands))})"] = None
        return _by_lane(text, x.dtype, lambda *ones: text.call(x.dtype, 1, symbol, *ones), *operands)

    return emit


def _by_lane(text: Text, result: DType, emit: Callable[..., Reg], *operands: Reg) -> Reg:
    """A register of what `emit` gives for the operands' elements, lane by lane."""
    lanes = operands[0].lanes
    if lanes == 1:
        return emit(*operands)
    made = Reg("poison", result, lanes)
    for lane in range(lanes):
        one = emit(*[text.reg(o.dtype, 1, f"extractelement {o.typed}, i64 {lane}") for o in operands])
        made = text.reg(result, lanes, f"insertelement {made.typed}, {one.typed}, i64 {lane}")
    return made


# Integers


def _negated(text: Text, x: Reg) -> Reg:
    return text.reg(x.dtype, x.lanes, f"sub {x.type} {constant(text, x, 0).name}, {x.name}")


def _inverted(text: Text, x: Reg) -> Reg:
    ones = "true" if x.dtype.kind == "bool" else "-1"
    return text.reg(x.dtype, x.lanes, f"xor {x.typed}, {text.splat(Reg(ones, x.dtype), x.lanes).name}")


def _int_abs(text: Text, x: Reg) -> Reg:
    if x.dtype.kind == "uint":
        return x
    return select(text, _below_zero(text, x), _negated(text, x), x)


def _below_zero(text: Text, x: Reg) -> Reg:
    return text.reg(dt.bool_, x.lanes, f"icmp slt {x.typed}, {constant(text, x, 0).name}")


def _int_sign(text: Text, x: Reg) -> Reg:
    nonzero = text.reg(dt.bool_, x.lanes, f"icmp ne {x.typed}, {constant(text, x, 0).name}")
    one = convert_text(text, "zext", nonzero, x.dtype)
    return one if x.dtype.kind == "uint" else select(text, _below_zero(text, x), constant(text, x, -1), one)


def _int_extremum(name: str) -> Callable[[Text, Reg, Reg], Reg]:
    def emit(text: Text, a: Reg, b: Reg) -> Reg:
        return intrinsic(text, f"{'s' if a.dtype.kind == 'int' else 'u'}{name}", a, b)

    return emit


def _never(text: Text, x: Reg) -> Reg:
    return text.splat(Reg("false", dt.bool_), x.lanes)


_BITWISE: dict[str, Callable[..., Reg]] = {
    "and": _instruction("and"),
    "or": _instruction("or"),
    "xor": _instruction("xor"),
    "not": _inverted,
}
_VECTOR_MATH = [
    "pow",
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "rsqrt",
]
_NEAR_THEIR_OPERAND = ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"]
"""Functions that give their operand for a small one."""

_FLOAT: dict[str, Callable[..., Reg]] = {
    # `contract` lets a product and a sum become one fused multiply-add; no other freedom is given.
    "add": _instruction("fadd contract"),
    "sub": _instruction("fsub contract"),
    "mul": _instruction("fmul contract"),
    "div": _instruction("fdiv"),
    "rem": _computed(_instruction("frem")),
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
    "neg": lambda text, x: text.reg(x.dtype, x.lanes, f"fneg {x.typed}"),
    "abs": _intrinsic("fabs"),
    "sign": _float_sign,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("roundeven"),
    "trunc": _intrinsic("trunc"),
    "sqrt": _intrinsic("sqrt"),
    "is_nan": _is_nan,
    "is_inf": _is_inf,
    **{name: _vector_math(name) for name in _VECTOR_MATH},
    **{name: _computed(_vector_math(name)) for name in _NEAR_THEIR_OPERAND},
}
_COMPARE: dict[str, Callable[..., Reg]] = {
    "eq": _comparison("icmp eq"),
    "ne": _comparison("icmp ne"),
    "lt": _comparison("icmp slt", "icmp ult"),
    "le": _comparison("icmp sle", "icmp ule"),
    "gt": _comparison("icmp sgt", "icmp ugt"),
    "ge": _comparison("icmp sge", "icmp uge"),
    "is_nan": _never,
    "is_inf": _never,
}
_INT: dict[str, Callable[..., Reg]] = {
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
    "neg": _negated,
    "abs": _int_abs,
    "sign": _int_sign,
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _same),
}
_BOOL: dict[str, Callable[..., Reg]] = {
    **_BITWISE,
    **_COMPARE,
    "add": _instruction("or"),
    "mul": _instruction("and"),
    "min": _instruction("and"),
    "max": _instruction("or"),
}
_TABLES: Mapping[str, Mapping[str, Callable[..., Reg]]] = MappingProxyType(
    {"float": _FLOAT, "int": _INT, "bool": _BOOL}
)


def horizontal(text: Text, combine: str, x: Reg) -> Reg:
    """All lanes of `x` combined into one: halves onto halves, so the order never depends on the target.

    Sums of integers are LLVM's own, as their order does not matter: of a sum of products of bytes that is written out,
    its code generator for x86 makes `vpdpbusd` and leaves out adding up the lanes of the result.
    """
    if combine == "add" and x.dtype.is_int and x.dtype.bits >= 8 and x.lanes > 1:
        return text.call(x.dtype, 1, f"llvm.vector.reduce.add.v{x.lanes}{register_type(x.dtype)}", x)
    while x.lanes > 1:
        half = 1 << (x.lanes - 1).bit_length() - 1
        low, high = part(text, x, 0, half), part(text, x, half, x.lanes - half)
        if high.lanes < half:
            rest = part(text, low, high.lanes, half - high.lanes)
            low = apply_scalar(text, combine, [part(text, low, 0, high.lanes), high], x.dtype)
            return apply_scalar(
                text, combine, [horizontal(text, combine, low), horizontal(text, combine, rest)], x.dtype
            )
        x = apply_scalar(text, combine, [low, high], x.dtype)
    return x


def part(text: Text, x: Reg, start: int, count: int) -> Reg:
    """`count` lanes of `x` from `start` on."""
    if count == x.lanes:
        return x
    if count == 1:
        return text.reg(x.dtype, 1, f"extractelement {x.typed}, i64 {start}")
    lanes = ", ".join(f"i32 {start + k}" for k in range(count))
    return text.reg(x.dtype, count, f"shufflevector {x.typed}, {x.type} poison, <{count} x i32> <{lanes}>")
