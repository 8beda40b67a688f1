"""What one core of this machine can do: fused multiply-adds in registers, and reading from each level of memory.

Meters are loops of LLVM IR. They are read right beside what is compared with them, as clocks and neighbours change.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np

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


@dataclass(frozen=True)
class Meter:
    """`read()` gives GFLOP/s, or GB/s; `engine` keeps the code."""

    read: Callable[[], float]
    engine: llvm.ExecutionEngine


@dataclass(frozen=True)
class Level:
    """A level of memory: what fits has at most `size` bytes."""

    name: str
    size: int


def levels(target: Target) -> list[Level]:
    """From the fastest on; the last has no limit."""
    caches = target.caches
    sizes = [Level("L1", caches.l1d), Level("L2", caches.l2), Level("L3", caches.l3)]
    return [*(level for level in sizes if level.size), Level("DRAM", 1 << 62)]


def meters() -> tuple[Meter, Mapping[str, Meter]]:
    """The peak of multiply-adds on float32, and the bandwidth of each level by its name."""
    target = host_target()
    found = levels(target)
    readers = {
        level.name: read_meter(target, size) for level, size in zip(found, block_sizes(found), strict=True)
    }
    return fma_meter(target), readers


def block_sizes(found: Sequence[Level]) -> list[int]:
    """Blocks that lie well inside of their level, and well outside of the one before. The last cache is shared with
    others of whom one may know nothing: a block only somewhat larger than the cache before has the best chance."""
    caches = [level.size for level in found[:-1]]
    inside = [
        min(size // 2, 4 * before) for before, size in zip([*caches[:1], *caches[:-1]], caches, strict=True)
    ]
    return [*inside, 4 * max([*caches, 16 << 20])]


def fma_meter(target: Target) -> Meter:
    """Independent chains of multiply-adds in registers, in GFLOP/s."""
    vector = f"<{target.f32_lanes} x float>"
    fma = f"@llvm.fma.v{target.f32_lanes}f32"
    lines = [
        f"declare {vector} {fma}({vector}, {vector}, {vector})",
        "define float @meter(ptr %data, i64 %steps) #0 {",
        "entry:",
        f"  %x = load {vector}, ptr %data, align 64",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{k} = phi {vector} [ %x, %entry ], [ %b{k}, %loop ]" for k in range(CHAINS)),
        *(f"  %b{k} = call {vector} {fma}({vector} %a{k}, {vector} %x, {vector} %x)" for k in range(CHAINS)),
        *_end_of_loop(vector, [f"%b{k}" for k in range(CHAINS)], 1),
    ]
    engine, run = _compiled("\n".join(lines), target)
    data = _aligned(64)
    flops = 2.0 * target.f32_lanes * CHAINS * STEPS

    def read() -> float:
        run(data.ctypes.data, STEPS)
        return flops / _seconds(lambda: run(data.ctypes.data, STEPS)) / 1e9

    return Meter(read, engine)


def read_meter(target: Target, size: int) -> Meter:
    """Loads of a block of about `size` bytes, again and again, in GB/s."""
    lanes = target.f32_lanes
    vector, near = f"<{lanes} x float>", LOADS // STREAMS
    step = lanes * near
    # Powers of two, so that a mask starts a part again.
    elements = max(LOADS * lanes, 1 << (size // 4).bit_length() - 1)
    part = elements // STREAMS
    lines = [
        "define float @meter(ptr %data, i64 %steps) #0 {",
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
    lines += _end_of_loop(vector, [f"%b{k}" for k in range(LOADS)], step)
    engine, run = _compiled("\n".join(lines), target)
    data = _aligned(elements)
    passes = max(READ_BYTES // 4 // elements, 1)

    def read() -> float:
        run(data.ctypes.data, part)
        return 4.0 * elements * passes / _seconds(lambda: run(data.ctypes.data, part * passes)) / 1e9

    return Meter(read, engine)


def _aligned(elements: int) -> np.ndarray:
    """Numbers in memory of their own (untouched memory is all one page), aligned to a cache line."""
    block = np.full(elements + 16, 0.5, np.float32)
    start = -block.ctypes.data % 64 // 4
    return block[start : start + elements]


def _end_of_loop(vector: str, accumulators: list[str], step: int) -> list[str]:
    """Count up to %steps, and return something that depends on all accumulators."""
    sums, total = [], accumulators[0]
    for k, accumulator in enumerate(accumulators[1:]):
        sums.append(f"  %t{k} = fadd {vector} {total}, {accumulator}")
        total = f"%t{k}"
    return [
        f"  %next = add i64 %i, {step}",
        "  %more = icmp slt i64 %next, %steps",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *sums,
        f"  %result = extractelement {vector} {total}, i32 0",
        "  ret float %result",
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
    prototype = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64)
    return engine, prototype(engine.get_function_address("meter"))


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
