"""Units of products, ways through the memories, and the cycles that both take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.ir.dtype import DType
from tilewright.ir.sym import parse_sym, var
from tilewright.target.machine import Accelerator, Intrinsic, Route


@dataclass(frozen=True)
class MatrixUnit:
    """An intrinsic that adds products of two matrices to sums, with what sets the sums to zero: dtypes and memories of
    the left matrix, the right one and the sums."""

    multiply: Intrinsic
    clear: Intrinsic
    dtypes: tuple[DType, DType, DType]
    memories: tuple[str, str, str]

    def cycles(self, m: int, n: int, k: int) -> int:
        """Of one run."""
        return _value(self.multiply, m, n, k)

    def clear_cycles(self, m: int, n: int) -> int:
        """Of setting the sums to zero."""
        return _value(self.clear, m, n, 1)

    def most(self, dim: str) -> int:
        """The largest size along one of the dims m, n and k."""
        return self.multiply.sizes[dim][1]


@lru_cache(maxsize=4096)
def _value(intrinsic: Intrinsic, m: int, n: int, k: int) -> int:
    return int(parse_sym(intrinsic.cycles, var).evaluate({"m": m, "n": n, "k": k}))


@lru_cache(maxsize=256)
def way(machine: Accelerator, source: str, target: str) -> tuple[Route, ...] | None:
    """The fewest routes from one memory to another; None where there is no way."""
    pending: deque[tuple[Route, ...]] = deque([()])
    seen = {source}
    while pending:
        path = pending.popleft()
        at = path[-1].target if path else source
        if at == target:
            return path
        for route in machine.routes:
            if route.source == at and route.target not in seen:
                seen.add(route.target)
                pending.append((*path, route))
    return None


def copy_cycles(route: Route, runs: int, run_bytes: int) -> float:
    """Cycles of a copy of so many runs of consecutive elements."""
    return route.start + runs * ceil(run_bytes / route.unit) * route.cycles


def room(machine: Accelerator, name: str) -> int:
    """Bytes of a memory that strategies plan with."""
    memory = machine.memory(name)
    return 1 << 62 if memory is None or memory.bytes is None else memory.bytes


def aligned(machine: Accelerator, name: str, bytes: int) -> int:
    """What a buffer of so many bytes takes in a memory, whose buffers are aligned."""
    memory = machine.memory(name)
    align = 1 if memory is None else memory.align
    return -(-bytes // align) * align
