"""What this machine is: its caches and cores, as the system tells, and the clock of its cores, measured, as what
systems tell of that is often a base rate, or nothing.

It imports little: models that the cache has need these facts.
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_SYSFS_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

STEPS, ITERATIONS, RUNS = 8, 100_000, 5
"""Of the loop that is timed: pairs of an addition and an exclusive or that wait for each other, each of which takes one
cycle on every core; how often it runs them; and how often it is timed."""

_PAIRS = "".join(
    f"  %a{k} = add i64 %x{k}, %i\n  %x{k + 1} = xor i64 %a{k}, %i\n" for k in range(STEPS)
)
_LOOP = f"""
define i64 @chain(i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x0 = phi i64 [ %n, %entry ], [ %x{STEPS}, %loop ]
{_PAIRS}  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret i64 %x{STEPS}
}}
"""


@dataclass(frozen=True, slots=True)
class Caches:
    """Sizes in bytes: `l1d` and `l2` of one core, `l3` as shared by all cores (0 where there is none). L1 has `l1_sets`
    sets of lines."""

    l1d: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    l1_sets: int = 64


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


@lru_cache(maxsize=1)
def measured_hertz() -> float:
    """Cycles in a second of the core that runs this, in integer code; takes some milliseconds."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(opt=2)
    with binding.create_mcjit_compiler(binding.parse_assembly(_LOOP), machine, use_lmm=True) as engine:
        engine.finalize_object()
        chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("chain"))
        return 2 * STEPS * ITERATIONS / min(_seconds(chain) for _ in range(RUNS))


def _seconds(chain: ctypes._CFunctionType) -> float:
    start = time.perf_counter()
    chain(ITERATIONS)
    return time.perf_counter() - start
