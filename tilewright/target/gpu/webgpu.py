"""GPUs as WebGPU describes them: workgroups of threads, memory that a workgroup shares, and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.target.machine import GLOBAL, HostLink, Level, Machine, Memory

LAYER, BAND, GROUP, ROW, THREAD = "layer", "band", "group", "row", "thread"
"""The levels: the grid is of layers of bands of groups of threads; where a machine has rows, a group is of rows."""

GRID = (LAYER, BAND, GROUP)

DEVICE, SHARED, REGISTERS = "scratch", "shared", "reg"
"""Memories beside that of arguments: what all see, what a group has, what a thread has."""

SMALLER = 4
"""Of products with fewer rows than a tile has, tiles are of so small a part of the most rows that there are then."""


@dataclass(frozen=True)
class Gpu(Machine):
    """A GPU, by the limits that its adapter has at least. `threads` are those of a group at most, `alone` those of a
    group that shares nothing, of which a unit then runs several, `bindings` the bytes that one buffer may have, and
    `grid` the groups along one axis. Products are made in tiles of `tile` rows and columns at most, of which a thread
    has `own` of each, and sums of `depth` products at a time: with two operands that is 8 KB of shared memory, half of
    what there is. Rows are summed by groups of `alone` threads, from `long_row` elements on by as many as a group
    has. `multiprocessors` are as many groups as are wanted at least."""

    kind: ClassVar[str] = "gpu"
    keeps_waits: ClassVar[bool] = True

    threads: int = 256
    alone: int = 64
    bindings: int = 128 << 20
    grid: int = 65535
    tile: int = 32
    own: int = 4
    depth: int = 16
    long_row: int = 1024
    multiprocessors: int = 8


WEBGPU = Gpu(
    "webgpu",
    memories=(
        GLOBAL,
        Memory(DEVICE, align=64),
        Memory(SHARED, 16384, 16, GROUP),
        Memory(REGISTERS, 4096, 16, THREAD, constant_sizes=True),
    ),
    levels=(*(Level(name, 65535) for name in GRID), Level(THREAD, 256)),
    link=HostLink(call=50e-6, bus=6e9, operations=5e11, bandwidth=5e10, alone=5e7),
)
"""The limits that every implementation of WebGPU has (section 3.6.2 of the standard). A group of 256 threads is the
largest one; arrays of a thread beyond 4 KB would lie in memory on any GPU. What is said of time is a small GPU that
is part of a CPU's chip, of which no adapter tells: nothing of it was measured."""
