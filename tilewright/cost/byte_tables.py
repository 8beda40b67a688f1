"""Look-up tables of bytes: whether finding an element of 256 takes less than computing it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.ir.scalar import COSTLY
from tilewright.target.target import Target

GRANULE = 16
"""Bytes that are looked up at a time where least are: a block of channels in the epilogue of a convolution."""

SINGLE_LOOK_UPS = 80
"""Instructions of the look-ups of so many bytes one by one: each is taken out of a register, loaded, and put back."""

FUNCTION = 30
"""Of a function of one register of floats: the usual polynomial, its range brought down and up again. Counted in
machine code: 26 to 37 of `exp`, `tanh`, `sigmoid` and `erf` with AVX2, 20 to 26 with AVX-512, 57 to 67 with NEON."""

_INSTRUCTIONS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(COSTLY, FUNCTION),
        **dict.fromkeys(("sin", "cos", "tan", "pow"), 5 * FUNCTION),
        **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 3 * FUNCTION),
        **dict.fromkeys(("div", "sqrt", "rsqrt", "quotient"), 5),
    }
)


def look_up_instructions(target: Target) -> int:
    """Instructions of looking up so many bytes as a `GRANULE` has."""
    how = target.byte_table
    return SINGLE_LOOK_UPS if how is None else how.instructions


def computed_instructions(name: str, bits: int, target: Target) -> int:
    """Instructions of the scalar operation of this name on as many elements, which have so many bits."""
    return max(1, GRANULE * bits // target.vector_bits) * _INSTRUCTIONS.get(name, 1)
