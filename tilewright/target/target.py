"""What the compiler knows of a machine: instruction set, vector registers, caches, cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.ir.dtype import DType
from tilewright.target.byte_tables import ByteTable, LevelTable, byte_table_of, level_table_of
from tilewright.target.calibration import Calibration
from tilewright.target.dots import Dot, dots_of
from tilewright.target.features import FEATURES, LENGTHS
from tilewright.target.float_tables import FloatTable, float_table_of
from tilewright.target.half_bytes import HalfBytes, half_bytes_of
from tilewright.target.hardware import Caches
from tilewright.target.machine import GLOBAL, REGISTERS, SCRATCH, Machine, Memory
from tilewright.target.scale import Scale, scale_of

LINE_BYTES = 64
"""Bytes of a cache line on most cores; where lines are longer, some prefetches are repeated."""

VECTOR_BYTES = 64
"""Bytes of one vector of a register tile, on every target: one AVX-512 register, two of AVX2, four of NEON; LLVM splits
it as needed. Layouts with blocks of channels depend on it."""


def arch_of(triple: str) -> str:
    """The architecture that a target triple names, by one spelling."""
    name = triple.split("-", 1)[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def system_of(triple: str) -> str:
    """The operating system that a target triple names: "linux", "macos", "windows", or "" for others and none."""
    if "darwin" in triple or "macos" in triple:
        return "macos"
    return next((system for system in ("linux", "windows") if system in triple), "")


SYSTEMS = {
    "linux": "{arch}-unknown-linux-gnu",
    "macos": "{arch}-apple-macosx11.0",
    "windows": "{arch}-pc-windows-gnu",
}
"""Triples of operating systems."""


@dataclass(frozen=True, slots=True)
class Pipes:
    """Instructions that a core begins in one cycle at most: of all kinds (`issue`), and of those on full
    vectors the multiply-adds, all arithmetic, loads and stores. `latency` is the time in cycles from a
    multiply-add to the next one that adds to its result.
    """

    issue: int = 4
    multiply_adds: int = 2
    arithmetic: int = 3
    loads: float = 2
    stores: float = 1
    latency: int = 4


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes that one core reads in a cycle from L2, L3 and memory, when it does nothing else. In cycles, so that the
    clock need not be known. `streams` are the runs of addresses that it reads in turns at its best."""

    l2: float = 24
    l3: float = 7
    memory: float = 5.4
    streams: int = 8


MEMORIES = (GLOBAL, SCRATCH, REGISTERS)


@dataclass(frozen=True, slots=True)
class Target(Machine):
    """A CPU to compile for.

    `cpu` and `features` are LLVM's names; `features` lists what generated code may use beyond the
    architecture's baseline, and is what an artefact requires of the machine that loads it; `absent` lists
    what CPUs of this name usually have and this one lacks (virtual machines hide features). `masked_memory`
    says that a masked vector load or store is an instruction. With `own_objects` object files are of the format that
    the linkers of the system take, and else ELF, whatever the system, from which images are linked.
    """

    kind: ClassVar[str] = "cpu"

    memories: tuple[Memory, ...] = field(default=MEMORIES, kw_only=True, repr=False)
    triple: str
    cpu: str
    features: tuple[str, ...]
    vector_bits: int
    vector_registers: int
    has_fma: bool = True
    masked_memory: bool = False
    embedded_broadcast: bool = False
    caches: Caches = field(default_factory=Caches)
    cores: int = 1
    absent: tuple[str, ...] = ()
    own_objects: bool = False
    pipes: Pipes = field(default_factory=Pipes)
    bandwidth: Bandwidth = field(default_factory=Bandwidth)
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def arch(self) -> str:
        """The architecture that the triple names: `x86_64`, `aarch64`, ..."""
        return arch_of(self.triple)

    @property
    def links_images(self) -> bool:
        """Whether an image can be linked of the code: WebAssembly and Windows have linkers and loaders of their own."""
        return not self.own_objects and self.arch != "wasm32" and system_of(self.triple) != "windows"

    @property
    def may_fuse(self) -> bool:
        """Whether products and sums have an instruction that rounds once or twice, as the engine likes that runs it."""
        return "relaxed-simd" in self.features

    @property
    def is_big_endian(self) -> bool:
        """Whether the high byte of a number comes first in memory."""
        return self.arch == "s390x"

    @property
    def f32_lanes(self) -> int:
        """float32 elements in one vector register."""
        return self.vector_bits // 32

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bits // (8 * dtype.bytes))

    @property
    def has_mask_registers(self) -> bool:
        """Whether there are registers for the conditions of the lanes of a vector: those of AVX-512."""
        return "avx512f" in self.features

    @property
    def dots(self) -> tuple[Dot, ...]:
        """Instructions that multiply narrow numbers in groups, those of one dtype of sums the fastest first."""
        return dots_of(self.arch, self.features, self.vector_bits)

    def dots_in(self, sums: DType) -> tuple[Dot, ...]:
        """Those that add up in dtype `sums`."""
        return tuple(dot for dot in self.dots if dot.sums is sums)

    @property
    def byte_table(self) -> ByteTable | None:
        """The instruction that looks up bytes in a table, where there is one."""
        return byte_table_of(self.arch, self.features, self.vector_bits)

    @property
    def level_table(self) -> LevelTable | None:
        """The instruction that looks up bytes in a table of 16, where there is one."""
        return level_table_of(self.arch, self.features, self.vector_bits)

    @property
    def orders_bytes(self) -> bool:
        """Whether one instruction puts the bytes of a vector of a register tile in any order."""
        return "avx512vbmi" in self.features and self.vector_bits == 8 * VECTOR_BYTES

    @property
    def float_table(self) -> FloatTable | None:
        """The instruction that looks up 16 floats in a register, where there is one."""
        return float_table_of(self.arch, self.features, self.vector_bits)

    @property
    def half_bytes(self) -> HalfBytes:
        """What it takes to make floats of halves of bytes."""
        return half_bytes_of(self.arch, self.float_table)

    @property
    def scale(self) -> Scale | None:
        """The instruction that multiplies by powers of two, where there is one."""
        return scale_of(self.arch, self.features, self.vector_bits)

    @property
    def rounds_to_bf16(self) -> bool:
        """Whether instructions round float32 to bfloat16; those of x86 take denormal numbers as zero."""
        return "avx512bf16" in self.features or (self.arch == "aarch64" and "bf16" in self.features)

    @property
    def feature_text(self) -> str:
        """The features as LLVM takes them: `+avx2,+fma,-avx512f`. Of its own LLVM takes all that cores of this name
        usually have, such as FMA4 of bdver4."""
        off = dict.fromkeys([*self.absent, *(n for n in FEATURES.get(self.arch, ()) if n not in self.features)])
        signed = [*(f"+{name}" for name in self.features), *(f"-{name}" for name in off)]
        return ",".join(name for name in signed if name[1:] not in LENGTHS)

    @property
    def function_attributes(self) -> str:
        """LLVM function attributes that generated code needs.

        Without them LLVM uses only half of a 512-bit register on CPUs that lower their clock for wide
        vectors, and of registers of SVE, whose length is the core's, nothing but 128 bits.
        """
        if f"sve{self.vector_bits}" in self.features:
            return f"vscale_range({self.vector_bits // 128},{self.vector_bits // 128})"
        if self.arch != "x86_64":
            return ""
        bits = self.vector_bits
        return f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
