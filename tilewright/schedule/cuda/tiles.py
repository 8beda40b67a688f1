"""Which tile of a product a group has: the largest one that leaves work for all multiprocessors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.cost.typical import TypicalSizes
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.cuda import SIDE, Cuda
from tilewright.target.gpu.webgpu import SMALLER


def choose_tile(
    s: Schedule, tiles: Sequence[tuple[int, int]], axes: Sequence[Sym], row: int, column: int, machine: Cuda
) -> int:
    """The number of the tile, of `tiles` with the largest first, for results of these `axes`; where none leaves work
    for all, the one that leaves most. Of an unknown size the kernel is made for those of a whole tile and more."""
    m, n = axes[row], axes[column]
    rows, columns, *others = TypicalSizes({}).of([m, n, *(e for k, e in enumerate(axes) if k not in (row, column))])[-1]
    rows, columns = _usual(m, rows), _usual(n, columns)
    groups = [-(-rows // t[0]) * -(-columns // t[1]) for t in tiles]
    most = machine.padding * rows * columns
    fitting = [
        k for k, t in enumerate(tiles)
        if t[0] <= _most(m) and t[1] <= _most(n) and groups[k] * t[0] * t[1] <= most
    ]  # fmt: skip
    if not fitting:
        raise ScheduleError(f"{m} x {n} has no tile of at least {SIDE} x {SIDE} that it fills")
    enough = [k for k in fitting if prod(others) * groups[k] >= machine.multiprocessors]
    found = enough[0] if enough else max(fitting, key=groups.__getitem__)
    for extent, size in zip((m, n), tiles[found], strict=True):
        if not s.at_least(extent, size, of_few=True):
            raise ScheduleError(f"{extent} may be less than a tile of {size}")
    return found


def _usual(extent: Sym, typical: int) -> int:
    """How large a size is for which tiles are chosen."""
    high = extent.bounds[1]
    return typical if extent.is_const or high is None else min(typical, high)


def _most(extent: Sym) -> int:
    """Rows or columns that a tile may have."""
    if extent.is_const:
        return extent.value
    high = extent.bounds[1]
    return 1 << 30 if high is None else max(SIDE, high // SMALLER) if high >= SIDE else 0
