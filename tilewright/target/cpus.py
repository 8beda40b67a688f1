"""CPUs, an entry for each: what is compiled for them, and what is known of their cores.

`core` is LLVM's name. Sizes of caches are those of the makers' documents (AMD's and Arm's guides, Intel's data sheets,
Apple's `sysctl hw.perflevel0`), L3 as in the usual model of the line. An L2 that several cores share counts with the
share of one, as all of them compute. Pipes and bandwidth are of AMD's and Arm's Software Optimization Guides of each
core ("SOG"), Intel's Optimization Reference Manual, the tables of uops.info (x86), Dougall Johnson's measurements of
Firestorm (Apple M1), and, where none of these tells, what is said beside the entry.

Only x86-64 cores have been measured here; the others are taken from their documents. Neoverse V1 and V2 are driven as
NEON machines of 128 bits, and SVE is switched off, so that an artefact needs nothing that it does not list; an entry
with SVE is for one length of vectors, which machines are asked for. Code for AArch64, RISC-V, IBM Z and WebAssembly has
been run under emulation, which tells whether it is right and not how fast (docs/emulated.md); code for macOS has been
made and read, but never been run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tilewright.target.calibration import Calibration, Exposed
from tilewright.target.features import V2_FEATURES, V3_FEATURES, V4_FEATURES
from tilewright.target.hardware import Caches
from tilewright.target.target import Bandwidth, Pipes, Target

_LINUX = "x86_64-unknown-linux-gnu"

_SMALL, _SERVER = Caches(32 << 10, 512 << 10, 32 << 20), Caches(32 << 10, 1 << 20, 32 << 20)

_ARM82 = ("neon", "fullfp16", "dotprod")
_ARM86 = (*_ARM82, "i8mm", "bf16")
_RVA22V = ("m", "a", "f", "d", "c", "v", "zba", "zbb", "zbs")
_VNNI = (*V4_FEATURES, "avx512vnni")
_ICELAKE = (*_VNNI, "avx512ifma", "avx512vbmi", "avx512vbmi2", "gfni")
_ZEN4 = (*_ICELAKE, "avx512bf16")

_USUAL, _USUAL_512 = Pipes(), Pipes(arithmetic=2)
"""Of a core without an entry. Units for 512 bits are mostly those for 256 joined, or take two cycles."""
_ZEN = Pipes(issue=6, arithmetic=4)
_ZEN_HALVES = Pipes(issue=6, multiply_adds=1, arithmetic=2, loads=1, stores=0.5)
_ZEN5 = Pipes(issue=8, arithmetic=4)
_SUNNY_COVE = Pipes(issue=5, arithmetic=2)
"""512-bit units: ports 0 and 1 joined, and port 5; two stores in a cycle only to one line."""
_LAPTOP = replace(_SUNNY_COVE, multiply_adds=1)
"""Cores for laptops lack the unit for 512-bit multiply-adds behind port 5."""
_GOLDEN_COVE = Pipes(issue=6, loads=3, stores=2)
"""The performance cores, for 256 bits: three loads and two stores in a cycle (uops.info)."""
_NEON_2 = Pipes(arithmetic=2, latency=2)
"""Two pipes of 128 bits; a multiply-add takes 4 cycles, but its sum is needed only 2 before the end (Arm's SOG: "late
forwarding of accumulate operands")."""
_NEON_4 = Pipes(issue=8, multiply_adds=4, arithmetic=4, loads=3, stores=2, latency=2)
"""Neoverse V1 and V2 (SOG): four pipes of 128 bits, three loads and two stores; accumulation as in Neoverse N1."""
_FIRESTORM = Pipes(issue=8, multiply_adds=4, arithmetic=4, loads=3, stores=2)
"""Apple M1: no late forwarding is known. Its successors have the same vector pipes, and decode more in a cycle."""

_USUAL_BANDWIDTH = Bandwidth()
_ZEN_BANDWIDTH = Bandwidth(l2=28, l3=20, memory=6.6, streams=1)
"""Of Zen 3: 97, 72 and 23 GB/s at 3.45 GHz (Zen 4: 117, 99 and 31 at 3.66). Several streams are slower than one on
Zen 4, and on Zen 5 where weights come from memory: docs/decisions/0024-streams.md."""
_APPLE_BANDWIDTH = Bandwidth(l2=32, l3=18, memory=18)
"""Derived: one core of an M1 reads about 58 GB/s from memory at 3.2 GHz (published measurements), and the system-level
cache stands before the memory, at about its speed; from L2 two thirds of what the load units take."""
_USUAL_CALIBRATION = Calibration()


@dataclass(frozen=True, slots=True)
class Cpu:
    """`about` says which machines have it, `aliases` are their names. `narrow` are the pipes where code that could use
    vectors of 512 bits has vectors of 256."""

    target: Target
    about: str
    aliases: tuple[str, ...] = ()
    narrow: Pipes = _USUAL


def _sse(name: str, about: str, features: tuple[str, ...] = ()) -> Cpu:
    """Vectors of 128 bits, and no fused multiply-add: an addition waits 3 cycles for the last one (Nehalem to Ivy
    Bridge, uops.info), which begin a product and a sum in each."""
    pipes = Pipes(multiply_adds=1, arithmetic=2, loads=1, latency=3)
    caches = Caches(32 << 10, 256 << 10, 8 << 20)
    return Cpu(
        Target(name, _LINUX, name, features, 128, 16, has_fma=False, caches=caches, pipes=pipes), about
    )


def _avx2(
    name: str,
    core: str,
    about: str,
    caches: Caches,
    *,
    features: tuple[str, ...] = V3_FEATURES,
    pipes: Pipes = _USUAL,
    bandwidth: Bandwidth = _USUAL_BANDWIDTH,
) -> Cpu:
    target = Target(name, _LINUX, core, features, 256, 16, masked_memory=True, caches=caches, pipes=pipes)
    return Cpu(replace(target, bandwidth=bandwidth), about)


def _avx512(
    name: str,
    core: str,
    about: str,
    caches: Caches = _SERVER,
    *,
    features: tuple[str, ...] = V4_FEATURES,
    pipes: Pipes = _USUAL_512,
    narrow: Pipes = _USUAL,
    bandwidth: Bandwidth = _USUAL_BANDWIDTH,
    calibration: Calibration = _USUAL_CALIBRATION,
    aliases: tuple[str, ...] = (),
) -> Cpu:
    target = _avx2(name, core, about, caches, features=features, pipes=pipes, bandwidth=bandwidth).target
    target = replace(target, vector_bits=512, vector_registers=32, embedded_broadcast=True)
    return Cpu(replace(target, calibration=calibration), about, aliases, narrow)


def _neon(
    name: str,
    core: str,
    about: str,
    caches: Caches,
    *,
    features: tuple[str, ...],
    pipes: Pipes,
    bandwidth: Bandwidth = _USUAL_BANDWIDTH,
    absent: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    triple: str = "aarch64-unknown-linux-gnu",
) -> Cpu:
    target = Target(name, triple, core, features, 128, 32, caches=caches, absent=absent, pipes=pipes)
    return Cpu(replace(target, bandwidth=bandwidth), about, aliases)


def _sve(
    name: str, core: str, about: str, bits: int, *, pipes: Pipes, features: tuple[str, ...] = _ARM86
) -> Cpu:
    """Vectors of `bits`, which is what those of the core must be."""
    every = (*features, "sve", f"sve{bits}")
    cpu = _neon(name, core, about, Caches(64 << 10, 1 << 20, 32 << 20), features=every, pipes=pipes)
    return Cpu(replace(cpu.target, vector_bits=bits, masked_memory=True), about)


def _riscv(name: str, about: str, bits: int, *, features: tuple[str, ...], pipes: Pipes) -> Cpu:
    """Vectors of `bits` are what LLVM may count on; those of a core may be longer."""
    every = (*features, f"zvl{bits}b")
    target = Target(name, "riscv64-unknown-linux-gnu", "generic-rv64", every, bits, 32, masked_memory=True, pipes=pipes)
    return Cpu(target, about)


def _wasm(name: str, about: str, *features: str) -> Cpu:
    """WebAssembly, as engines make machine code of it: vectors of 128 bits, and registers of the machine below."""
    every = ("simd128", "bulk-memory", "nontrapping-fptoint", "sign-ext", "mutable-globals", *features)
    target = Target(name, "wasm32-unknown-unknown", "generic", every, 128, 16, has_fma=False, pipes=Pipes(arithmetic=2))
    return Cpu(target, about)


def _s390x(name: str, core: str, about: str, *more: str) -> Cpu:
    """IBM Z: the high byte comes first. Two vector units (IBM, z14 and z15 Technical Introductions)."""
    every = ("vector", "vector-enhancements-1", *more)
    caches = Caches(128 << 10, 4 << 20, 32 << 20)
    target = Target(name, "s390x-unknown-linux-gnu", core, every, 128, 32, caches=caches, pipes=Pipes(arithmetic=2))
    return Cpu(target, about)


def _apple(number: int, features: tuple[str, ...], l2: int, issue: int = 8) -> Cpu:
    return _neon(
        f"apple-m{number}", f"apple-m{number}", f"Apple M{number} (macOS)",
        Caches(128 << 10, l2, 8 << 20),  # the last is the system-level cache
        features=features, pipes=replace(_FIRESTORM, issue=issue), bandwidth=_APPLE_BANDWIDTH,
        triple="aarch64-apple-macosx11.0",
    )  # fmt: skip


_ALL = (
    _sse("x86-64", "any x86-64 (SSE2)"),
    _sse("x86-64-v2", "any x86-64 with SSE4.2 (from 2008 to 2011)", V2_FEATURES),
    _avx2("x86-64-v3", "x86-64-v3", "any x86-64 with AVX2 and fused multiply-add", Caches()),
    _avx2("x86-64-v3-vnni", "x86-64-v3", "the same with AVX-VNNI", Caches(), features=(*V3_FEATURES, "avxvnni")),
    _avx512("x86-64-v4", "x86-64-v4", "any x86-64 with AVX-512"),
    _avx512("x86-64-v4-vnni", "x86-64-v4", "the same with AVX-512 VNNI", features=_VNNI),
    _avx2("zen1", "znver1", "AMD EPYC 7001, Ryzen 1000 and 2000", Caches(32 << 10, 512 << 10, 8 << 20),
          pipes=_ZEN_HALVES, bandwidth=_ZEN_BANDWIDTH),
    _avx2("zen2", "znver2", "AMD EPYC 7002, Ryzen 3000 and 4000", Caches(32 << 10, 512 << 10, 16 << 20),
          pipes=_ZEN, bandwidth=_ZEN_BANDWIDTH),
    _avx2("zen3", "znver3", "AMD EPYC 7003, Ryzen 5000", _SMALL, pipes=_ZEN, bandwidth=_ZEN_BANDWIDTH),
    _avx512("zen4", "znver4", "AMD EPYC 9004, Ryzen 7000 and 8000", features=_ZEN4,
            pipes=_ZEN_HALVES, narrow=_ZEN, bandwidth=_ZEN_BANDWIDTH,
            calibration=Calibration(lines_before_bytes=16)),
    _avx512("zen5", "znver5", "AMD EPYC 9005, Ryzen 9000", Caches(48 << 10, 1 << 20, 32 << 20),
            features=(*_ZEN4, "avxvnni"), pipes=_ZEN5, narrow=_ZEN5, bandwidth=_ZEN_BANDWIDTH,
            calibration=Calibration(Exposed(transform=1.5, image=8), requests_stores=False)),
    _avx2("haswell", "haswell", "Intel Core of the 4th generation", Caches(32 << 10, 256 << 10, 8 << 20),
          pipes=Pipes(latency=5)),
    _avx2("broadwell", "broadwell", "Intel Core of the 5th generation", Caches(32 << 10, 256 << 10, 6 << 20),
          pipes=Pipes(latency=5)),
    _avx2("skylake", "skylake", "Intel Core of the 6th to 10th generation", Caches(32 << 10, 256 << 10, 8 << 20)),
    _avx512("skylake-avx512", "skylake-avx512", "Intel Xeon Scalable, 1st generation", aliases=("skylake-x",)),
    _avx512("cascadelake", "cascadelake", "Intel Xeon Scalable, 2nd generation", features=_VNNI),
    _avx512("icelake-server", "icelake-server", "Intel Xeon Scalable, 3rd generation",
            Caches(48 << 10, 1280 << 10, 48 << 20), features=_ICELAKE,
            pipes=_SUNNY_COVE, narrow=replace(_SUNNY_COVE, arithmetic=3), aliases=("icelake",)),
    _avx512("icelake-client", "icelake-client", "Intel Core of the 10th generation (laptops)",
            Caches(48 << 10, 512 << 10, 8 << 20), features=_ICELAKE, pipes=_LAPTOP),
    _avx512("tigerlake", "tigerlake", "Intel Core of the 11th generation (laptops)",
            Caches(48 << 10, 1280 << 10, 12 << 20), features=_ICELAKE, pipes=_LAPTOP),
    _avx2("alderlake", "alderlake", "Intel Core of the 12th generation (performance cores)",
          Caches(48 << 10, 1280 << 10, 24 << 20), features=(*V3_FEATURES, "avxvnni", "gfni"), pipes=_GOLDEN_COVE),
    _avx2("raptorlake", "raptorlake", "Intel Core of the 13th and 14th generation (performance cores)",
          Caches(48 << 10, 2 << 20, 30 << 20), features=(*V3_FEATURES, "avxvnni", "gfni"), pipes=_GOLDEN_COVE),
    _avx512("sapphirerapids", "sapphirerapids", "Intel Xeon Scalable, 4th and 5th generation",
            Caches(48 << 10, 2 << 20, 60 << 20), features=(*_ZEN4, "avx512fp16", "avxvnni"),
            pipes=Pipes(issue=6, arithmetic=2), narrow=_GOLDEN_COVE, aliases=("emeraldrapids",)),
    _neon("aarch64-neon", "generic", "any AArch64", Caches(), features=("neon",), pipes=Pipes(arithmetic=2)),
    _neon("neoverse-n1", "neoverse-n1", "AWS Graviton2, Ampere Altra", Caches(64 << 10, 1 << 20, 32 << 20),
          features=_ARM82, pipes=_NEON_2, aliases=("graviton2",)),
    _neon("neoverse-v1", "neoverse-v1", "AWS Graviton3 (as NEON)", Caches(64 << 10, 1 << 20, 32 << 20),
          features=_ARM86, pipes=_NEON_4, absent=("sve", "sve2"), aliases=("graviton3",)),
    _neon("neoverse-v2", "neoverse-v2", "AWS Graviton4, Google Axion, NVIDIA Grace (as NEON)",
          Caches(64 << 10, 2 << 20, 36 << 20), features=_ARM86, pipes=_NEON_4, absent=("sve", "sve2"),
          aliases=("graviton4",)),
    _sve("neoverse-v1-sve", "neoverse-v1", "AWS Graviton3 (SVE, vectors of 256 bits)", 256,
         pipes=Pipes(issue=8, multiply_adds=2, arithmetic=2, loads=2, stores=1, latency=2)),
    _sve("a64fx", "a64fx", "Fujitsu A64FX (SVE, vectors of 512 bits)", 512, features=("neon", "fullfp16"),
         pipes=Pipes(issue=4, multiply_adds=2, arithmetic=2, loads=2, stores=1, latency=9)),
    # Pipes (SOG): multiply-adds of 128 bits occupy both, accumulation 3 cycles; one load and one store unit. Bandwidth,
    # derived, of both boards: half the widths of the interfaces to L2 (16 and 32 bytes), and two thirds of what memory
    # of 32 bits at 3200 and 4267 MT/s could give at 1.8 and 2.4 GHz.
    _neon("cortex-a72", "cortex-a72", "Raspberry Pi 4 (64-bit Linux)", Caches(32 << 10, 256 << 10, 0),
          features=("neon",), pipes=Pipes(issue=3, multiply_adds=1, arithmetic=2, loads=1, latency=3),
          bandwidth=Bandwidth(l2=8, l3=2.5, memory=2.5), aliases=("raspberry-pi-4",)),
    _neon("cortex-a76", "cortex-a76", "Raspberry Pi 5", Caches(64 << 10, 512 << 10, 2 << 20), features=_ARM82,
          pipes=_NEON_2, bandwidth=Bandwidth(l2=16, l3=7, memory=3.5), aliases=("raspberry-pi-5",)),
    _riscv("riscv64-v", "any RISC-V with vectors (RVA22 and V, RVA23)", 128, features=_RVA22V,
           pipes=Pipes(issue=2, multiply_adds=1, arithmetic=1, loads=1, stores=1)),
    _riscv("riscv64-v256", "RISC-V with vectors of 256 bits (SpacemiT K1, RVA22)", 256, features=_RVA22V,
           pipes=Pipes(issue=2, multiply_adds=1, arithmetic=1, loads=1, stores=1)),
    _s390x("z14", "z14", "IBM z14, LinuxONE II (s390x)"),
    _s390x("z15", "z15", "IBM z15, z16, LinuxONE III and 4 (s390x)", "vector-enhancements-2"),
    _wasm("wasm-simd128", "WebAssembly with vectors (browsers from 2021, node 16)"),
    _wasm("wasm-relaxed", "WebAssembly with relaxed vectors (browsers from 2024, node 21)", "relaxed-simd"),
    _apple(1, _ARM82, 3 << 20),
    _apple(2, _ARM86, 4 << 20),
    _apple(3, _ARM86, 4 << 20, issue=9),
    _apple(4, _ARM86, 4 << 20, issue=10),
)  # fmt: skip

CPUS: Mapping[str, Cpu] = MappingProxyType({cpu.target.name: cpu for cpu in _ALL})
"""By the names of their targets."""

_BY_CORE = {(cpu.target.arch, cpu.target.cpu): cpu for cpu in reversed(_ALL)}
_BY_WIDTH = {(*core, cpu.target.vector_bits): cpu for cpu in _ALL for core in [(cpu.target.arch, cpu.target.cpu)]}


def with_facts(target: Target) -> Target:
    """The target with what is known of its core, which has vectors of `target.vector_bits`; what a usual one has where
    nothing is."""
    bits, usual = target.vector_bits, _USUAL_512 if target.vector_bits == 512 else _USUAL
    core = (target.arch, target.cpu)
    cpu = _BY_WIDTH.get((*core, bits), _BY_CORE.get(core))
    if cpu is None:
        return replace(target, pipes=usual)
    known = cpu.target
    narrow = cpu.narrow if bits == 256 else usual
    pipes = known.pipes if bits == known.vector_bits else narrow
    return replace(target, pipes=pipes, bandwidth=known.bandwidth, calibration=known.calibration)
