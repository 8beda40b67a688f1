"""How elements are spelled in LLVM IR: types in memory and in registers, and literals."""

from __future__ import annotations

import struct
import sys
from math import copysign, inf

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType

_FLOATS = {"f16": "half", "f32": "float", "f64": "double"}


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory: integers for what LLVM has no (fast) type for."""
    if dtype is dt.string:
        raise UnsupportedError("strings cannot be elements of a compiled kernel")
    return _FLOATS.get(dtype.name) or f"i{8 * dtype.bytes}"


def register_type(dtype: DType) -> str:
    """The LLVM type of one element in a register: that of memory, but i1 for bool."""
    return "i1" if dtype.kind == "bool" else memory_type(dtype)


def vector(element: str, lanes: int) -> str:
    """`lanes` elements as a vector; one is a plain scalar."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def literal(dtype: DType, value: float | int | bool) -> str:
    """The spelling of a constant: floats as bits, so that nothing depends on printing decimals."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_int:
        return str(_wrapped(dtype, int(value)))
    if dtype is dt.f64 or dtype is dt.f32:
        number = float(value) if dtype is dt.f64 else _rounded(float(value))
        return f"0x{int.from_bytes(struct.pack('>d', number)):016X}"
    with np.errstate(over="ignore"):
        stored = np.array(value, np.float64).astype(dtype.storage)
    bits = int.from_bytes(stored.tobytes(), sys.byteorder)
    return f"0xH{bits:04X}" if dtype is dt.f16 else str(bits)


def _rounded(value: float) -> float:
    """The nearest float32."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return copysign(inf, value)
    return rounded


def _wrapped(dtype: DType, value: int) -> int:
    """`value` modulo 2^bits, in the range of the dtype."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


def splat_literal(element: str, text: str, lanes: int) -> str:
    """A literal in every lane."""
    return text if lanes == 1 else f"splat ({element} {text})"
