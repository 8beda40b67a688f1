"""What the CPU of this process can do, by LLVM's names of features, and without LLVM.

On x86-64 the CPU is asked itself, by its instruction `cpuid`, as systems do not tell of features that are newer than
they are. On AArch64 that is a matter of the system: Linux tells it in /proc/cpuinfo.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.runtime.storage.pages import READ_EXECUTE, address_of_pages, protect

_EAX, _EBX, _ECX, _EDX = range(4)
_ANY, _AVX, _AVX512 = range(3)
"""Registers that the system must save for a feature: those that it always does, those of 256 and of 512 bits."""

_X86: Mapping[str, tuple[tuple[int, int], int, int, int]] = {
    "ssse3": ((1, 0), _ECX, 9, _ANY),
    "fma": ((1, 0), _ECX, 12, _AVX),
    "sse4.1": ((1, 0), _ECX, 19, _ANY),
    "sse4.2": ((1, 0), _ECX, 20, _ANY),
    "movbe": ((1, 0), _ECX, 22, _ANY),
    "popcnt": ((1, 0), _ECX, 23, _ANY),
    "avx": ((1, 0), _ECX, 28, _AVX),
    "f16c": ((1, 0), _ECX, 29, _AVX),
    "bmi": ((7, 0), _EBX, 3, _ANY),
    "avx2": ((7, 0), _EBX, 5, _AVX),
    "bmi2": ((7, 0), _EBX, 8, _ANY),
    "avx512f": ((7, 0), _EBX, 16, _AVX512),
    "avx512dq": ((7, 0), _EBX, 17, _AVX512),
    "avx512ifma": ((7, 0), _EBX, 21, _AVX512),
    "avx512cd": ((7, 0), _EBX, 28, _AVX512),
    "avx512bw": ((7, 0), _EBX, 30, _AVX512),
    "avx512vl": ((7, 0), _EBX, 31, _AVX512),
    "avx512vbmi": ((7, 0), _ECX, 1, _AVX512),
    "avx512vbmi2": ((7, 0), _ECX, 6, _AVX512),
    "gfni": ((7, 0), _ECX, 8, _ANY),
    "avx512vnni": ((7, 0), _ECX, 11, _AVX512),
    "avx512bitalg": ((7, 0), _ECX, 12, _AVX512),
    "avx512vpopcntdq": ((7, 0), _ECX, 14, _AVX512),
    "avx512fp16": ((7, 0), _EDX, 23, _AVX512),
    "avxvnni": ((7, 1), _EAX, 4, _AVX),
    "avx512bf16": ((7, 1), _EAX, 5, _AVX512),
    "avxifma": ((7, 1), _EAX, 23, _AVX),
    "lzcnt": ((0x80000001, 0), _ECX, 5, _ANY),
    "sse4a": ((0x80000001, 0), _ECX, 6, _ANY),
    "prfchw": ((0x80000001, 0), _ECX, 8, _ANY),
    "xop": ((0x80000001, 0), _ECX, 11, _AVX),
    "fma4": ((0x80000001, 0), _ECX, 16, _AVX),
    "tbm": ((0x80000001, 0), _ECX, 21, _ANY),
}
"""Where `cpuid` tells of a feature: leaf and subleaf, register and bit (Intel's and AMD's manuals), and what must be
saved."""

_AARCH64: Mapping[str, str] = {
    "neon": "asimd", "fullfp16": "asimdhp", "dotprod": "asimddp", "i8mm": "i8mm", "bf16": "bf16",
    "sve": "sve",
}  # fmt: skip
"""Features, and the words of /proc/cpuinfo for them."""

_OS_SAVES, _HAS_AVX = 1 << 27, 1 << 28
_SAVED = {_ANY: 0, _AVX: 0x6, _AVX512: 0xE6}
"""The bits of the register XCR0 that say so."""


@dataclass(frozen=True)
class CpuFacts:
    """The features of a CPU that code may need, and a text that tells this CPU from all that differ in anything which
    a compiler looks at."""

    features: frozenset[str]
    identity: str


@lru_cache(maxsize=1)
def cpu_facts() -> CpuFacts | None:
    """Of the CPU of this process; None where nothing here knows how to find out, or the system forbids the code that
    asks."""
    machine = architecture()
    if machine in ("x86_64", "amd64") and sys.platform in ("linux", "darwin"):
        with contextlib.suppress(OSError):
            return _x86_facts()
    if machine in ("aarch64", "arm64") and sys.platform == "linux":
        return arm_facts(Path("/proc/cpuinfo"))
    return None


def architecture() -> str:
    """Of this machine, as the system names it; "" where that is no system of ours."""
    return os.uname().machine.lower() if hasattr(os, "uname") else ""


def arm_facts(cpuinfo: Path) -> CpuFacts | None:
    """Of the first core that Linux lists; None where it lists nothing."""
    try:
        text = cpuinfo.read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return None
    lines = dict(line.split("\t: ", 1) for line in text.splitlines() if "\t: " in line)
    found = {name.strip(): words for name, words in lines.items()}
    words = found.get("Features", "").split()
    if not words:
        return None
    features = frozenset(name for name, word in _AARCH64.items() if word in words) | _sve_length()
    return CpuFacts(features, str(sorted(item for item in found.items() if item[0].startswith(("CPU", "Features")))))


def _sve_length() -> frozenset[str]:
    """The length of vectors of SVE as a feature, which Linux says of this process; none elsewhere."""
    if architecture() not in ("aarch64", "arm64"):
        return frozenset()
    with contextlib.suppress(OSError, AttributeError):
        found = ctypes.CDLL(None).prctl(_SVE_GET_VECTOR_LENGTH, 0, 0, 0, 0)
        return frozenset({f"sve{8 * (found & 0xFFFF)}"} if found > 0 else ())
    return frozenset()


_SVE_GET_VECTOR_LENGTH = 51
"""PR_SVE_GET_VL of <linux/prctl.h>."""


def _x86_facts() -> CpuFacts:
    with _Instructions() as ask:
        highest, highest_extended = ask.cpuid(0, 0)[_EAX], ask.cpuid(0x80000000, 0)[_EAX]
        leaves = sorted({place[0] for place in _X86.values()})
        told = {
            (leaf, sub): ask.cpuid(leaf, sub)
            for leaf, sub in leaves
            if leaf <= (highest if leaf < 0x80000000 else highest_extended)
            and (sub == 0 or ask.cpuid(leaf, 0)[_EAX] >= sub)
        }
        vendor = ask.cpuid(0, 0)
        basic = told[1, 0][_ECX]
        saves = basic & _OS_SAVES and basic & _HAS_AVX
        saved = ask.saved_registers() if saves else 0
    if sys.platform == "darwin" and saved & 0x6 == 0x6:
        saved |= 0xE0  # saves the registers of 512 bits from their first use on
    features = frozenset(
        name
        for name, (leaf, register, bit, needs) in _X86.items()
        if told.get(leaf, (0,) * 4)[register] >> bit & 1 and saved & _SAVED[needs] == _SAVED[needs]
    )
    eax, _, ecx, edx = told[1, 0]  # the second register has the number of the core
    told[1, 0] = (eax, 0, ecx, edx)
    return CpuFacts(features, f"{vendor} {sorted(told.items())} {saved:#x}")


class _Instructions:
    """`cpuid` and `xgetbv` as functions, in a page of code; a context manager, which gives the page back."""

    # push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid; mov [r8 + 0, 4, 8, 12], eax, ebx, ecx, edx; pop rbx; ret
    _CPUID = bytes.fromhex("53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
    # xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret
    _XGETBV = bytes.fromhex("31c9 0f01d0 48c1e220 4809d0 c3")
    _SECOND = 64

    def __enter__(self) -> _Instructions:
        self._page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._page[: len(self._CPUID)] = self._CPUID
        self._page[self._SECOND : self._SECOND + len(self._XGETBV)] = self._XGETBV
        start = address_of_pages(self._page)
        protect(start, mmap.PAGESIZE, READ_EXECUTE)
        self._cpuid = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(start)
        self._xgetbv = ctypes.CFUNCTYPE(ctypes.c_uint64)(start + self._SECOND)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._page.close()

    def cpuid(self, leaf: int, sub: int) -> tuple[int, int, int, int]:
        found = (ctypes.c_uint32 * 4)()
        self._cpuid(leaf, sub, ctypes.addressof(found))
        return (found[0], found[1], found[2], found[3])

    def saved_registers(self) -> int:
        """The register XCR0: what the system saves."""
        return int(self._xgetbv())
