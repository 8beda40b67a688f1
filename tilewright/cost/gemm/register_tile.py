"""Register tiles of contractions: what decides about them, and which ones are worth a look.

The inner loop of a contraction multiplies `rows` broadcast elements with `columns` vectors; its accumulators stay in
registers. What a tile costs is for `cost.gemm.cost_model` to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.core import begin_cycles, read_cycles, step_cycles
from tilewright.target.target import Target

MOST_TILES = 9
"""Register tiles that the cost model compares at most."""

MOST_ROWS = 28
MOST_COLUMNS = 16

LEAST_REMAINDER = 2
"""Rows from which on a smaller tile for the last rows is worth its code."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` x `columns` vectors of `lanes` elements each."""

    rows: int
    columns: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns * self.lanes}"


@dataclass(frozen=True, slots=True)
class GemmShape:
    """What decides the schedule of a contraction: extents of `rows`, `columns` (vectors of `lanes` elements of
    `element` bytes) and `depth` (all steps of the reduction); None where only known at run time. Rows of unknown number
    count as `few_rows` where there are no more.

    There are `lines` of so many rows, as in an image, and all of it is done `around` times, `repeats` of which have
    columns of their own. An element of the rows' operand is used by `windows` steps and rows on average; there,
    rows lie `stride` bytes apart (0: not evenly), and `run` elements of one row together (0: the rows themselves
    do). `outer_depth` is the extent of the outermost reduction axis, which blocks may cut. With `exact_columns`
    tiles of blocks must divide the columns; with `packed` they are constants, with `part` a part of such, or bytes
    of the call that are copied in groups: where no tile divides them, they could not be packed ahead of time, or
    not without conditions. A `transposed` result is contiguous in its rows, and is transposed from the sums of
    blocks. `splits_rows` and `splits_columns` say that the last ones have smaller tiles, as their number is not
    known: of half the rows, and of one vector. With `along_depth` both operands lie in memory along the depth, so
    that lanes may run along it. Columns that are computed from narrower constants are `widened` for so many steps at a
    time (0: they are not). `uncut` says why no blocks can be made, if so.
    """

    rows: int | None
    columns: int | None
    depth: int | None
    lanes: int
    element: int = 4
    lines: int = 1
    around: int = 1
    repeats: int = 1
    windows: float = 1.0
    stride: int = 0
    run: int = 0
    outer_depth: int = 1
    exact_columns: bool = False
    packed: bool = False
    part: bool = False
    transposed: bool = False
    splits_rows: bool = False
    splits_columns: bool = False
    along_depth: bool = False
    few_rows: int | None = None
    widened: int = 0
    uncut: str = ""


def registers_per_vector(lanes: int, element: int, target: Target) -> int:
    """Registers that a vector of so many elements takes."""
    return max(1, 8 * lanes * element // target.vector_bits)


def registers_used(tile: Tile, element: int, target: Target) -> int:
    """Accumulators, one row of column vectors, and a broadcast element where it needs a register: with AVX-512 an FMA
    reads it from memory, unless several columns share it."""
    columns = tile.columns * registers_per_vector(tile.lanes, element, target)
    return tile.rows * columns + columns + (0 if target.embedded_broadcast and tile.columns == 1 else 1)


MOST_FEW = 8
"""Rows that are one tile at most where weights are widened in registers: more share a panel of wide ones."""

WIDENED = 0.8
"""Cycles that a vector of weights takes at least to be widened and multiplied by one row."""

NEARLY_LEAST = 1.1
"""Cycles of a vector, as a multiple of those in the widest panel, up to which wider panels gain nothing. Machines that
begin a multiplication of such vectors in a cycle, as Zen 4 does, take more than `WIDENED` in any panel."""

CONSTANTS_OF_WIDENING = 4
"""Registers with numbers that it takes to make floats of weights."""

MOST_HELD = 2
"""Vectors of weights that wait in registers at most while those of several steps are widened: of more steps, those of a
column are multiplied before the next one is widened."""

WIDENING = CONSTANTS_OF_WIDENING + 2
"""Registers that hold these, and weights of one row while they are made floats."""


def holds_sums_of_groups(tile: Tile, element: int, target: Target) -> bool:
    """Whether the sums of a group of terms and those of all groups are in registers, while weights are widened."""
    sums = tile.rows * tile.columns * registers_per_vector(tile.lanes, element, target)
    return 2 * sums + WIDENING <= target.vector_registers


def cycles_per_step(rows: int, columns: int, target: Target) -> float:
    """Cycles that a step of the reduction takes at least for a tile of `columns` registers: bound by FMAs, by loads,
    by the latency of its chains of sums, or by the number of instructions."""
    folded = target.embedded_broadcast and columns == 1
    instructions = rows * columns + columns + (0 if folded else rows) + LOOP_INSTRUCTIONS
    return step_cycles(rows * columns, rows + columns, instructions, CHAIN_SLACK, target)


def least_rows_of_one_tile(tile: Tile, element: int, target: Target) -> int:
    """From how many rows on a tile of several is to compute all rows of an unknown number: where less than half of it
    is in use a smaller one is faster, and so is one of those rows that are free: that take hardly longer than a single
    row, or than L2 takes to give the columns. That one has a kernel of its own, as calls often have one."""
    columns = tile.columns * registers_per_vector(tile.lanes, element, target)
    waiting = read_cycles(columns * target.vector_bits / 8, "l2", target)
    alone = max(cycles_per_step(1, columns, target), waiting)
    free = max(n for n in range(1, tile.rows + 1) if n == 1 or cycles_per_step(n, columns, target) <= alone)
    return 2 if tile.rows <= free + 1 else max(tile.rows // 2 + 1, min(free + 2, tile.rows))


LOOP_INSTRUCTIONS = 3
CHAIN_SLACK = 1.15
"""Independent sums that are wanted, as a multiple of those that just hide the latency of a multiply-add: with just as
many, units now and then wait for one another."""

LOAD_SHARE = 0.25
"""Part of a cycle that a load costs in the first comparison of tiles."""


def cost_of_step(rows: int, columns: int, target: Target) -> float:
    """Cycles of a step if all data were near, with what its loads cost beside the FMAs they hide behind."""
    return cycles_per_step(rows, columns, target) + LOAD_SHARE * (rows + columns)


def candidate_tiles(shape: GemmShape, target: Target) -> list[Tile]:
    """The tiles with the least count of cycles if all data were near, the best first; extents must be known."""
    assert shape.rows is not None and shape.columns is not None
    per_vector = registers_per_vector(shape.lanes, shape.element, target)
    found: dict[Tile, float] = {}
    for columns in range(1, min(MOST_COLUMNS, shape.columns) + 1):
        if shape.exact_columns and shape.columns % columns:
            continue
        for rows in _rows_of_tiles(shape, columns, target):
            work = -(-shape.rows // rows) * -(-shape.columns // columns)
            found[Tile(rows, columns, shape.lanes)] = work * cost_of_step(rows, columns * per_vector, target)
    best = sorted(found, key=lambda tile: (found[tile], -tile.columns))
    return best[:MOST_TILES] or [Tile(1, 1, shape.lanes)]


def columns_of_panel(tile: Tile, shape: GemmShape, target: Target) -> int:
    """Vectors of columns that lie together where weights are widened for any number of rows: those of whole tiles, and
    as many as a single row needs, whose sums wait for one another else. Columns of a part are whole panels."""
    per_vector = registers_per_vector(shape.lanes, shape.element, target)
    most = -(-(shape.columns or tile.columns) // tile.columns) * tile.columns
    widths = [n for n in range(tile.columns, most + 1, tile.columns) if not (shape.part and most % n)]
    widths = [n for n in widths if n <= MOST_COLUMNS] or widths[:1]
    each = [cycles_per_step(1, n * per_vector, target) / (n * per_vector) for n in widths]
    enough = max(WIDENED, NEARLY_LEAST * min(each))
    return next(n for n, cycles in zip(widths, each, strict=True) if cycles <= enough)


def rows_of_few(shape: GemmShape, target: Target) -> int:
    """Rows up to which these are one tile in some part of a panel's columns."""
    rows = range(MOST_FEW, 1, -1)
    return next((n for n in rows if _fits(Tile(n, 1, shape.lanes), shape, target)), 1)


def tile_of_few(rows: int, panel: int, shape: GemmShape, target: Target) -> Tile:
    """The tile of so few rows with the most columns of those that divide a panel's."""
    widths = [n for n in range(panel, 0, -1) if panel % n == 0]
    found = (Tile(rows, n, shape.lanes) for n in widths)
    return next((t for t in found if _fits(t, shape, target)), Tile(rows, 1, shape.lanes))


def tile_of_groups(panel: int, shape: GemmShape, target: Target) -> Tile | None:
    """The tile with columns that divide a panel's in which both the sums of a group and those of all groups are in
    registers, and columns that are widened already. None where a tile would be all columns, which rows were to share
    a copy of."""
    per_vector = registers_per_vector(shape.lanes, shape.element, target)
    found = []
    for columns in (n for n in range(1, panel + 1) if panel % n == 0 and n != shape.columns):
        row = 2 * columns * per_vector
        rows = min((target.vector_registers - columns * per_vector - 1) // row, shape.rows or MOST_ROWS)
        if rows > 0:
            cycles = cycles_per_step(rows, columns * per_vector, target)
            found.append((cycles / (rows * columns), -rows * columns, Tile(rows, columns, shape.lanes)))
    return min(found, key=lambda f: f[:2])[2] if found else None


def columns_of_byte_panel(pieces: int, shape: GemmShape, target: Target) -> int:
    """Vectors of columns that lie together where rows are bytes, so many for each element: as many as are one tile of
    two rows, so that one and two rows read all of a panel at once, as memory is read fastest. Columns of a part are
    whole panels, and others are where that takes no panels below `NARROWEST` of the widest: the last one would be
    multiplied as a whole, and each result stored under a condition."""
    most = shape.columns or 1
    widths = [n for n in range(most, 0, -1) if _holds_bytes(Tile(2, n, shape.lanes), pieces, shape, target)]
    whole = [n for n in widths if not most % n and (shape.part or n >= NARROWEST * widths[0])]
    return next(iter(whole or widths), 1)


def tile_of_bytes(
    rows: int | None, panel: int, pieces: int, shape: GemmShape, target: Target
) -> Tile | None:
    """The tile of so few rows, or of many (None), with columns that divide a panel's: of few rows the one with the most
    columns, of many the one that takes the fewest cycles. None where there is none."""
    per_vector = registers_per_vector(shape.lanes, shape.element, target)
    widths = [n for n in range(panel, 0, -1) if panel % n == 0]
    found: list[tuple[float, Tile]] = []
    heights = [rows] if rows else range(1, MOST_ROWS + 1)
    for tile in (Tile(n, columns, shape.lanes) for columns in widths for n in heights):
        registers = tile.columns * per_vector
        if _holds_bytes(tile, pieces, shape, target):
            cycles = cost_of_step(tile.rows * pieces, registers, target)
            cycles += begin_cycles(CODES * registers, "arithmetic", target)
            found.append((0.0 if rows else cycles / (tile.rows * tile.columns), tile))
    return min(found, key=lambda f: f[0])[1] if found else None


def _holds_bytes(tile: Tile, pieces: int, shape: GemmShape, target: Target) -> bool:
    """Whether registers hold the sums of a group of each of so many pieces of rows, those of all groups, and the codes
    of a step."""
    registers = tile.columns * registers_per_vector(tile.lanes, shape.element, target)
    return registers * (tile.rows * (pieces + 1) + 1) + SPARE_OF_BYTES <= target.vector_registers


NARROWEST = 0.5
"""Share of the widest panel's columns from which on panels that divide all columns are better. Of 2,048 columns 96 at a
time the last 64 would be multiplied as 96, 3 % more, and 512 rows by 768 x 2,048 of 4 bits with the product of a gate
behind it took 5.4 ms in place of 5.75 (rows of 8 bits, one thread, Zen 4)."""

CODES = 2
"""Instructions that take a vector of codes from halves of bytes: a shift or none, a mask, and their load."""

SPARE_OF_BYTES = 2
"""Registers for a mask of halves of bytes, and for what is broadcast."""


def least_rows_of_few(tile: Tile) -> int:
    """From how many rows on a tile of few is for these: more than half of it is in use, and a single row is alone."""
    return tile.rows // 2 + 1


def _fits(tile: Tile, shape: GemmShape, target: Target) -> bool:
    """Whether sums are in registers, and the weights of all steps that are widened together."""
    columns = tile.columns * registers_per_vector(tile.lanes, shape.element, target)
    return (tile.rows + min(shape.widened, MOST_HELD)) * columns + CONSTANTS_OF_WIDENING <= target.vector_registers


def _rows_of_tiles(shape: GemmShape, columns: int, target: Target) -> set[int]:
    """As many rows as registers hold, and as many as make equal tiles, or one more of these."""
    assert shape.rows is not None
    row = columns * registers_per_vector(shape.lanes, shape.element, target)
    if shape.rows == 1:  # each column is used once, read from memory by the FMA
        tile = Tile(1, columns, shape.lanes)
        whole = holds_sums_of_groups(tile, shape.element, target)
        if shape.widened > MOST_HELD:
            whole = _fits(tile, shape, target)
        return {1} if (whole if shape.widened else row + 2 <= target.vector_registers) else set()
    least = registers_used(Tile(1, columns, shape.lanes), shape.element, target)
    most = min(MOST_ROWS, shape.rows, (target.vector_registers - least) // row + 1)
    if most < 1:
        return set()
    tiles = -(-shape.rows // most)
    return {most, -(-shape.rows // tiles), -(-shape.rows // (tiles + 1))}


def rows_of_remainder(tile: Tile) -> int:
    """Rows of the smaller tiles of those that whole tiles leave, where the number of rows is not known; 0 where these
    are not worth their code."""
    rows = tile.rows // 2
    return rows if rows >= LEAST_REMAINDER else 0
