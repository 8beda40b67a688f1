"""What is stated of rules, as data: programs with symbolic sizes that a rule rewrites, and how exactly it does.

A statement holds no copy of its rule. It is the pattern (a program that `program` writes) with its conditions; the
replacement is what the rule itself makes of it, so that what is proved is the code that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value, current_builder
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType

Arithmetic = Literal["moves", "floats", "integers", "reals"]
"""In which arithmetic both programs are equal.

moves: with unknown functions in the place of all scalar operations, of any dtype: the same operations are done on the
    same elements, so that results have the same bits.
floats: IEEE 754, correctly rounded, in a format of few bits; all NaN are one, and zeros have signs.
integers: of 8 bits, which wrap.
reals: real numbers; as floats, results may be rounded differently.
"""

EXACTNESS = {
    "moves": "bits",
    "floats": "bits of floats",
    "integers": "bits of integers",
    "reals": "real",
}


@dataclass(frozen=True)
class Given:
    """A condition on all elements of the operand of this number: `element relation number`."""

    operand: int
    relation: Literal["!=", ">", ">="]
    number: float


@dataclass(frozen=True)
class Statement:
    """A rule replaces the result of `program`, called with operands of `types`, by an equal value.

    Where a rule looks at what reads it, the program gives what is replaced, and then the result.
    """

    rule: str
    case: str
    program: Callable[..., Value | tuple[Value, ...]]
    types: tuple[TensorType, ...]
    arithmetic: Arithmetic = "moves"
    given: tuple[Given, ...] = ()
    constants: frozenset[int] = frozenset()
    """Operands that are known when compiling; nothing is assumed of their elements."""
    one_zero: bool = False
    """Of floats: zeros of both signs count as one."""
    is_quick: bool = True


def typed(*shape: Sym | int, dtype: DType = dt.f32) -> TensorType:
    """The type of an operand."""
    return TensorType(dtype, tuple(map(sym, shape)))


def stated(
    rule: str,
    case: str,
    program: Callable[..., Value | tuple[Value, ...]],
    *types: TensorType,
    constants: Iterable[int] = (),
    **more: Any,
) -> Statement:
    """A statement of a rule."""
    return Statement(rule, case, program, types, constants=frozenset(constants), **more)


def known(type: TensorType, name: str) -> Value:
    """A constant that no module holds: its elements are any."""
    op: Op = current_builder().emit("constant", [], [type], {"name": name})
    return op.result
