"""Cycles of a whole kernel before it is scheduled: a bound by what it computes and by the data that it moves, and what
it takes in each of the forms that strategies give it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Literal, TypeVar

from tilewright.cost.core import (
    Source,
    arithmetic_cycles,
    copy_cycles,
    issue_cycles,
    lanes_of,
    move_cycles,
    multiply_cycles,
    read_cycles,
    source_of,
)
from tilewright.cost.gemm.depth_lanes import ADDING_UP
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


def round_trip_cycles(size: float, target: Target) -> float:
    """Cycles of a core that writes so many bytes and reads them again: what it costs that two kernels are not one."""
    return 2 * read_cycles(size, source_of(size, target), target)


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


Form = Literal["tiles", "windows", "rows", "plain"]
"""How a kernel computes sums: in register tiles with lanes along the results, for which what lies otherwise is copied;
in such tiles, whose operands are read where they lie; in rows, with lanes along what is summed, which are added up in
the end; or plainly, one term after the other in memory."""

MOST_APART = 4
"""Elements between neighbours up to which vectors are loaded whole, and shuffled."""

TILE = 4
"""Results of a register tile, or rows in turns, that share a load, at least."""


@dataclass(frozen=True, slots=True)
class ReadOfNest:
    """How a load of a nest moves: by the elements between neighbours along the lanes of results and along those of what
    is summed (None where these differ, or are too many), how many `elements` it reads, and whether some axis of the
    results leaves it where it is (`shared`). Constants (`known`) are laid out as lanes need them."""

    along_results: int | None
    along_sum: int | None
    elements: float
    shared: bool
    known: bool


@dataclass(frozen=True, slots=True)
class NestWork:
    """What one nest of a kernel does before it is scheduled: `elements` results, each a sum of `terms` (0: no sum); for
    each term, or element, the weighted operations (`cost/elementwise.py`) and the loads. Lanes run along `results`
    neighbours, or `summed` ones."""

    elements: float
    terms: float
    operations: float
    reads: tuple[ReadOfNest, ...]
    element: int
    results: int
    summed: int


def form_cycles(form: Form, nests: Iterable[NestWork], arguments: float, target: Target) -> float:
    """Cycles of a core for a kernel of these nests in a form, which reads and writes arguments of so many bytes. For
    comparing forms of one kernel: what all of them do alike is counted roughly."""
    computing = sum(_nest_cycles(form, nest, target) for nest in nests)
    return max(computing, read_cycles(arguments, source_of(arguments, target), target))


def _nest_cycles(form: Form, nest: NestWork, target: Target) -> float:
    full = lanes_of(8 * nest.element, target)
    if not nest.terms:
        lanes = max(1, min(full, nest.results))
        return issue_cycles(
            nest.elements * nest.operations / lanes,
            nest.elements * sum(_loads(r, r.along_results, lanes) for r in nest.reads),
            nest.elements / lanes,
            0,
            target,
        )
    steps = nest.elements * nest.terms
    if form == "plain":
        return issue_cycles(steps * nest.operations, steps * (len(nest.reads) + 1), steps, steps, target)
    by_rows = form == "rows"
    lanes = max(1, min(full, nest.summed if by_rows else nest.results))
    loads = copied = 0.0
    for read in nest.reads:
        stride = read.along_sum if by_rows else read.along_results
        if form == "tiles" and stride not in (0, 1) and not read.known:
            stride, copied = 1, copied + read.elements
        loads += steps * _loads(read, stride, lanes) / (TILE if read.shared else 1)
    waits = steps if lanes == 1 else 0  # nothing else is computed meanwhile
    adding_up = nest.elements * ADDING_UP * ceil(log2(lanes)) if by_rows else 0
    computing = issue_cycles(steps * nest.operations / lanes, loads, 0, waits, target)
    return computing + copy_cycles(copied, target) + adding_up


def _loads(read: ReadOfNest, stride: int | None, lanes: int) -> float:
    """Instructions that load for one element, of vectors of so many."""
    if read.known or stride is None:
        return 1 / lanes if read.known else 1
    return min(1, max(1, stride) / lanes)
