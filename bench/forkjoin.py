"""Measures the thread pool: fork and join of an empty job, spinning and asleep. Run on an idle machine.

python bench/forkjoin.py [--threads 1 2 4] [--windows 300]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time

import llvmlite.binding as llvm

from tilewright.codegen.cpu.program.pool import pool_ir

# `work` steps of a dependent chain per index, so that the length of a chunk can be chosen.
BODY = """
declare void @tw_parallel(ptr, ptr, ptr, i64)
define void @chunk(ptr %work.at, i64 %begin, i64 %end, i64 %worker) {
entry:
  %work = load i64, ptr %work.at
  %count = sub i64 %end, %begin
  %steps = mul i64 %work, %count
  %some = icmp ugt i64 %steps, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void asm sideeffect "", "~{memory}"()
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %steps
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @jobs(ptr %pool, ptr %work, i64 %n, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @tw_parallel(ptr %pool, ptr @chunk, ptr %work, i64 %n)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class Bench:
    """The pool and the job above, compiled for this machine."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
        target = llvm.Target.from_triple(llvm.get_process_triple())
        machine = target.create_target_machine(reloc="pic", codemodel="small", opt=2)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for text in (pool_ir(llvm.get_process_triple()), BODY):
            module = llvm.parse_assembly(text)
            builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
            builder.getModulePassManager().run(module, builder)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(machine.emit_object(module)))
        self._engine.finalize_object()
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.create = self._function("tw_pool_create", pointer, ctypes.c_int32, pointer, i64)
        self.destroy = self._function("tw_pool_destroy", None, pointer)
        self._jobs = self._function("jobs", None, pointer, pointer, i64, i64)

    def _function(self, name: str, result: object, *arguments: object):  # type: ignore[no-untyped-def]
        return ctypes.CFUNCTYPE(result, *arguments)(self._engine.get_function_address(name))

    def seconds(self, pool: int, work: int, n: int, times: int) -> float:
        """Mean time of one job."""
        cell = ctypes.c_int64(work)
        start = time.perf_counter()
        self._jobs(pool, ctypes.addressof(cell), n, times)
        return (time.perf_counter() - start) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--windows", type=int, default=300, help="short series of jobs per number")
    options = parser.parse_args()
    bench = Bench()
    per_step = min(bench.seconds(0, 100_000, 1, 3) for _ in range(20)) / 100_000
    print("microseconds per job, median of the series (least to upper quartile)")
    for threads in options.threads:
        pool = bench.create(threads, None, 1_000_000)
        for micros in (0, 1, 5, 20, 100, 1000):
            work, jobs = int(micros * 1e-6 / per_step), max(1, 200 // max(micros, 2))
            hot = [bench.seconds(pool, work, threads, jobs) for _ in range(options.windows)]
            cold = [_after_sleep(bench, pool, work, threads) for _ in range(options.windows // 6)]
            print(
                f"{threads:3d} threads, {micros:4d} us each: hot {_spread(hot)}   after sleep {_spread(cold)}"
            )
        bench.destroy(pool)


def _after_sleep(bench: Bench, pool: int, work: int, threads: int) -> float:
    time.sleep(0.004)
    return bench.seconds(pool, work, threads, 1)


def _spread(seconds: list[float]) -> str:
    _, middle, upper = (value * 1e6 for value in statistics.quantiles(seconds, n=4))
    return f"{middle:8.2f} ({min(seconds) * 1e6:8.2f} to {upper:8.2f})"


if __name__ == "__main__":
    main()
