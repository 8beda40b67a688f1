"""Instructions that multiply small integers in groups and add each group's products to a 32-bit sum."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Dot:
    """`sum += left[0] * right[0] + ... + left[group - 1] * right[group - 1]` in each lane, exact in i32 (modulo 2^32).

    `left` and `right` are the operands' dtypes. `calls` are LLVM's intrinsics with their number of sums, the widest
    first. An intrinsic with `accumulates` takes the sums and both operands; else it takes the operands and gives the
    groups' products added up, which a separate instruction adds to the sums. `name` is the machine's.
    """

    left: DType
    right: DType
    group: int
    calls: tuple[tuple[int, str], ...]
    accumulates: bool = True
    name: str = ""


_VNNI_CALLS = ((8, "llvm.x86.avx512.vpdpbusd.256"), (4, "llvm.x86.avx512.vpdpbusd.128"))
VPDPBUSD = Dot(dt.u8, dt.i8, 4, ((16, "llvm.x86.avx512.vpdpbusd.512"), *_VNNI_CALLS), name="vpdpbusd")
"""The sums of four products are not saturated (those of `vpdpbusds` would be)."""

AVX_VNNI = Dot(dt.u8, dt.i8, 4, _VNNI_CALLS, name="vpdpbusd")

_PMADDWD_CALLS = ((8, "llvm.x86.avx2.pmadd.wd"), (4, "llvm.x86.sse2.pmadd.wd"))
PMADDWD = Dot(dt.i16, dt.i16, 2, _PMADDWD_CALLS, accumulates=False, name="vpmaddwd")
"""The form for bytes, `pmaddubsw`, saturates at 16 bits: it is not used."""

PMADDWD_512 = Dot(
    dt.i16, dt.i16, 2, ((16, "llvm.x86.avx512.pmaddw.d.512"), *_PMADDWD_CALLS), accumulates=False, name="vpmaddwd"
)
SDOT = Dot(dt.i8, dt.i8, 4, ((4, "llvm.aarch64.neon.sdot.v4i32.v16i8"),), name="sdot")


def dots_of(arch: str, features: Collection[str]) -> tuple[Dot, ...]:
    """The instructions of a machine, the fastest first."""
    by_feature = {
        "x86_64": (
            ("avx512vnni", VPDPBUSD), ("avxvnni", AVX_VNNI), ("avx512bw", PMADDWD_512), ("avx2", PMADDWD),
        ),
        "aarch64": (("dotprod", SDOT),),
    }  # fmt: skip
    return tuple(dot for feature, dot in by_feature.get(arch, ()) if feature in features)
