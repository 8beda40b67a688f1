"""The clock of this machine's cores, measured: what systems tell of it is often a base rate, or nothing."""

from __future__ import annotations

import ctypes
import time
from functools import lru_cache

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
