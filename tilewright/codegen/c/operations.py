"""Scalar operations that C has an operator for: one entry for each, by the type of its last operand. All others are
calls of functions (`functions.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.codegen.c.ranges import is_within
from tilewright.codegen.c.sizes import AND, EQUAL, OR, ORDER, PRIMARY, PRODUCT, SUM, UNARY
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType

CHOICE = -1
"""Of `?:`, which binds less tightly than all else."""

Spelled = tuple[str, int]
"""An expression, and how tightly it binds."""

Take = Callable[[Value, int], str]
"""The spelling of an operand that binds so tightly at least."""

Emit = Callable[[Op, Take], Spelled | None]
"""None where the operator of C is not the operation."""


def spelled(op: Op, dtype: DType, take: Take) -> Spelled | None:
    """An operation on operands of this dtype as an operator of C; None where it has none, and no operand is taken."""
    kind = "float" if dtype in (dt.f32, dt.f64) else "" if dtype.is_float else "bool" if dtype.kind == "bool" else "int"
    emit = _TABLES[kind].get(op.name)
    return None if emit is None else emit(op, take)


def _infix(sign: str, level: int, first: int, second: int) -> Emit:
    """An operator between two operands that bind so tightly at least."""

    def emit(op: Op, take: Take) -> Spelled:
        one, other = op.operands
        return f"{take(one, first)} {sign} {take(other, second)}", level

    return emit


def _compared(sign: str, level: int, of_equal: str) -> Emit:
    """A comparison; of an integer with itself, for which compilers of C have a warning, what it is for equal ones."""

    def emit(op: Op, take: Take) -> Spelled:
        one, other = (take(v, SUM) for v in op.operands)
        if one == other and not op.operands[0].scalar.dtype.is_float:
            return of_equal, PRIMARY
        return f"{one} {sign} {other}", level

    return emit


def _left_to_right(sign: str, level: int) -> Emit:
    return _infix(sign, level, level, level + 1)


def _without_wrapping(emit: Emit) -> Emit:
    """Arithmetic of integers where it is that of C: of what is as long as C's own and has no sign, or cannot wrap."""

    def checked(op: Op, take: Take) -> Spelled | None:
        dtype = op.result.scalar.dtype
        is_own = dtype in (dt.u32, dt.u64) or (dtype is dt.i32 and is_within(op.result))
        return emit(op, take) if is_own else None

    return checked


def _bits(sign: str) -> Emit:
    inner = _infix(sign, PRIMARY, UNARY, UNARY)

    def emit(op: Op, take: Take) -> Spelled | None:
        found = inner(op, take)
        return None if found is None else (f"({found[0]})", PRIMARY)

    return emit


def _choice(op: Op, take: Take) -> Spelled:
    condition, one, other = (take(v, OR) for v in op.operands)
    return f"{condition} ? {one} : {other}", CHOICE


def _negated(op: Op, take: Take) -> Spelled:
    return f"-{take(op.operands[0], PRIMARY)}", UNARY


def _not(op: Op, take: Take) -> Spelled:
    return f"(!{take(op.operands[0], UNARY)})", PRIMARY


_ADD, _SUB, _MUL, _DIV = (_left_to_right(s, n) for s, n in (("+", SUM), ("-", SUM), ("*", PRODUCT), ("/", PRODUCT)))
_BOTH, _EITHER = _infix("&&", AND, EQUAL, EQUAL), _infix("||", OR, EQUAL, EQUAL)
_OF_ALL: dict[str, Emit] = {"select": _choice}
_COMPARED: dict[str, Emit] = {
    "eq": _compared("==", EQUAL, "1"),
    "ne": _compared("!=", EQUAL, "0"),
    "lt": _compared("<", ORDER, "0"),
    "le": _compared("<=", ORDER, "1"),
    "gt": _compared(">", ORDER, "0"),
    "ge": _compared(">=", ORDER, "1"),
}
_FLOAT: dict[str, Emit] = {
    **_OF_ALL,
    **_COMPARED,
    "add": _ADD,
    "sub": _SUB,
    "mul": _MUL,
    "div": _DIV,
    "neg": _negated,
}
_INT: dict[str, Emit] = {
    **_OF_ALL,
    **_COMPARED,
    "add": _without_wrapping(_ADD),
    "sub": _without_wrapping(_SUB),
    "mul": _without_wrapping(_MUL),
    "and": _bits("&"),
    "or": _bits("|"),
    "xor": _bits("^"),
}
_BOOL: dict[str, Emit] = {
    **_OF_ALL,
    **_COMPARED,
    "and": _BOTH,
    "mul": _BOTH,
    "min": _BOTH,
    "or": _EITHER,
    "add": _EITHER,
    "max": _EITHER,
    "xor": _infix("!=", EQUAL, SUM, SUM),
    "not": _not,
}
_TABLES: Mapping[str, Mapping[str, Emit]] = {"float": _FLOAT, "int": _INT, "bool": _BOOL, "": _OF_ALL}
