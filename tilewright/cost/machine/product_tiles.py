"""Which tiles a product is cut into, by the cycles that the facts of the machine say.

Tiles [rows, columns] follow each other; panels of the operands over the whole depth, or over a `panel` of it, come into
the middle memory while the last ones are worked on, and steps of the depth into the memories of the unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from tilewright.cost.machine.ways import MatrixUnit, aligned, copy_cycles, room, way
from tilewright.target.machine import GLOBAL, Accelerator, Route, VectorUnit

STARTS = 7
"""What a thread does for each step of the depth, in which the unit stands still: it goes on with the loop, waits twice,
and starts two copies and the product."""


@dataclass(frozen=True)
class ProductShape:
    """A product [rows, depth] by [depth, columns], `batch` times; bytes of an element of the result, and of what the
    epilogue reads for each."""

    batch: int
    rows: int
    columns: int
    depth: int
    result: int
    beside: int = 0


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
    found = (_estimated(shape, unit, machine, *sizes, double) for sizes in _sizes(shape, unit))
    return min((t for t in found if t is not None), key=lambda t: t.cycles, default=None)


def _sizes(shape: ProductShape, unit: MatrixUnit) -> Iterator[tuple[int, int, int, int]]:
    steps = [k for k in _divisors(shape.depth) if k <= unit.most("k")][-8:]
    panels = [k for k in _divisors(shape.depth) if k * 16 >= min(shape.depth, 512)]
    for rows in _lengths(shape.rows, unit.most("m")):
        for columns in _lengths(shape.columns, unit.most("n")):
            if shape.rows % rows and shape.columns % columns:
                continue  # elements that are computed again along both axes would be written by tiles in any order
            for panel in panels:
                for step in steps:
                    if panel % step == 0:
                        yield rows, columns, step, panel


def _lengths(extent: int, most: int) -> list[int]:
    """Lengths of tiles along an axis: some multiples of 16, and what divides the axis."""
    found = {n for n in (16, 32, 48, 64, 96, 128, 192, 256, 384, 512) if n < extent} | {
        n for n in _divisors(extent) if n >= min(extent, 8)
    }
    return sorted(n for n in found if n <= most)


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
    tiles = shape.batch * ceil(shape.rows / rows) * ceil(shape.columns / columns)
    copies = 2 if double else 1
    needed: dict[str, int] = {unit.memories[2]: copies * rows * columns * unit.dtypes[2].bytes}
    busy: dict[str, float] = {}
    fill = first = 0.0  # of the panels of a tile, and of its first step

    def spend(queue: str, cycles: float) -> None:
        busy[queue] = busy.get(queue, 0.0) + cycles

    for k, ((memory, size, length), path) in enumerate(zip(sides, ways, strict=True)):
        assert path is not None
        needed[memory] = needed.get(memory, 0) + aligned(machine, memory, copies * length * step * size)
        runs, run = (length, step) if k == 0 else (step, length)
        part = copy_cycles(path[-1], runs, run * size)
        first += part
        spend(path[-1].queue, shape.depth // step * part)
        for route in path[:-1]:
            more = aligned(machine, route.target, copies * length * panel * size)
            needed[route.target] = needed.get(route.target, 0) + more
            runs, run = (length, panel) if k == 0 else (panel, length)
            whole = shape.depth // panel * copy_cycles(route, runs, run * size)
            fill += copy_cycles(route, runs, run * size)
            spend(route.queue, whole)
    products = shape.depth // step * unit.cycles(rows, columns, step)
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


def _drain(
    shape: ProductShape, unit: MatrixUnit, machine: Accelerator, out: tuple[Route, ...], rows: int, columns: int,
    needed: dict[str, int], spend: object,
) -> float:  # fmt: skip
    """Cycles of what follows the sums of a tile: copies on the way out, and the vector unit."""
    total = 0.0
    sums = unit.dtypes[2].bytes
    for route in out:
        size = shape.result if route is out[-1] else sums
        cycles = copy_cycles(route, rows, columns * size)
        total += cycles
        spend(route.queue, cycles)  # type: ignore[operator]
    between = out[0].target
    vector = next((u for u in machine.units if between in u.memories), None)
    if vector is not None:
        cycles = _of_epilogue(vector, rows * columns)
        total += cycles
        spend(vector.queue, cycles)  # type: ignore[operator]
        needed[between] = needed.get(between, 0) + rows * columns * (sums + shape.result + shape.beside) + 256
    return total


def _of_epilogue(vector: VectorUnit, elements: int) -> float:
    return vector.start + ceil(elements / min(vector.lanes.values())) * vector.move
