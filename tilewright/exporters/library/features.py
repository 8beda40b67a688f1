"""What an exported library asks the CPU before it runs: the instructions that its code has, as C tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.runtime.artifact import TargetInfo
from tilewright.target.target import arch_of

_EBX, _ECX, _EDX, _EAX = 1, 2, 3, 0
_LEAF_1, _LEAF_7, _LEAF_7_1, _LEAF_EXTENDED = range(4)
_YMM, _ZMM = 0x6, 0xE6
"""Registers that the operating system keeps (XCR0)."""

_X86: Mapping[str, tuple[int, int, int, int]] = {
    "ssse3": (_LEAF_1, _ECX, 9, 0),
    "fma": (_LEAF_1, _ECX, 12, _YMM),
    "sse4.1": (_LEAF_1, _ECX, 19, 0),
    "sse4.2": (_LEAF_1, _ECX, 20, 0),
    "movbe": (_LEAF_1, _ECX, 22, 0),
    "popcnt": (_LEAF_1, _ECX, 23, 0),
    "avx": (_LEAF_1, _ECX, 28, _YMM),
    "f16c": (_LEAF_1, _ECX, 29, _YMM),
    "bmi": (_LEAF_7, _EBX, 3, 0),
    "avx2": (_LEAF_7, _EBX, 5, _YMM),
    "bmi2": (_LEAF_7, _EBX, 8, 0),
    "avx512f": (_LEAF_7, _EBX, 16, _ZMM),
    "avx512dq": (_LEAF_7, _EBX, 17, _ZMM),
    "avx512ifma": (_LEAF_7, _EBX, 21, _ZMM),
    "avx512cd": (_LEAF_7, _EBX, 28, _ZMM),
    "avx512bw": (_LEAF_7, _EBX, 30, _ZMM),
    "avx512vl": (_LEAF_7, _EBX, 31, _ZMM),
    "avx512vbmi": (_LEAF_7, _ECX, 1, _ZMM),
    "avx512vbmi2": (_LEAF_7, _ECX, 6, _ZMM),
    "gfni": (_LEAF_7, _ECX, 8, 0),
    "avx512vnni": (_LEAF_7, _ECX, 11, _ZMM),
    "avx512bitalg": (_LEAF_7, _ECX, 12, _ZMM),
    "avx512vpopcntdq": (_LEAF_7, _ECX, 14, _ZMM),
    "avx512fp16": (_LEAF_7, _EDX, 23, _ZMM),
    "avxvnni": (_LEAF_7_1, _EAX, 4, _YMM),
    "avx512bf16": (_LEAF_7_1, _EAX, 5, _ZMM),
    "avxifma": (_LEAF_7_1, _EAX, 23, _YMM),
    "lzcnt": (_LEAF_EXTENDED, _ECX, 5, 0),
    "sse4a": (_LEAF_EXTENDED, _ECX, 6, 0),
    "prfchw": (_LEAF_EXTENDED, _ECX, 8, 0),
    "xop": (_LEAF_EXTENDED, _ECX, 11, _YMM),
    "fma4": (_LEAF_EXTENDED, _ECX, 16, _YMM),
    "tbm": (_LEAF_EXTENDED, _ECX, 21, 0),
}
"""Leaf of `cpuid`, register, bit, and what the system must keep (Intel's and AMD's manuals, CPUID)."""

_AARCH64: Mapping[str, tuple[int, int, int, int]] = {
    "neon": (0, 0, 1, 0),
    "fullfp16": (0, 0, 10, 0),
    "dotprod": (0, 0, 20, 0),
    "i8mm": (1, 0, 13, 0),
    "bf16": (1, 0, 14, 0),
    "sve": (0, 0, 22, 0),
    "sve256": (2, 0, 32, 0),
    "sve512": (2, 0, 64, 0),
}
"""Bits of Linux's AT_HWCAP (0) and AT_HWCAP2 (1); bytes of a vector of SVE (2)."""

_S390X: Mapping[str, tuple[int, int, int, int]] = {
    "vector": (0, 0, 11, 0),
    "vector-enhancements-1": (1, 0, 135, 0),
    "vector-enhancements-2": (1, 0, 148, 0),
}
"""The bit of Linux's AT_HWCAP that says that it keeps the registers (0), and bits of the list of facilities (1:
z/Architecture Principles of Operation, "Facility Indications")."""

_RISCV64: Mapping[str, tuple[int, int, int, int]] = {
    **{name: (0, 0, ord(name) - ord("a"), 0) for name in "mafdcv"},
    "zba": (1, 0, 3, 0),
    "zbb": (1, 0, 4, 0),
    "zbs": (1, 0, 5, 0),
    "zvl128b": (2, 0, 16, 0),
    "zvl256b": (2, 0, 32, 0),
}
"""Bits of Linux's AT_HWCAP (0) and of the answer of `riscv_hwprobe` (1); the least bytes of a vector (2), asked for
after vectors themselves."""

_STRUCT = """typedef struct cpu_feature {
  const char *name;
  int leaf, reg, bit;
  unsigned long long states;
} cpu_feature;
#define TW_CPU_FEATURES"""


def features_c(target: TargetInfo, *, freestanding: bool) -> str:
    """The table of the features that the code needs and the library can ask for; "" where there are none."""
    of_linux = {} if freestanding else {"aarch64": _AARCH64, "s390x": _S390X, "riscv64": _RISCV64}
    known = {"x86_64": _X86, **of_linux}.get(arch_of(target.triple), {})
    rows: Sequence[str] = [
        f'  {{"{name}", {leaf}, {reg}, {bit}, {states:#x}}},'
        for name in target.features
        if name in known
        for leaf, reg, bit, states in [known[name]]
    ]
    if not rows:
        return ""
    return "\n".join([_STRUCT, "static const cpu_feature cpu_features[] = {", *rows, "};"])
