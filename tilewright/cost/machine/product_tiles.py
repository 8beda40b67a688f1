"""Which tiles a product is cut into, by the cycles that the facts of the machine say.

Tiles [rows, columns] follow each other; panels of the operands over the whole depth, or over a `panel` of it, come into
the middle memory while the last ones are worked on, and steps of the depth into the memories of the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, gcd

from tilewright.cost.machine.ways import MatrixUnit, aligned, copy_cycles, instances, room, shares, way
from tilewright.target.machine import GLOBAL, Accelerator, Route, VectorUnit

MOST = 512
"""Along each loop of a tile that takes several runs of the unit."""

STARTS = 7
"""What a thread does for each step of the depth, in which the unit stands still: it goes on with the loop, waits twice,
and starts two copies and the product."""

STARTS_OF_RUN = 2
"""What it does for each run of a step that takes several: it goes on with their loop, and starts one."""


@dataclass(frozen=True)
class ProductShape:
    """A product [rows, depth] by [depth, columns], `batch` times; bytes of an element of the result, and of what the
    epilogue reads for each. `fast` says along which loops elements of the operands follow each other in memory, as
    letters of `ROLES`."""

    batch: int
    rows: int
    columns: int
    depth: int
    result: int
    beside: int = 0
    fast: tuple[str, str] = ("k", "n")


@dataclass(frozen=True)
class ProductTile:
    """Sizes of tiles, steps of the depth and panels of it, whether buffers are double, and the cycles of all."""

    rows: int
    columns: int
    step: int
    panel: int
    cycles: float
    double: bool = True


def best_tile(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, *, double: bool = True
) -> ProductTile | None:
    """The tile that takes the fewest cycles; None where none fits."""
    best: ProductTile | None = None
    for rows, columns, step, panels in _sizes(shape, unit, machine, 2 if double else 1):
        if best is not None and _least(shape, unit, machine, rows, columns, step) >= best.cycles:
            continue
        for panel in panels:
            found = _estimated(shape, unit, machine, rows, columns, step, panel, double)
            if found is not None and (best is None or found.cycles < best.cycles):
                best = found
    return best


def _least(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, rows: int, columns: int, step: int
) -> float:
    """Cycles in which the unit works, or waits for the thread: no panel does with fewer."""
    tiles = _tiles_of_one(shape, unit, machine, rows, columns)
    return tiles * shape.depth // step * (unit.cycles(rows, columns, step) + STARTS * machine.scalar.issue)


def _tiles_of_one(shape: ProductShape, unit: MatrixUnit, machine: Accelerator, rows: int, columns: int) -> int:
    """How many tiles one unit works on, where the machine has several."""
    tiles = shape.batch * ceil(shape.rows / rows) * ceil(shape.columns / columns)
    if shape.rows % rows or shape.columns % columns:
        return tiles  # some elements are computed again, which must be in order
    return tiles // shares(tiles, instances(machine, unit.memories[2]))


def _sizes(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, copies: int
) -> Iterator[tuple[int, int, int, list[int]]]:
    """Rows, columns, step and panels of tiles that the memories of the unit have room for, large ones first."""
    sides = zip(unit.memories, unit.dtypes, strict=True)
    left, right, sums = (room(machine, memory) // (copies * dtype.bytes) for memory, dtype in sides)
    longest = max(unit.most("k"), MOST)
    steps = _spread(k for k in _divisors(shape.depth) if k <= longest and unit.length("k", k))
    steps = [k for k in steps if k * 32 >= min(shape.depth, 512)] or steps
    panels = _spread(k for k in _divisors(shape.depth) if k * 16 >= min(shape.depth, 512))
    for rows in _lengths(shape.rows, unit, "m"):
        for columns in _lengths(shape.columns, unit, "n"):
            if shape.rows % rows and shape.columns % columns:
                continue  # elements that are computed again along both axes would be written by tiles in any order
            if rows * columns > sums:
                continue
            for step in steps:
                if rows * step <= left and columns * step <= right and unit.run(rows, columns, step):
                    yield rows, columns, step, [panel for panel in panels if panel % step == 0]


def _lengths(extent: int, unit: MatrixUnit, role: str) -> list[int]:
    """Lengths of tiles along an axis: some multiples of 16, what divides the axis, and what one run takes; those that
    are whole runs."""
    found = {*(16, 32, 48, 64, 96, 128, 192, 256, 384, 512), unit.granule(role), unit.most(role)}
    most = max(unit.most(role), MOST)
    taken = {n for n in found if n < min(extent, most + 1) and unit.length(role, n)}
    taken |= {*_spread(n for n in _divisors(extent) if min(extent, 8) <= n <= most and unit.length(role, n))}
    return sorted(taken, reverse=True)


def _spread(sizes: Iterable[int]) -> list[int]:
    """At most `EACH` of the sizes between a power of two and the next: those that powers of two up to 32 divide best,
    and the largest among these."""
    octaves: dict[int, list[int]] = {}
    for n in sizes:
        octaves.setdefault(n.bit_length(), []).append(n)
    return sorted(n for found in octaves.values() for n in sorted(found, key=lambda n: (-gcd(n, 32), -n))[:EACH])


EACH = 2
"""Sizes that are tried between a power of two and the next."""


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def _estimated(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, rows: int, columns: int, step: int, panel: int,
    double: bool,
) -> ProductTile | None:  # fmt: skip
    sides = [(unit.memories[0], unit.dtypes[0].bytes, rows), (unit.memories[1], unit.dtypes[1].bytes, columns)]
    ways = [way(machine, GLOBAL.name, memory) for memory, _, _ in sides]
    out = way(machine, unit.memories[2], GLOBAL.name)
    if None in ways or not out:
        return None
    tiles = _tiles_of_one(shape, unit, machine, rows, columns)
    copies = 2 if double else 1
    needed: dict[str, int] = {unit.memories[2]: copies * rows * columns * unit.dtypes[2].bytes}
    busy: dict[str, float] = {}
    fill = first = 0.0  # of the panels of a tile, and of its first step

    def spend(queue: str, cycles: float) -> None:
        busy[queue] = busy.get(queue, 0.0) + cycles

    for k, ((memory, size, length), path) in enumerate(zip(sides, ways, strict=True)):
        assert path is not None
        needed[memory] = needed.get(memory, 0) + aligned(machine, memory, copies * length * step * size)
        part = copy_cycles(path[-1], *_copied(shape, unit, k, length, step, at_unit=True), size)
        first += part
        spend(path[-1].queue, shape.depth // step * part)
        for route in path[:-1]:
            more = aligned(machine, route.target, copies * length * panel * size)
            needed[route.target] = needed.get(route.target, 0) + more
            once = copy_cycles(route, *_copied(shape, unit, k, length, panel), size)
            fill += once
            spend(route.queue, shape.depth // panel * once)
    products = shape.depth // step * unit.cycles(rows, columns, step)
    runs = unit.runs(rows, columns, step)
    spend("", 0 if runs == 1 else shape.depth // step * runs * STARTS_OF_RUN * machine.scalar.issue)
    spend(unit.multiply.queue, products + unit.clear_cycles(rows, columns))
    drain = _drain(shape, unit, machine, out, rows, columns, needed, spend)
    if any(n > room(machine, memory) for memory, n in needed.items()):
        return None
    whole = panel
    if all(path is not None and len(path) == 1 for path in ways):  # no panels: operands come to the unit at once
        if panel < shape.depth:
            return None
        panel, fill, first = step, first, 0.0  # of the whole depth where that is one step
    each = max(busy.values()) if double else sum(busy.values())
    if double and panel < shape.depth:
        each += fill + drain  # tiles follow each other, and only steps within them overlap
    issue = machine.scalar.issue
    each += (first if double else 0) + (STARTS * shape.depth // step + STARTS) * issue
    return ProductTile(rows, columns, step, whole, fill + tiles * each + drain, double)


def _copied(
    shape: ProductShape, unit: MatrixUnit, operand: int, length: int, depth: int, *, at_unit: bool = False
) -> tuple[int, int]:
    """How many runs of consecutive elements a copy of a part of an operand has, and elements of each. The memory of the
    unit may need them in another order than that in which they come."""
    role = "mn"[operand]
    fast = shape.fast[operand]
    if at_unit and unit.fast[operand] not in ("", fast):
        return length * depth, 1
    return (length, depth) if fast != role else (depth, length)


def _drain(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, out: tuple[Route, ...], rows: int, columns: int,
    needed: dict[str, int], spend: object,
) -> float:  # fmt: skip
    """Cycles of what follows the sums of a tile: copies on the way out, and the vector unit."""
    total = 0.0
    sums = unit.dtypes[2].bytes
    stays = len(out) == 1  # sums lie where a vector unit works, or leave as they are
    for route in out:
        size = shape.result if route is out[-1] else sums
        cycles = copy_cycles(route, rows, columns, size)
        total += cycles
        spend(route.queue, cycles)  # type: ignore[operator]
    between = unit.memories[2] if stays else out[0].target
    vector = next((u for u in machine.units if between in u.memories), None)
    if vector is not None:
        cycles = _of_epilogue(vector, rows * columns)
        total += cycles
        spend(vector.queue, cycles)  # type: ignore[operator]
        kept = 0 if stays else sums
        needed[between] = needed.get(between, 0) + rows * columns * (kept + shape.result + shape.beside) + 256
    return total


def _of_epilogue(vector: VectorUnit, elements: int) -> float:
    return vector.start + ceil(elements / min(vector.lanes.values())) * vector.move
