"""How elements, numbers and sizes are spelled in WGSL.

WGSL computes in f32, i32, u32 and bool. Shorter integers are held in words of 32 bits, with their signs; narrow floats
as the bits of a u32, computed in f32 and rounded after each operation, as for CPUs; integers of 64 bits as two words,
the low one first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym


def is_wide(dtype: DType) -> bool:
    """Whether an element is an integer of two words."""
    return dtype.is_int and dtype.bits == 64


def wgsl_type(dtype: DType) -> str:
    """The type of a value; UnsupportedError for those that WGSL has none for."""
    if dtype is dt.f32 or dtype.kind == "bool":
        return "f32" if dtype is dt.f32 else "bool"
    if is_wide(dtype):
        return "vec2<u32>"
    if dtype.is_int:
        return "i32" if dtype.kind == "int" else "u32"
    if dtype.is_float and dtype.bits < 32:
        return "u32"
    raise UnsupportedError(
        f"WebGPU has no {dtype}",
        hint="convert what is float64 to float32, give the sizes of a Range or Resize with shapes= (those of a call "
        "are computed in float64), or compile the model for the CPU (target='host')",
    )


def literal(dtype: DType, value: float | int | bool) -> str:
    """A constant of an element's type."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_int:
        return _integer(dtype, int(value))
    if dtype is dt.f32:
        number = np.float32(value)
        if not math.isfinite(number):
            return f"f32_of_bits({number.view(np.uint32):#x}u)"
        return f"{number!s}f" if abs(number) < 1e9 or "e" in str(number) else f"{float(number)!r}f"
    wgsl_type(dtype)
    with np.errstate(over="ignore"):
        stored = np.array(value, np.float64).astype(dtype.storage)
    return f"{int.from_bytes(stored.tobytes(), sys.byteorder):#x}u"


def _integer(dtype: DType, value: int) -> str:
    if is_wide(dtype):
        return f"vec2<u32>({value & 0xFFFFFFFF:#x}u, {value >> 32 & 0xFFFFFFFF:#x}u)"
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return f"{value}u"
    value -= (value >> dtype.bits - 1) << dtype.bits
    return f"{value}i" if value > -(1 << 31) else "i32(-2147483648)"


_OF_HOST = frozenset({"min", "max", "select", "ge0", "eq0"})


class Told:
    """The sizes that a kernel is told, each by the name that it has there: dims of the kernel, and what clamps these.
    Data may say that a slice ends at 2^63 - 1: what evaluates sizes before a call has room for that, and a kernel for
    what remains of it."""

    def __init__(self, dims: Iterable[Sym]) -> None:
        self._dims = frozenset(dim.name for dim in dims)
        self.names: dict[Sym, str] = {}

    def name_of(self, e: Sym) -> str | None:
        """The name of an expression that a kernel is told; None for others."""
        is_told = e.name in self._dims if e.kind == "var" else (
            e.kind in _OF_HOST and self._dims.issuperset(v.name for v in e.vars)
        )  # fmt: skip
        return self.names.setdefault(e, f"n_{len(self.names)}") if is_told else None


class IndexTexts:
    """Spells expressions of sizes as i32; `names` has the names of variables of loops, `needs` collects functions."""

    def __init__(self, names: dict[str, str], needs: dict[str, None], told: Told) -> None:
        self.names, self.needs, self.told = names, needs, told

    def text(self, e: Sym) -> str:
        """An expression, in parentheses where it is more than a name."""
        if (name := self.told.name_of(e)) is not None:
            return name
        match e.kind:
            case "const":
                return str(e.value) if e.value >= 0 else f"({e.value})"
            case "var":
                return self.names[e.name]
            case "add":
                return self._sum(e)
            case "mul" if len(e.terms) != 1 or e.terms[0][0] is not e:
                return self._sum(e)
            case "mul":
                return f"({' * '.join(map(self.text, e.args))})"
            case "floordiv" | "mod":
                return self._division(e)
            case "ge0" | "eq0":
                return f"select(0, 1, {self.holds(e)})"
            case "min" | "max":
                found, *rest = map(self.text, e.args)
                for text in rest:
                    found = f"{e.kind}({found}, {text})"
                return found
        condition, one, other = e.args
        return f"select({self.text(other)}, {self.text(one)}, {self.holds(condition)})"

    def holds(self, e: Sym) -> str:
        """A condition, as a bool."""
        if (name := self.told.name_of(e)) is not None:
            return f"({name} != 0)"
        if e.kind == "ge0":
            return f"({self.text(e.args[0])} >= 0)"
        if e.kind == "eq0":
            return f"({self.text(e.args[0])} == 0)"
        return f"({self.text(e)} != 0)"

    def _sum(self, e: Sym) -> str:
        parts = []
        for mono, coef in e.terms:
            if mono.kind == "const":
                parts.append(str(coef) if coef >= 0 else f"({coef})")
            elif coef == 1:
                parts.append(self.text(mono))
            else:
                parts.append(f"{coef if coef >= 0 else f'({coef})'} * {self.text(mono)}")
        return f"({' + '.join(parts) or '0'})"

    def _division(self, e: Sym) -> str:
        x, q = e.args
        sign = "/" if e.kind == "floordiv" else "%"
        if x.interval[0] >= 0 and q.interval[0] >= 1:
            return f"({self.text(x)} {sign} {self.text(q)})"
        name = "floor_div" if e.kind == "floordiv" else "floor_mod"
        self.needs[name] = None
        return f"{name}({self.text(x)}, {self.text(q)})"
