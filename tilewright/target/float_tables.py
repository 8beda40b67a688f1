"""Instructions that look up floats in tables that lie in registers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloatTable:
    """The elements of a table of 16 float32 for `lanes` positions (of 32 bits, all but the low 4 of which are ignored)
    by one instruction, LLVM's intrinsic `call`, which takes the table first."""

    lanes: int
    call: str


VPERMPS = FloatTable(16, "llvm.x86.avx512.permvar.sf.512")


def float_table_of(arch: str, features: Collection[str], vector_bits: int) -> FloatTable | None:
    """The instruction of a machine for vectors of up to `vector_bits`; None where registers are shorter."""
    return VPERMPS if arch == "x86_64" and "avx512f" in features and vector_bits >= 512 else None
