"""Units of products, ways through the memories, and the cycles that both take."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, parse_sym, var
from tilewright.target.machine import Accelerator, Intrinsic, Route, VectorUnit

ROLES = "mnk"
"""The loops of a product: rows, columns, and the depth along which it sums."""


@dataclass(frozen=True)
class UnitDim:
    """How far one loop of an intrinsic goes: its dim, or "" where the text says a number, and the least and most."""

    name: str = ""
    least: int = 1
    most: int = 1


@dataclass(frozen=True)
class MatrixUnit:
    """An intrinsic, or a vector unit, that adds products of two matrices to sums, with what sets the sums to zero where
    there is such an intrinsic: dtypes and memories of the left matrix, the right one and the sums.

    `dims` are those of rows, columns and depth. `order` are its loops from the outermost on, as letters of `ROLES`: a
    loop that it lacks has one iteration, as the columns have where a matrix is multiplied by a vector. `fast` says for
    both operands and the sums along which loop elements must follow each other ("": any).
    """

    multiply: Intrinsic | VectorUnit
    clear: Intrinsic | None
    dtypes: tuple[DType, DType, DType]
    memories: tuple[str, str, str]
    dims: tuple[UnitDim, UnitDim, UnitDim]
    cleared: tuple[UnitDim, UnitDim] = (UnitDim(), UnitDim())
    order: str = "mkn"
    fast: tuple[str, str, str] = ("", "", "")

    def length(self, role: str, tile: int) -> int | None:
        """How much of a tile's extent one run takes: the most that divides it. None where nothing does."""
        return _length(_limits_of(self.multiply), self.dims[ROLES.index(role)], tile)

    def run(self, m: int, n: int, k: int) -> tuple[int, int, int] | None:
        """The sizes of the runs that a tile takes; None where there are none."""
        found = [self.length(role, tile) for role, tile in zip(ROLES, (m, n, k), strict=True)]
        sizes = [n for n in found if n is not None]
        named = {d.name: n for d, n in zip(self.dims, sizes, strict=False) if d.name}
        return (sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 and _allows(_limits_of(self.multiply), named) else None

    def runs(self, m: int, n: int, k: int) -> int:
        """How many runs a tile takes. Precondition: it has some."""
        return prod(t // r for t, r in zip((m, n, k), self.run(m, n, k) or (m, n, k), strict=True))

    def cycles(self, m: int, n: int, k: int) -> int:
        """Of all runs of a tile. Precondition: it has some."""
        sizes = self.run(m, n, k) or (m, n, k)
        if isinstance(self.multiply, VectorUnit):
            return self.runs(m, n, k) * self.in_lanes(self.multiply, *sizes)
        named = ((d.name, size) for d, size in zip(self.dims, sizes, strict=True) if d.name)
        return self.runs(m, n, k) * _value(self.multiply.cycles, *named)

    def in_lanes(self, unit: VectorUnit, m: int, n: int, k: int) -> int:
        """Of a run of a vector unit, which adds up a row of results at a time."""
        lanes = min(unit.lanes[dtype.name] for dtype in self.dtypes)
        casts = sum(dtype is not self.dtypes[2] for dtype in self.dtypes[:2]) * unit.operations.get("cast", unit.move)
        each = unit.operations["mul"] + unit.operations["add"] + casts
        return ceil(unit.start + m * k * ceil(n / lanes) * each)

    def clearing(self, m: int, n: int) -> tuple[int, int] | None:
        """The sizes of the runs that set a tile's sums to zero; None where no intrinsic does."""
        if self.clear is None:
            return None
        rows, columns = (_length(self.clear.limits, d, tile) for d, tile in zip(self.cleared, (m, n), strict=True))
        return None if rows is None or columns is None else (rows, columns)

    def clear_cycles(self, m: int, n: int) -> int:
        """Of setting the sums of a tile to zero; 0 where that is not its matter."""
        sizes = self.clearing(m, n)
        if sizes is None or self.clear is None:
            return 0
        named = ((d.name, size) for d, size in zip(self.cleared, sizes, strict=True) if d.name)
        return m // sizes[0] * (n // sizes[1]) * _value(self.clear.cycles, *named)

    def most(self, role: str) -> int:
        """The largest size of a run along a loop."""
        return self.dims[ROLES.index(role)].most

    def granule(self, role: str) -> int:
        """What the extents of tiles along a loop are multiples of: the least size that a run takes, and that its limits
        allow."""
        dim = self.dims[ROLES.index(role)]
        sizes = range(dim.least, min(dim.most, dim.least + 1024) + 1)
        limits = _limits_of(self.multiply)
        return next((n for n in sizes if not dim.name or _allows(limits, {dim.name: n})), dim.most)


def lane_unit(unit: VectorUnit, dtypes: tuple[DType, DType, DType]) -> MatrixUnit | None:
    """A vector unit as one that multiplies matrices: a number of the left one by a row of the right one, added to a row
    of sums. None where it has no lanes for these dtypes, or does not multiply or add."""
    has_lanes = unit.memories and all(d.name in unit.lanes for d in dtypes)
    if not has_lanes or not {"mul", "add"} <= unit.operations.keys():
        return None
    whole = UnitDim("", 1, LANE_RUN)
    memory = unit.memories[0]
    return MatrixUnit(unit, None, dtypes, (memory,) * 3, (whole,) * 3, order="mkn", fast=("", "n", "n"))


LANE_RUN = 1024
"""Along each loop of a run of a vector unit that multiplies matrices."""


def _limits_of(unit: Intrinsic | VectorUnit) -> tuple[str, ...]:
    return unit.limits if isinstance(unit, Intrinsic) else ()


@lru_cache(maxsize=65536)
def _length(limits: tuple[str, ...], dim: UnitDim, tile: int) -> int | None:
    for parts in range(1, tile // dim.least + 1):
        size, rest = divmod(tile, parts)
        if rest == 0 and size <= dim.most and (not dim.name or _allows(limits, {dim.name: size})):
            return size
    return None


def _allows(limits: tuple[str, ...], sizes: Mapping[str, int]) -> bool:
    """Whether the limits that speak of no other dims hold."""
    read = map(_condition, limits)
    return all(e.evaluate(dict(sizes)) for e in read if {v.name for v in e.vars} <= sizes.keys())


@lru_cache(maxsize=256)
def _condition(text: str) -> Sym:
    return parse_sym(text, var)


@lru_cache(maxsize=65536)
def _value(cycles: str, *sizes: tuple[str, int]) -> int:
    return int(_condition(cycles).evaluate(dict(sizes)))


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


def copy_cycles(route: Route, runs: int, run: int, bytes: int) -> float:
    """Cycles of a copy of so many runs of consecutive elements, of so many bytes each."""
    return route.start + runs * ceil(run * bytes / route.unit) * route.cycles


def room(machine: Accelerator, name: str) -> int:
    """Bytes of a memory that strategies plan with."""
    memory = machine.memory(name)
    return 1 << 62 if memory is None or memory.bytes is None else memory.bytes


def aligned(machine: Accelerator, name: str, bytes: int) -> int:
    """What a buffer of so many bytes takes in a memory, whose buffers are aligned."""
    memory = machine.memory(name)
    align = 1 if memory is None else memory.align
    return -(-bytes // align) * align


def instances(machine: Accelerator, memory: str) -> int:
    """How many of a memory there are, each beside units of its own: those of the outermost level. 1 where there is one
    for the whole machine, or where its level is within another one."""
    found = machine.memory(memory)
    return machine.levels[0].count if found is not None and found.level and machine.level(found.level) == 0 else 1


def shares(iterations: int, instances: int) -> int:
    """How many instances share some iterations: the most that take equal parts."""
    return next(n for n in range(min(instances, iterations), 0, -1) if iterations % n == 0)
