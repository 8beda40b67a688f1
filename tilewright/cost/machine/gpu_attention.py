"""Attention on GPUs: blocks of queries and keys that shared memory holds, and whether one kernel takes less time."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.target.gpu.cuda import STATIC_SHARED
from tilewright.target.gpu.tensor_cores import COPY_BYTES
from tilewright.target.gpu.tensor_cores import ROWS as WARP_ROWS
from tilewright.target.gpu.webgpu import SHARED, Gpu

ELEMENT = 4
"""Bytes of a score, of a weight, and of what is read into shared memory."""

ROWS, KEYS, PARTS = (32, 16, 8, 4, 2, 1), (32, 16, 8), (16, 8, 4, 2, 1)
"""Query rows and keys of a block, and of the values that come into shared memory at a time, the largest first."""

PASSES = 6
"""Times that scores go through memory where the products and the softmax are kernels of their own: written by the
first product, read for the greatest, read and written for the exponentials, read for their sum, and read by the second
product."""


@dataclass(frozen=True)
class Attended:
    """Attention of `heads` over all of a batch: products over `depth`, and `columns` of the values."""

    heads: int
    queries: int
    keys: int
    depth: int
    columns: int


@dataclass(frozen=True)
class BlockSizes:
    """Query rows and keys of a block, elements of the depth, and keys of the values that are in shared memory."""

    rows: int
    keys: int
    depth: int
    values: int


def blocks_for(sizes: Attended, machine: Gpu) -> BlockSizes | None:
    """The largest blocks that leave work for all multiprocessors and fit shared memory; None where none does."""
    memory = machine.memory(SHARED)
    assert memory is not None and memory.bytes is not None
    depth = max(d for d in range(1, min(machine.depth, sizes.depth) + 1) if sizes.depth % d == 0)
    fitting = [
        BlockSizes(rows, keys, depth, values)
        for rows in ROWS if rows < 2 * sizes.queries
        for keys in KEYS
        for values in PARTS
        if values <= keys and _bytes(BlockSizes(rows, keys, depth, values), sizes.columns) <= memory.bytes
    ]  # fmt: skip
    enough = [b for b in fitting if _groups(sizes, b.rows) >= machine.multiprocessors]
    if enough:
        return enough[0]
    return min(fitting, key=lambda b: (abs(b.rows - LEAST_ROWS), -b.keys, -b.values), default=None)


LEAST_ROWS = 8
"""Rows of a block where there are not enough for all multiprocessors: each block reads all keys and values."""


def _bytes(block: BlockSizes, columns: int) -> int:
    """Of the sums, three arrays of scores and weights, parts of all operands, and four numbers for each row, each of
    which begins at a multiple of 16 bytes."""
    of_rows = block.rows * (columns + 3 * block.keys + block.depth + 4)
    return ELEMENT * (of_rows + block.keys * block.depth + block.values * columns) + 16 * 11


def _groups(sizes: Attended, rows: int) -> int:
    return sizes.heads * -(-sizes.queries // rows)


def is_worth_one_kernel(sizes: Attended, rows: int, machine: Gpu) -> bool:
    """With so many query rows of a group, whether scores in shared memory save more time than the groups lose that are
    fewer than those of two products in tiles."""
    link = machine.link
    if link is None:
        return True
    scores = sizes.heads * sizes.queries * sizes.keys
    operations = scores * 2 * (sizes.depth + sizes.columns) / link.operations
    busy = min(1.0, _groups(sizes, rows) / machine.multiprocessors)
    read = ELEMENT * _groups(sizes, rows) * sizes.keys * (sizes.depth + sizes.columns)
    one = max(operations / busy, read / link.bandwidth)
    tiles = -(-sizes.queries // machine.tile)
    apart = ELEMENT * (PASSES * scores + sizes.heads * tiles * sizes.keys * (sizes.depth + sizes.columns))
    return one < operations + apart / link.bandwidth


GROUP_ROWS = (64, 32)
"""Query rows of a group on tensor cores: four warps, or two."""

FRAGMENT_KEYS = (64, 32, 16)
"""Keys of a block on tensor cores, the most first. A thread has half as many scores in registers."""

MOST_WIDTH = 128
"""Elements of a query, and of a value, on tensor cores at most: a thread has half as many sums in registers."""


def warps_for(sizes: Attended) -> tuple[int, int] | None:
    """Query rows and keys of a block on tensor cores; None where heads or queries fill no fragments."""
    rows = next((n for n in GROUP_ROWS if n <= sizes.queries), None)
    widths = (sizes.depth, sizes.columns)
    if rows is None or max(widths) > MOST_WIDTH or any(n % WARP_ROWS for n in widths):
        return None
    return next(((rows, n) for n in FRAGMENT_KEYS if _bytes_of_tiles(rows, n, sizes) <= STATIC_SHARED), None)


def _bytes_of_tiles(rows: int, keys: int, sizes: Attended) -> int:
    """Of 16-bit tiles of all operands, whose rows are 16 bytes longer, and of 16 numbers for each row."""
    elements = rows * sizes.depth + keys * (sizes.depth + sizes.columns)
    longest = (rows + keys + max(keys, sizes.depth, sizes.columns)) * COPY_BYTES
    return 2 * elements + longest + ELEMENT * 16 * rows
