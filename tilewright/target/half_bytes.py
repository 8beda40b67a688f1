"""How many instructions make floats of weights that lie two in a byte."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.target.float_tables import FloatTable


@dataclass(frozen=True, slots=True)
class HalfBytes:
    """Instructions for a vector of floats from halves of bytes: of two vectors, the extension of bytes is one, and a
    shift; a mask or shifts for the sign; and the conversions. `levels` are those of codes that stand for any numbers
    of a byte, which are looked up."""

    signed: float
    unsigned: float
    levels: float


BY_TABLE = HalfBytes(2.6, 2.6, 2.6)
"""No more than of bytes, but some share pipes with multiply-adds: 13.9 cycles for 6 vectors, 11.9 of bytes (Zen 4, from
L2)."""
BY_BYTES = HalfBytes(2.4, 2.4, 3.4)
"""Where bytes can be shifted, they are taken apart before they are extended."""
BY_EXTENSION = HalfBytes(3, 2.5, 4.5)
"""Levels are looked up before bytes are extended: a mask, and of one of two vectors a shift."""


def half_bytes_of(arch: str, float_table: FloatTable | None) -> HalfBytes:
    """Those of a machine, which may have a table of 16 floats."""
    if arch == "aarch64":
        return BY_BYTES
    return BY_EXTENSION if float_table is None else BY_TABLE
