"""Instructions that look up bytes in tables that lie in registers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByteTable:
    """How a machine finds the elements of a table of 256 bytes for a whole register of bytes.

    `reached` are the elements that one instruction can reach: they are 16 to 128 of one or more registers. `calls` are
    LLVM's intrinsics with their number of lanes, the widest first. Of the instructions, some give 0 beyond their reach
    (`adds`), so that the parts may be put together as they are found; of the others, the upper bits choose.
    `instructions` is how many all of it takes for one register, loads included.
    """

    reached: int
    calls: tuple[tuple[int, str], ...]
    instructions: int
    adds: bool = False


VPERMI2B = ByteTable(128, ((64, "llvm.x86.avx512.vpermi2var.qi.512"),), 4)
_PSHUFB_128 = ((16, "llvm.x86.ssse3.pshuf.b.128"),)
_PSHUFB = ((32, "llvm.x86.avx2.pshuf.b"), *_PSHUFB_128)
PSHUFB_512 = ByteTable(16, ((64, "llvm.x86.avx512.pshuf.b.512"), *_PSHUFB), 52)
PSHUFB = ByteTable(16, _PSHUFB, 52)
PSHUFB_128 = ByteTable(16, _PSHUFB_128, 52)
"""Within each 16 bytes of the register, a table that all of these read: 16 instructions, and 15 that choose."""
TBL = ByteTable(64, ((16, "llvm.aarch64.neon.tbx4.v16i8"),), 8, adds=True)
"""`tbl` with four registers; `tbx` leaves what is beyond their reach as it was."""


@dataclass(frozen=True, slots=True)
class LevelTable:
    """How a machine finds elements of a table of 16 bytes by bytes below 16: `calls` are LLVM's intrinsics, which take
    the table first, in each 16 bytes of a register, with their number of lanes, the widest first."""

    calls: tuple[tuple[int, str], ...]


def level_table_of(arch: str, features: Collection[str], vector_bits: int) -> LevelTable | None:
    """The instruction of a machine for vectors of up to `vector_bits`; None where it has none."""
    if arch == "aarch64":
        return LevelTable(((16, "llvm.aarch64.neon.tbl1.v16i8"),)) if "neon" in features else None
    found = _shuffle_of(arch, features, vector_bits)
    return None if found is None else LevelTable(found.calls)


def byte_table_of(arch: str, features: Collection[str], vector_bits: int) -> ByteTable | None:
    """The instruction of a machine for vectors of up to `vector_bits`; None where it has none."""
    if arch == "aarch64":
        return TBL if "neon" in features else None
    found = _shuffle_of(arch, features, vector_bits)
    return VPERMI2B if found is PSHUFB_512 and "avx512vbmi" in features else found


def _shuffle_of(arch: str, features: Collection[str], vector_bits: int) -> ByteTable | None:
    """The shuffle of bytes of an x86-64 CPU."""
    if arch != "x86_64" or "ssse3" not in features:
        return None
    if "avx2" not in features:
        return PSHUFB_128
    return PSHUFB_512 if "avx512bw" in features and vector_bits >= 512 else PSHUFB
