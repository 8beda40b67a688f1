"""What the printer and the parser agree on: words, operators, and which ops have a notation of their own."""

from __future__ import annotations

import re
from typing import Any

from tilewright.ir.core import Op
from tilewright.ir.scalar import COMPUTING, SCALAR_OPS
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.types import BufferType, ScalarType, TensorType, TokenType

NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
UNNAMED = re.compile(r"v\d+", re.ASCII)
"""What the printer calls values without a name; the parser does not take it for a name."""

STATEMENTS = frozenset(
    {"for", "if", "when", "alloc", "return", "yield", "check", "bind", "prefetch", "run", "wait", "barrier"}
)
"""Words that begin a statement. No value has such a name; an op that does not fit its notation is quoted."""

QUOTED = STATEMENTS | {"constant", "loc", "strides", "offset"}
"""Ops of these names are quoted in the general notation, where the word would be taken for something else."""

RESERVED = STATEMENTS | {"true", "false", "none", "inf", "nan", "else", "constant"}
"""What no value is called."""

KINDS = frozenset({"serial", "parallel", "vector", "unroll", "dot"})

COMPARISON, SUM, PRODUCT, PRIMARY = range(1, 5)
INFIX: dict[str, tuple[str, int]] = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "lt": ("<", COMPARISON),
    "le": ("<=", COMPARISON),
    "gt": (">", COMPARISON),
    "ge": (">=", COMPARISON),
    "eq": ("==", COMPARISON),
    "ne": ("!=", COMPARISON),
}
"""Scalar ops that are written between their operands, and how tightly they bind; they associate left."""

CONVERSIONS = {"cast": "", "bitcast": "bitcast."}
"""What is written before the dtype to which a scalar is converted."""

LONGEST_INLINE = 160
"""Expressions with more characters get a line of their own, so that no line and no recursion grows without
bound."""

MOST_PRINTED_ELEMENTS = 16
"""Constants with more elements are written without them, and read back as zeros."""


def is_literal(op: Op) -> bool:
    """A `const` that is written as a number wherever it is used."""
    return (
        op.name == "const"
        and not op.operands
        and len(op.results) == 1
        and isinstance(op.results[0].type, ScalarType)
        and len(op.attrs) == 1
        and isinstance(op.attrs.get("value"), bool | int | float)
        and not op.blocks
    )


def is_expression(op: Op) -> bool:
    """An op that is written as part of an expression, apart from literals: operands tell its type."""
    results = op.results
    if len(results) != 1 or type(results[0].type) is not ScalarType or op.blocks:
        return False
    name, operands, attrs = op.name, op.operands, op.attrs
    dtype = results[0].type.dtype
    if name == "load":
        buffer = operands[0].type if len(operands) == 1 else None
        if not isinstance(buffer, BufferType | TensorType):
            return False
        return buffer.dtype is dtype and is_access(attrs, buffer)
    if name == "index":
        return not operands and len(attrs) == 1 and isinstance(attrs.get("expr"), Sym)
    if name == "lanes_reduce":
        buffer = operands[0].type if len(operands) == 1 else None
        return isinstance(buffer, BufferType) and buffer.dtype is dtype and _is_combination(attrs)
    if attrs:
        return False
    dtypes = [v.type.dtype for v in operands if type(v.type) is ScalarType]
    if len(dtypes) != len(operands):
        return False
    scalar = SCALAR_OPS.get(name)
    if scalar is None:
        return name in COMPUTING and len(dtypes) == 1
    return len(dtypes) == scalar.arity and scalar.result_dtype(tuple(dtypes)) is dtype


def is_access(attrs: dict[str, Any], buffer: BufferType | TensorType) -> bool:
    """The attributes of a load or store are `idx`, one for each axis, and at most `guard` and `other`."""
    return (
        is_sym_tuple(attrs.get("idx"))
        and len(attrs["idx"]) == len(buffer.shape)
        and attrs.keys() <= {"idx", "guard", "other"}
        and is_sym_tuple(attrs.get("guard", ()))
        and isinstance(attrs.get("other", 0), bool | int | float)
    )


def _is_combination(attrs: dict[str, Any]) -> bool:
    return len(attrs) == 1 and attrs.get("combine") in SCALAR_OPS


def is_sym_tuple(value: object) -> bool:
    return type(value) is tuple and all(isinstance(v, Sym) for v in value)


def is_statement(op: Op) -> bool:
    """Whether an op called like one of STATEMENTS fits the notation of that statement."""
    match op.name:
        case "return" | "yield":
            return not op.attrs and not op.results and not op.blocks
        case "for":
            return _has_body(op) and not op.operands and _is_loop(op.attrs)
        case "if":
            guard = op.attrs.get("guard")
            return (
                _has_body(op)
                and is_sym_tuple(guard)
                and bool(guard or op.operands)
                and _are_scalars(op)
            )
        case "alloc":
            return len(op.results) == 1 and not op.operands and not op.attrs and not op.blocks
        case "bind":
            return _one_scalar(op) and op.attrs.keys() == {"var"} and is_variable(op.attrs["var"])
        case "check":
            return (
                _one_scalar(op)
                and op.attrs.keys() == {"kind", "message"}
                and all(isinstance(v, str) for v in op.attrs.values())
            )
        case "prefetch":
            buffer = op.operands[0].type if len(op.operands) == 1 else None
            return (
                isinstance(buffer, BufferType)
                and not op.results
                and not op.blocks
                and op.attrs.keys() <= {"idx", "nearest"}
                and is_access({"idx": op.attrs.get("idx")}, buffer)
            )
        case "run":
            names = [op.attrs.get(key) for key in ("intrinsic", "queue")]
            return (
                len(op.blocks) == 1
                and not op.blocks[0].args
                and [v.type for v in op.results] == [TokenType()] * (names[1] != "")
                and op.attrs.keys() - {"events"} == {"intrinsic", "queue"}
                and all(isinstance(name, str) for name in names)
                and names[0] != ""
                and ("events" not in op.attrs or (bool(op.results) and is_events(op.attrs["events"])))
            )
        case "wait":
            return bool(op.operands) and not (op.results or op.attrs or op.blocks)
        case "barrier":
            nothing = not (op.operands or op.results or op.blocks)
            return nothing and op.attrs.keys() == {"level"} and isinstance(op.attrs["level"], str)
    return False


def is_events(value: object) -> bool:
    """Numbers of events by the queues that wait for them, "" for the thread."""
    if type(value) is not tuple or not value or not all(type(v) is tuple and len(v) == 2 for v in value):
        return False
    is_number = all(type(to) is str and type(n) is int and n >= 0 for to, n in value)
    return is_number and len({to for to, _ in value}) == len(value)


def is_store(op: Op) -> bool:
    """A `store` that is written as an assignment."""
    if op.name != "store" or op.results or op.blocks or len(op.operands) != 2:
        return False
    value, target = op.operands
    return (
        type(value.type) is ScalarType
        and isinstance(target.type, BufferType | TensorType)
        and "other" not in op.attrs
        and is_access({k: v for k, v in op.attrs.items() if k != "nontemporal"}, target.type)
        and isinstance(op.attrs.get("nontemporal", ZERO), Sym)
    )


def is_variable(value: object) -> bool:
    return isinstance(value, Sym) and value.kind == "var"


def _has_body(op: Op) -> bool:
    return len(op.blocks) == 1 and not op.blocks[0].args and not op.results


def _is_loop(attrs: dict[str, Any]) -> bool:
    return (
        is_variable(attrs.get("var"))
        and isinstance(attrs.get("extent"), Sym)
        and isinstance(attrs.get("kind"), str)
        and attrs["kind"] in KINDS
    )


def _are_scalars(op: Op) -> bool:
    return all(type(v.type) is ScalarType for v in op.operands)


def _one_scalar(op: Op) -> bool:
    return len(op.operands) == 1 and _are_scalars(op) and not op.results and not op.blocks


def takes_expressions(op: Op) -> bool:
    """Whether scalar operands of this op are written as expressions, not only as names."""
    if op.name in STATEMENTS:
        return op.name in ("if", "bind", "check") and is_statement(op)
    return is_store(op) if op.name == "store" else is_expression(op)
