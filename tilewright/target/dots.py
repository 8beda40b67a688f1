"""Instructions that multiply narrow numbers in groups and add each group's products to a 32-bit sum."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Dot:
    """`sum += left[0] * right[0] + ... + left[group - 1] * right[group - 1]` in each lane. The sum is of dtype `sums`:
    exact in i32 (modulo 2^32), rounded in f32.

    `left` and `right` are the operands' dtypes. `calls` are LLVM's intrinsics with their number of sums, the widest
    first. An intrinsic with `accumulates` takes the sums and both operands; else it takes the operands and gives the
    groups' products added up, which a separate instruction adds to the sums. One that `rounds_as_fma` adds each product
    to the sum by a fused multiply-add of its own, rounded to the nearest, as float32 code does; all of them take
    denormal numbers as zero. One that is `turned` is given the right operand first. `name` is the machine's. Intrinsics
    of one that is `scalable` are of SVE: their vectors are as long as those of the core.
    """

    left: DType
    right: DType
    group: int
    calls: tuple[tuple[int, str], ...]
    accumulates: bool = True
    sums: DType = dt.i32
    rounds_as_fma: bool = False
    turned: bool = False
    name: str = ""
    scalable: bool = False

    def takes(self, left: DType, right: DType) -> bool:
        """Whether the operands have these dtypes, or are widened to them when they are read."""
        return all(own is given or own.holds(given) for own, given in ((self.left, left), (self.right, right)))


_VNNI_CALLS = ((8, "llvm.x86.avx512.vpdpbusd.256"), (4, "llvm.x86.avx512.vpdpbusd.128"))
VPDPBUSD = Dot(dt.u8, dt.i8, 4, ((16, "llvm.x86.avx512.vpdpbusd.512"), *_VNNI_CALLS), name="vpdpbusd")
"""The sums of four products are not saturated (those of `vpdpbusds` would be)."""

VPDPBUSD_TURNED = replace(VPDPBUSD, left=dt.i8, right=dt.u8, turned=True)
"""Of signed bytes and those without a sign, such as rows, which may be broadcast from memory, and weights."""

AVX_VNNI = Dot(dt.u8, dt.i8, 4, _VNNI_CALLS, name="vpdpbusd")

AVX_VNNI_TURNED = replace(AVX_VNNI, left=dt.i8, right=dt.u8, turned=True)

_WORD_CALLS = ((8, "llvm.x86.avx512.vpdpwssd.256"), (4, "llvm.x86.avx512.vpdpwssd.128"))
VPDPWSSD = Dot(dt.i16, dt.i16, 2, ((16, "llvm.x86.avx512.vpdpwssd.512"), *_WORD_CALLS), name="vpdpwssd")
"""`pmaddwd` with its addition, for what does not fit bytes."""

AVX_VNNI_WORDS = Dot(dt.i16, dt.i16, 2, _WORD_CALLS, name="vpdpwssd")

_SSE2_CALLS = ((4, "llvm.x86.sse2.pmadd.wd"),)
_PMADDWD_CALLS = ((8, "llvm.x86.avx2.pmadd.wd"), *_SSE2_CALLS)
PMADDWD_128 = Dot(dt.i16, dt.i16, 2, _SSE2_CALLS, accumulates=False, name="pmaddwd")
PMADDWD = Dot(dt.i16, dt.i16, 2, _PMADDWD_CALLS, accumulates=False, name="vpmaddwd")
"""The form for bytes, `pmaddubsw`, saturates at 16 bits: it is not used."""

PMADDWD_512 = Dot(
    dt.i16, dt.i16, 2, ((16, "llvm.x86.avx512.pmaddw.d.512"), *_PMADDWD_CALLS), accumulates=False, name="vpmaddwd"
)
WASM_DOT = Dot(dt.i16, dt.i16, 2, ((4, "llvm.wasm.dot"),), accumulates=False, name="i32x4.dot_i16x8_s")
SDOT = Dot(dt.i8, dt.i8, 4, ((4, "llvm.aarch64.neon.sdot.v4i32.v16i8"),), name="sdot")

USDOT = Dot(dt.u8, dt.i8, 4, ((4, "llvm.aarch64.neon.usdot.v4i32.v16i8"),), name="usdot")
USDOT_TURNED = replace(USDOT, left=dt.i8, right=dt.u8, turned=True)


def _sve(dot: Dot, bits: int) -> Dot:
    """An instruction of NEON in the form of SVE for vectors of so many bits."""
    return replace(dot, calls=((bits // 32, f"llvm.aarch64.sve.{dot.name}.nxv4i32"),), scalable=True)


_VDPBF16PS = "llvm.x86.avx512bf16.dpbf16ps"
VDPBF16PS = Dot(
    dt.bf16, dt.bf16, 2, tuple((n, f"{_VDPBF16PS}.{32 * n}") for n in (16, 8, 4)), sums=dt.f32, rounds_as_fma=True,
    name="vdpbf16ps",
)  # fmt: skip
"""Two multiply-adds, that of the second number of each pair first; MXCSR is not asked (Intel SDM, VDPBF16PS)."""

BFDOT = Dot(dt.bf16, dt.bf16, 2, ((4, "llvm.aarch64.neon.bfdot.v4f32.v8bf16"),), sums=dt.f32, name="bfdot")
"""Products, their sum and the sum are rounded to odd, so that errors may be twice as large (Arm ARM, BFDOT)."""


_NEON = (("i8mm", USDOT), ("dotprod", SDOT), ("bf16", BFDOT), ("i8mm", USDOT_TURNED))


def dots_of(arch: str, features: Collection[str], vector_bits: int) -> tuple[Dot, ...]:
    """The instructions of a machine, those of one dtype of sums the fastest first; of two of one name the wider. All of
    an architecture have what stands with ""."""
    by_feature = {
        "x86_64": (
            ("avx512vnni", VPDPBUSD), ("avxvnni", AVX_VNNI), ("avx512vnni", VPDPWSSD), ("avxvnni", AVX_VNNI_WORDS),
            ("avx512bw", PMADDWD_512), ("avx2", PMADDWD), ("", PMADDWD_128),
            ("avx512vnni", VPDPBUSD_TURNED), ("avxvnni", AVX_VNNI_TURNED), ("avx512bf16", VDPBF16PS),
        ),
        "aarch64": (
            *((f"sve{bits}", _sve(SDOT, bits)) for bits in (256, 512)),
            *(_NEON if vector_bits == 128 else ()),
        ),
        "wasm32": (("simd128", WASM_DOT),),
    }  # fmt: skip
    return tuple(dot for feature, dot in by_feature.get(arch, ()) if not feature or feature in features)
