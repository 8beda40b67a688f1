"""How elements, numbers and names are spelled in C."""

from __future__ import annotations

import math
import re
import struct
import sys

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType

_FLOATS = {"f32": "float", "f64": "double"}


def c_type(dtype: DType) -> str:
    """The type of one element, in memory and as a value: bits for floats that C has no type for, a byte for flags and
    for what is shorter than one."""
    if dtype is dt.string:
        raise UnsupportedError("strings cannot be elements of a kernel in C")
    return _FLOATS.get(dtype.name) or f"{'int' if dtype.kind == 'int' else 'uint'}{8 * dtype.bytes}_t"


def unsigned_type(dtype: DType) -> str:
    """The unsigned integer that is as long as an element."""
    return f"uint{8 * dtype.bytes}_t"


def signed_type(dtype: DType) -> str:
    """The signed integer that is as long as an element."""
    return f"int{8 * dtype.bytes}_t"


def literal(dtype: DType, value: float | int | bool) -> str:
    """A constant of an element's type."""
    if dtype.kind == "bool":
        return "1" if value else "0"
    if dtype.is_int:
        return _integer(dtype, int(value))
    if dtype is dt.f32 or dtype is dt.f64:
        return _float(dtype, float(value))
    with np.errstate(over="ignore"):
        stored = np.array(value, np.float64).astype(dtype.storage)
    return hex(int.from_bytes(stored.tobytes(), sys.byteorder))


def _integer(dtype: DType, value: int) -> str:
    bits = 8 * dtype.bytes
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "uint":
        return {32: f"{value}u", 64: f"UINT64_C({value})"}.get(bits, str(value))
    if value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    if value == -(1 << bits - 1) and bits >= 32:
        return f"INT{bits}_MIN"
    return f"INT64_C({value})" if bits == 64 else str(value)


def _float(dtype: DType, value: float) -> str:
    is_single = dtype is dt.f32
    if is_single:
        with np.errstate(over="ignore"):
            value = float(np.float32(value))
    if not math.isfinite(value):
        pattern = struct.unpack("<I", struct.pack("<f", value))[0] if is_single else _pattern(value)
        return f"f32_of_bits({pattern:#x}u)" if is_single else f"f64_of_bits(UINT64_C({pattern:#x}))"
    text = str(np.float32(value)) if is_single else repr(value)
    if not re.search(r"[.e]", text):
        text += ".0"
    return f"{text}f" if is_single else text


def _pattern(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


_TAKEN = frozenset(
    word
    for line in (
        "auto break case char const continue default do double else enum extern float for goto if inline int long",
        "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while",
        "bool true false and or not xor complex imaginary asm typeof linux unix i386 errno assert offsetof alignas",
        "alignof noreturn static_assert thread_local signbit isnan isinf isfinite isnormal fpclassify stdin stdout",
        "stderr near far main nullptr scratch error arena weights inputs outputs dims call memcpy memmove memset",
        "memcmp fmin fmax fmod fmodf fma fmaf sqrt sqrtf fabs fabsf floor floorf ceil ceilf rint rintf trunc truncf",
        "copysign copysignf sin cos tan asinh acosh atanh atan2 atan2f word text fail floor_div floor_mod plus times",
        "stops began sizes in_shapes in_data out_shapes mips sparc sun vax hpux m68k arm vector pixel",
    )
    for word in line.split()
)
_OURS = re.compile(r"_(?:bool|[iuf]\d\w*|bf16|size)\Z|\A_|\A(?:tw|f32|f64|k\d+)_|\A(?:u?int)\d*_|_t\Z")
"""Names of the scalar functions, of the language, of the runtime and of kernels."""

_PLACEHOLDER = re.compile(r"\A(?=(?:model|MODEL)_)")
"""What begins as the placeholder for the name of what is exported, which would take its place there."""


class CNames:
    """Names of C for things of a program: each its own, and as near to what it is called as C allows."""

    def __init__(self) -> None:
        self._given: dict[object, str] = {}
        self._used: set[str] = set()

    def of(self, thing: object, hint: str) -> str:
        """The name of a thing, the same each time; `hint` is what it is called."""
        found = self._given.get(thing)
        if found is None:
            found = self._given[thing] = self.fresh(hint)
        return found

    def fresh(self, hint: str) -> str:
        """A name that nothing else has."""
        name = base = c_word(hint)
        number = 1
        while name in self._used:
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name


def c_word(hint: str) -> str:
    """A text as an identifier that is nobody else's."""
    word = re.sub(r"\W", "_", hint, flags=re.ASCII)[:_LONGEST].strip("_") or "v"
    word = _PLACEHOLDER.sub("v_", word)
    if word[0].isdigit():
        word = f"v{word}"
    if word in _TAKEN or word.upper() == word or _OURS.search(word):
        word = f"{word}_v"
    return word


_LONGEST = 40


def c_symbol(symbol: str) -> str:
    """The name of an entry point, whose `model_` stands for the name of what is exported."""
    return "model_" + "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in symbol)


def comment(text: str) -> str:
    """A text within a comment, which it cannot end."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return f"/* {shown.replace('*/', '* /').replace('/*', '/ *')} */"
