"""Cycles of a whole kernel before it is scheduled: a bound by what it computes and by the data that it moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.cost.core import (
    Source,
    arithmetic_cycles,
    lanes_of,
    move_cycles,
    multiply_cycles,
    read_cycles,
)
from tilewright.cost.parallel import fork_cycles
from tilewright.target.target import Target

K = TypeVar("K")


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
    lanes = lanes_of(8 * work.element, target)
    others = arithmetic_cycles(work.operations, lanes, target)
    if work.products:
        multiplied = sum(multiply_cycles(n, size, target) for size, n in work.products.items())
        cycles = multiplied + others + sum(move_cycles(size, source, target) for size, source in work.moved)
    else:
        cycles = max(others, _read_cycles(work.moved, target))
    return cycles if cycles < fork_cycles(target) else cycles / threads


SLOW = 0.1
"""Share of what the machine could do below which a kernel is named."""

SCALAR = 0.3
"""Share below which a kernel of several operators is made otherwise, where that is faster: about that of loops without
vectors on machines of 128 bits, and far above it on wider ones."""

LEAST_LOST = 20_000
"""Cycles that a kernel loses at least before anybody hears of it, a few microseconds."""


LITTLE = 0.0005
"""Share of a program's cycles that all kernels take together whose code is made quickly. That code takes two to four
times as long as LLVM's best, so the program takes a thousandth longer at most."""

WORTH_LANES = 4
"""Iterations of a loop from which on vectors of it are wanted."""


def is_worth_vectors(iterations: int | None) -> bool:
    """Whether so many iterations (None: not known) are enough for vectors."""
    return iterations is None or iterations >= WORTH_LANES


def is_below(cycles: float, best: float, share: float) -> bool:
    """Whether a kernel of so many cycles does less than a `share` of what the machine could, in the `best` case, and
    loses enough to tell of."""
    return best < share * cycles and cycles - best >= LEAST_LOST


def little_ones(cycles: Mapping[K, Sequence[float]]) -> set[K]:
    """The kernels that take least, as many as take `LITTLE` together. Each has its cycles for several sizes of a
    program's dims, of which those count where its share is greatest."""
    totals = [sum(of_size) or 1.0 for of_size in zip(*cycles.values(), strict=True)]
    shares = {k: max(c / t for c, t in zip(found, totals, strict=True)) for k, found in cycles.items()}
    little: set[K] = set()
    left = LITTLE
    for kernel, share in sorted(shares.items(), key=lambda entry: entry[1]):
        left -= share
        if left < 0:
            break
        little.add(kernel)
    return little


def _read_cycles(moved: Iterable[tuple[float, Source]], target: Target) -> float:
    """Cycles of a core that does nothing but move these bytes."""
    return sum(read_cycles(size, source, target) for size, source in moved)
