"""What this machine can do: multiply-adds in registers, and reading from each level of memory, by one thread and by all
of them at once.

Meters are loops of LLVM IR. They are read right beside what is compared with them, as clocks and neighbours change.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

from tilewright.target.dots import Dot
from tilewright.target.host import host_target
from tilewright.target.target import Target

CHAINS = 12
"""Accumulators: enough to hide the latency of two multiply-adds a cycle, few enough for 16 registers."""
LOADS = 8
"""Vectors that a reading meter has on their way at once."""
STREAMS = 4
"""Streams that it reads interleaved: hardware prefetches more of them than of one (13 GB/s for 11.6)."""
STEPS = 400_000
"""About a millisecond; the same before it lets the clock settle, which lies idle or lower for wide vectors."""
READ_BYTES = 64 << 20
"""What a reading of a level moves altogether, in as many passes as its size needs."""

_SCALARS = {"f32": ("float", 4), "f64": ("double", 8)}
_FACTORS = {"u8": ("i8", 1), "i8": ("i8", 1), "i16": ("i16", 2), "bf16": ("bfloat", 2)}


_time_on_a_core = time.perf_counter if sys.platform == "win32" else time.thread_time
"""Seconds of the calling thread; Windows counts them in steps of some 16 ms, which is longer than what is measured."""


@dataclass(frozen=True)
class Reading:
    """A rate in GFLOP/s or GB/s, and the share of its time that threads were on a core."""

    rate: float
    share: float


@dataclass(frozen=True)
class Meter:
    """`read()` gives GFLOP/s, or GB/s, of one thread. `run` takes `data` and a number of steps: `settling` of them come
    before the `steps` that do `amount` operations, or move so many bytes. `engine` keeps the code."""

    run: Callable[[int, int], float]
    data: Callable[[], np.ndarray]
    settling: int
    steps: int
    amount: float
    engine: llvm.ExecutionEngine

    def read(self) -> float:
        """Of one thread."""
        return self.read_on(1).rate

    def read_on(self, threads: int) -> Reading:
        """Of so many threads at once, each with data of its own, from when the first begins until the last ends."""
        blocks = [self.data() for _ in range(threads)]
        together = threading.Barrier(threads)
        spans: list[tuple[float, float, float]] = []

        def work(block: np.ndarray) -> None:
            self.run(block.ctypes.data, self.settling)
            together.wait()
            start, used = time.perf_counter(), _time_on_a_core()
            self.run(block.ctypes.data, self.steps)
            used = _time_on_a_core() - used
            spans.append((start, time.perf_counter(), used))

        others = [threading.Thread(target=work, args=(block,)) for block in blocks[1:]]
        for thread in others:
            thread.start()
        work(blocks[0])
        for thread in others:
            thread.join()
        seconds = max(max(end for _, end, _ in spans) - min(start for start, _, _ in spans), 1e-9)
        share = sum(used for _, _, used in spans) / (threads * seconds)
        return Reading(threads * self.amount / seconds / 1e9, min(share, 1.0))


@dataclass(frozen=True)
class MemoryLevel:
    """A level of memory: what fits has at most `size` bytes."""

    name: str
    size: int


def levels(target: Target) -> list[MemoryLevel]:
    """From the fastest on; the last has no limit."""
    caches = target.caches
    sizes = [MemoryLevel("L1", caches.l1d), MemoryLevel("L2", caches.l2), MemoryLevel("L3", caches.l3)]
    return [*(level for level in sizes if level.size), MemoryLevel("DRAM", 1 << 62)]


def meters() -> tuple[Meter, Mapping[str, Meter]]:
    """The peak of multiply-adds on float32, and the bandwidth of each level by its name."""
    target = host_target()
    return fma_meter(target), read_meters(target)


def read_meters(target: Target) -> dict[str, Meter]:
    """The bandwidth of each level by its name."""
    found = levels(target)
    return {level.name: read_meter(target, size) for level, size in zip(found, block_sizes(found), strict=True)}


def block_sizes(found: Sequence[MemoryLevel]) -> list[int]:
    """Blocks that lie well inside of their level, and well outside of the one before. The last cache is shared with
    others of whom one may know nothing: a block only somewhat larger than the cache before has the best chance."""
    caches = [level.size for level in found[:-1]]
    inside = [
        min(size // 2, 4 * before) for before, size in zip([*caches[:1], *caches[:-1]], caches, strict=True)
    ]
    return [*inside, 4 * max([*caches, 16 << 20])]


def fma_meter(target: Target, dtype: str = "f32") -> Meter:
    """Independent chains of multiply-adds of f32 or f64 in registers, in GFLOP/s."""
    scalar, size = _SCALARS[dtype]
    lanes = target.vector_bits // (8 * size)
    vector, fma = f"<{lanes} x {scalar}>", f"@llvm.fma.v{lanes}f{8 * size}"
    step = f"call {vector} {fma}({vector} %a{{k}}, {vector} %x, {vector} %x)"
    declared = f"declare {vector} {fma}({vector}, {vector}, {vector})"
    return _chains(target, vector, declared, "", [step], lanes)


def dot_meter(target: Target, dot: Dot) -> Meter:
    """Independent chains of an instruction that adds up groups of products, in GOP/s."""
    sums, name = dot.calls[0]
    element, size = _FACTORS[dot.left.name]
    accumulator = f"<{sums} x {'float' if dot.sums.is_float else 'i32'}>"
    factor = f"<{4 * sums // size} x {element}>"
    setting = f"  %f = bitcast {accumulator} %x to {factor}"
    if dot.accumulates:
        steps = [f"call {accumulator} @{name}({accumulator} %a{{k}}, {factor} %f, {factor} %f)"]
        declared = f"declare {accumulator} @{name}({accumulator}, {factor}, {factor})"
    else:  # a product of the sums themselves, which is not the same in each iteration
        steps = [
            f"bitcast {accumulator} %a{{k}} to {factor}",
            f"call {accumulator} @{name}({factor} %p{{k}}_0, {factor} %f)",
            f"add {accumulator} %a{{k}}, %p{{k}}_1",
        ]
        declared = f"declare {accumulator} @{name}({factor}, {factor})"
    return _chains(target, accumulator, declared, setting, steps, sums * dot.group)


def _chains(target: Target, vector: str, declared: str, setting: str, steps: Sequence[str], terms: int) -> Meter:
    """Chains of `steps`, each of `terms` multiply-adds: texts of an operation on the value %a{k} and on what the steps
    before gave, %p{k}_0, ..."""
    names = [f"%p{{k}}_{n}" for n in range(len(steps) - 1)] + ["%b{k}"]
    body = [
        f"  {name} = {step}".format(k=k) for k in range(CHAINS) for name, step in zip(names, steps, strict=True)
    ]
    lines = [
        declared,
        "define void @meter(ptr %data, i64 %steps) #0 {",
        "entry:",
        f"  %x = load {vector}, ptr %data, align 64",
        setting,
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{k} = phi {vector} [ %x, %entry ], [ %b{k}, %loop ]" for k in range(CHAINS)),
        *body,
        *_end_of_loop(vector, 1, CHAINS),
    ]
    engine, run = _compiled("\n".join(lines), target)
    return Meter(run, lambda: _aligned(16 * CHAINS), STEPS, STEPS, 2.0 * terms * CHAINS * STEPS, engine)


def read_meter(target: Target, size: int) -> Meter:
    """Loads of a block of about `size` bytes, again and again, in GB/s."""
    lanes = target.f32_lanes
    vector, near = f"<{lanes} x float>", LOADS // STREAMS
    step = lanes * near
    # Powers of two, so that a mask starts a part again.
    elements = max(LOADS * lanes, 1 << (size // 4).bit_length() - 1)
    part = elements // STREAMS
    lines = [
        "define void @meter(ptr %data, i64 %steps) #0 {",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{k} = phi {vector} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in range(LOADS)),
        f"  %at = and i64 %i, {part - 1}",
        "  %block = getelementptr float, ptr %data, i64 %at",
    ]
    for k in range(LOADS):
        offset = k // near * part + k % near * lanes
        lines += [
            f"  %p{k} = getelementptr float, ptr %block, i64 {offset}",
            f"  %v{k} = load {vector}, ptr %p{k}, align 64",
            f"  %b{k} = fadd {vector} %a{k}, %v{k}",
        ]
    lines += _end_of_loop(vector, step, LOADS)
    engine, run = _compiled("\n".join(lines), target)
    passes = max(READ_BYTES // 4 // elements, 1)
    return Meter(run, lambda: _aligned(elements), part, part * passes, 4.0 * elements * passes, engine)


def _aligned(elements: int) -> np.ndarray:
    """Numbers in memory of their own (untouched memory is all one page), aligned to a cache line."""
    block = np.full(elements + 16, 0.5, np.float32)
    start = -block.ctypes.data % 64 // 4
    return block[start : start + elements]


def _end_of_loop(vector: str, step: int, accumulators: int) -> list[str]:
    """Count up to %steps, and store all accumulators where the data begin, so that nobody takes them for unused."""
    return [
        f"  %next = add i64 %i, {step}",
        "  %more = icmp slt i64 %next, %steps",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *(f"  store volatile {vector} %b{k}, ptr %data, align 64" for k in range(accumulators)),
        "  ret void",
        "}",
    ]


def _compiled(text: str, target: Target) -> tuple[llvm.ExecutionEngine, Callable[[int, int], float]]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.feature_text, opt=2
    )
    attributes = (
        f"attributes #0 = {{ {target.function_attributes} }}"  # without them LLVM halves wide vectors
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f"{text}\n{attributes}\n"), machine)
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    return engine, prototype(engine.get_function_address("meter"))
