"""Instructions that scale single-precision numbers by powers of two."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """`keep ? x * 2^floor(n) : 0` in each lane, rounded once: inf and gradual underflow where the result demands them.

    `calls` are LLVM's intrinsics with their number of lanes, the bits of their mask of lanes to keep and what follows
    the mask, the widest first; before the mask they take x, n and what the other lanes are.
    """

    calls: tuple[tuple[int, str, int, str], ...]


_VSCALEFPS = (
    (16, "llvm.x86.avx512.mask.scalef.ps.512", 16, ", i32 4"),  # 4: rounding as the control register says
    (8, "llvm.x86.avx512.mask.scalef.ps.256", 8, ""),
    (4, "llvm.x86.avx512.mask.scalef.ps.128", 8, ""),
)


def scale_of(arch: str, features: Collection[str], vector_bits: int) -> Scale | None:
    """The instruction of a machine for vectors of up to `vector_bits`; None where it has none."""
    if arch != "x86_64" or not {"avx512f", "avx512vl"} <= set(features):
        return None
    return Scale(tuple(call for call in _VSCALEFPS if 32 * call[0] <= vector_bits))
