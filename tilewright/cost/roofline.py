"""Cycles of a whole kernel before it is scheduled: a bound by what it computes and by the data that it moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewright.cost.core import Source, move_cycles, multiply_cycles, read_cycles
from tilewright.target.target import Target


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel does: multiply-adds of sums of products by the bytes of what is multiplied, all other scalar
    operations on elements of `element` bytes (weighted as `cost/elementwise.py` says), and bytes that are read and
    written, each with where they are."""

    products: Mapping[int, float] = field(default_factory=dict)
    operations: float = 0
    element: int = 4
    moved: tuple[tuple[float, Source], ...] = ()


def kernel_cycles(work: KernelWork, target: Target, threads: int) -> float:
    """Cycles from the start of the kernel to its end, on so many cores. Multiplications hide a calibrated part of the
    traffic; other work takes as long as the slower of computing and moving. Work of less than `fork_cycles` has one
    core."""
    lanes = max(1, target.vector_bits // (8 * work.element))
    others = work.operations / (lanes * target.pipes.arithmetic * target.calibration.peak)
    if work.products:
        multiplied = sum(multiply_cycles(n, size, target) for size, n in work.products.items())
        cycles = multiplied + others + sum(move_cycles(size, source, target) for size, source in work.moved)
    else:
        cycles = max(others, _read_cycles(work.moved, target))
    return cycles if cycles < target.calibration.fork_cycles else cycles / threads


def _read_cycles(moved: Iterable[tuple[float, Source]], target: Target) -> float:
    """Cycles of a core that does nothing but move these bytes."""
    return sum(read_cycles(size, source, target) for size, source in moved)
