"""The instruction-set features that generated code may use, by LLVM's names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

V2_FEATURES = ("popcnt", "sse4.1", "sse4.2", "ssse3")
"""What x86-64-v2 adds to the baseline, which has SSE2, and compilers emit."""

V3_FEATURES = (
    "avx",
    "avx2",
    "bmi",
    "bmi2",
    "f16c",
    "fma",
    "lzcnt",
    "movbe",
    "popcnt",
    "sse4.1",
    "sse4.2",
    "ssse3",
)
"""The same of x86-64-v3."""

V4_FEATURES = (*V3_FEATURES, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "x86_64": (
            *V4_FEATURES, "avx512vnni", "avx512bf16", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2",
            "avxvnni", "gfni", "avx512bitalg", "avx512vpopcntdq", "avxifma", "fma4", "xop", "tbm", "sse4a", "prfchw",
        ),
        "aarch64": ("neon", "fullfp16", "dotprod", "i8mm", "bf16", "sve", "sve256", "sve512"),
        "wasm32": ("simd128", "relaxed-simd", "bulk-memory", "nontrapping-fptoint", "sign-ext", "mutable-globals"),
        "riscv64": ("m", "a", "f", "d", "c", "v", "zba", "zbb", "zbs", "zvl128b", "zvl256b"),
        "s390x": ("vector", "vector-enhancements-1", "vector-enhancements-2"),
    }
)  # fmt: skip
"""All features that the compiler tells apart, by architecture: those that it decides by, and those that LLVM uses by
itself for a core that has them. What a target does not list is switched off, so that an artefact needs no more than it
says."""

LENGTHS = frozenset({"sve256", "sve512"})
"""Of these, the lengths of vectors of SVE for which code is made, which LLVM is told otherwise."""
