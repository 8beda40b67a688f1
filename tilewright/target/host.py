"""The machine that runs the compiler."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

from tilewright.target.cpus import with_facts
from tilewright.target.features import FEATURES, V4_FEATURES
from tilewright.target.target import Caches, Target, arch_of

_SYSFS_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


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
    on = tuple(name for name in usable if features.get(name))
    off = tuple(name for name in usable if not features.get(name, True))
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


def usable_cores() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_caches(folder: Path = _SYSFS_CACHES) -> Caches:
    """Cache sizes as Linux tells them under `folder`; usual sizes for what cannot be read."""
    found: dict[str, int] = {}
    for entry in sorted(folder.glob("index*")):
        try:
            level = (entry / "level").read_text().strip()
            kind = (entry / "type").read_text().strip()
            size = _bytes((entry / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and size > 0:
            found[f"l{level}d" if level == "1" else f"l{level}"] = size
    return Caches(**{key: size for key, size in found.items() if key in ("l1d", "l2", "l3")})


def _bytes(text: str) -> int:
    """Bytes of a size such as `1024K`; ValueError for anything else."""
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
