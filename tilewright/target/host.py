"""The machine that runs the compiler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from tilewright.target.cpus import with_facts
from tilewright.target.features import FEATURES, LENGTHS, V4_FEATURES
from tilewright.target.hardware import Caches, read_caches, usable_cores
from tilewright.target.target import Target, arch_of


@lru_cache(maxsize=1)
def host_target() -> Target:
    """The machine that this process runs on, with the CPUs it may use, as LLVM tells it."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return make_host(
        binding.get_process_triple(), binding.get_host_cpu_name(), features, read_caches(), usable_cores()
    )


def make_host(triple: str, cpu: str, features: Mapping[str, bool], caches: Caches, cores: int) -> Target:
    """The target named `host` for a CPU whose LLVM features are on or off as told."""
    arch = arch_of(triple)
    usable = FEATURES.get(arch, ())
    unused = {"sve", *LENGTHS}  # such a machine is driven by NEON
    on = tuple(name for name in usable if features.get(name) and name not in unused)
    off = tuple(name for name in usable if name in unused or not features.get(name, True))
    x86 = arch == "x86_64"
    bits = _vector_bits(on) if x86 else 256 if "zvl256b" in on else 128
    wide = bits == 512
    target = Target(
        "host",
        triple,
        cpu,
        on,
        vector_bits=bits,
        vector_registers=16 if x86 and not wide else 32,
        has_fma=not x86 or "fma" in on,
        masked_memory=bits > 128 or arch == "riscv64",
        embedded_broadcast=wide,
        caches=caches,
        cores=cores,
        absent=off,
    )
    return with_facts(target)


def _vector_bits(features: Collection[str]) -> int:
    """Of an x86-64 CPU."""
    if set(V4_FEATURES) <= set(features):
        return 512
    return 256 if "avx" in features else 128
