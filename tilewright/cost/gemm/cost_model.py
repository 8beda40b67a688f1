"""The cost model of contractions: cycles of one core for a register tile and its blocks, and the choice among them.

What a decision makes the core do is counted from the target's facts: multiplications and loads of the inner loop,
cache lines that come from each level (from the working sets of the loops), passes over sums, copies. How much of this
the multiplications hide is calibrated once, by `bench/calibrate.py`, on measurements that the repository keeps; see
docs/decisions/0016-cost-model.md. Nothing is measured when compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from math import gcd

from tilewright.cost.core import (
    begin_cycles,
    exposed_parts,
    l1_room,
    l1_sets,
    l2_room,
    l3_room,
    millions,
    one_stream_cycles,
    read_cycles,
    streams,
)
from tilewright.cost.gemm.cache_blocking import (
    Blocks,
    as_blocks_see,
    candidate_blocks,
    may_be_cut,
    unevenness,
)
from tilewright.cost.gemm.panels import MOST_ROWS_OF_STREAMS, streams_of
from tilewright.cost.gemm.register_tile import (
    GemmShape,
    Tile,
    candidate_tiles,
    cycles_per_step,
    registers_per_vector,
    rows_of_remainder,
)
from tilewright.cost.parallel import fork_cycles, greatest_share, tasks_for_all
from tilewright.target.calibration import Exposed
from tilewright.target.target import LINE_BYTES, Target

CROWDED = 4
"""Rows of a tile that one set of L1 may hold, beside the columns."""

CROWDING = 2

LARGE = 512
"""Extent that is assumed where it is not known."""

TYPICAL_COLUMNS = (50, 200, 800, 3200)
"""Columns for which decisions are compared where their number is not known, all as important: positions of images as
they are at the end and at the beginning of networks, lengths of texts."""

CUT_TILES = 3
"""Register tiles, the most promising ones, that are tried with cache blocks."""

MANY_BLOCKS, FEW_BLOCKS = 3, 1
"""Blocks tried for each length of the depth: with the first tile, and with the others."""

MOST_CANDIDATES = 36
"""Bound on the decisions that are compared for one contraction, which takes less than a millisecond."""

TRANSPOSING = 2
"""Passes over the sums that transposing them costs: its shuffles take about as long."""

LEAST_GAIN = 1.03
"""Ratio of times from which on blocks are taken: a smaller gain is not worth their code."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How to compute a contraction: the register tile; blocks in L2 (None: not cut); and, where it
    is not cut, whether column tiles go outside of all lines of rows, so that columns are read once (else inside)."""

    tile: Tile
    blocks: Blocks | None = None
    columns_outside: bool = True

    def __str__(self) -> str:
        if self.blocks is not None:
            b = self.blocks
            return f"tile {self.tile} in blocks of {b.rows} rows, {b.columns} column tiles, {b.depth} of the depth"
        return f"tile {self.tile}" + ("" if self.columns_outside else " line by line")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a decision makes one core do, in cycles as if nothing else had to be done: `multiply` (the inner loops),
    `load` (their loads), bytes from L2, the third and memory, those from memory that are
    prefetched too late as panels are long (`late_prefetch`), `passes` over sums (vectors), elements `copied`, and
    elements of rows that are read one by one, each from a cache line of its own (`scattered_loads`)."""

    multiply: float
    load: float
    l2: float
    l3: float
    memory: float
    late_prefetch: float
    passes: float
    copied: float
    scattered_loads: float

    def cycles(self, exposed: Exposed) -> float:
        """The multiplications, and of all else the part that they do not hide."""
        return (
            self.multiply
            + self.load * exposed.load
            + self.l2 * exposed.l2
            + self.l3 * exposed.l3
            + self.memory * exposed.memory
            + self.late_prefetch * exposed.late_prefetch
            + self.passes * exposed.passes
            + self.copied * exposed.copied
            + self.scattered_loads * exposed.scattered_loads
        )


def cycles(shape: GemmShape, decision: Decision, target: Target) -> float:
    """Cycles of one core for all of it. Columns of unknown number count as a large one, each with its mean part of the
    cycles for typical numbers."""
    if shape.columns is not None:
        return _cycles(assumed(shape), decision, target)
    typical = [-(-n // shape.lanes) for n in TYPICAL_COLUMNS]
    parts = [_cycles(assumed(shape, n), decision, target) / n for n in typical]
    return LARGE * sum(parts) / len(parts)


def _cycles(shape: GemmShape, decision: Decision, target: Target) -> float:
    """Cycles for known extents. Where cores share blocks unevenly, as if all had the greatest share; where
    tiles are fewer than cores, or columns that are read once not the same for all, the mean of one core's cycles and of
    those of all that wait."""
    total = count(shape, decision, target).cycles(exposed_parts(target))
    if decision.blocks is not None:
        return total * LEAST_GAIN * unevenness(shape, decision.tile, decision.blocks, target)
    tiles = _tiles(shape, decision.tile)
    if total > fork_cycles(target) and (tiles < tasks_for_all(1, target) or _reads_once(shape, decision.tile)):
        total *= (1 + greatest_share(tiles, target)) / 2
    return total


def _lacks_streams(tile: Tile, element: int, target: Target) -> bool:
    """Whether the columns of a tile are read in one run of addresses on a core that does better with several."""
    few_rows = tile.rows <= MOST_ROWS_OF_STREAMS and streams(target) > 1
    return few_rows and streams_of(tile, element, target) == 1


def _reads_once(shape: GemmShape, tile: Tile) -> bool:
    """Whether all columns are read for one tile of rows alone."""
    assert shape.rows is not None
    return shape.around * shape.lines == 1 and shape.rows <= tile.rows


def _tiles(shape: GemmShape, tile: Tile) -> int:
    """Register tiles of all of the result, which threads share."""
    assert shape.rows is not None and shape.columns is not None
    return shape.around * shape.lines * -(-shape.rows // tile.rows) * -(-shape.columns // tile.columns)


def count(shape: GemmShape, decision: Decision, target: Target) -> Counts:
    """Count for a contraction of known extents."""
    loops = (
        _cut_loops(shape, decision.tile, decision.blocks, target)
        if decision.blocks
        else _loops(shape, decision, target)
    )
    tile, element = decision.tile, shape.element
    rows, columns, depth = shape.rows, shape.columns, shape.depth
    assert rows is not None and columns is not None and depth is not None
    per_row = loops.depth * element / shape.windows
    panel = tile.columns * tile.lanes * loops.depth * element
    first = (tile.rows * per_row, panel, loops.sums * tile.rows * tile.columns * tile.lanes * element)
    l1 = l1_room(target, "near")
    near = _read(loops.nest, (_near_rows(shape, tile, loops.depth, first, l1), *first[1:]), l1)
    far = _read(loops.nest, first, l2_room(target, "nest"))
    all_rows = shape.around * shape.lines * rows * depth * element / shape.windows
    all_columns = shape.repeats * columns * tile.lanes * depth * element
    results = shape.around * shape.lines * rows * columns * tile.lanes * element
    stays = all_rows + results <= l2_room(target, "nest")  # then the kernel before has left the rows there
    from_l3 = max(0.0, far[1] - all_columns) + (0.0 if stays else far[0] + 2 * results)
    if loops.sums:
        column_tiles = -(-columns // tile.columns)
        kept = shape.around * shape.lines * rows * column_tiles * tile.columns * tile.lanes * element
        from_l3 += max(0.0, far[2] - kept)
    # rows that do not stay in L3 until they are read for the next columns
    again = max(0.0, _read(loops.nest, first, l3_room(target))[0] - all_rows)
    from_l3 = max(0.0, from_l3 - again)
    memory = read_cycles(all_columns, "memory", target) if shape.packed else 0.0
    if _reads_once(shape, tile) and _lacks_streams(tile, element, target):
        memory = one_stream_cycles(memory, target)
    return Counts(
        multiply=loops.multiply,
        load=begin_cycles(loops.loads, "loads", target),
        l2=read_cycles(near[0] + near[1], "l2", target),
        l3=read_cycles(from_l3, "l3", target),
        memory=memory + read_cycles(again, "memory", target),
        late_prefetch=memory if panel > l2_room(target, "panel") and loops.uses_panels_again else 0,
        passes=loops.passes,
        copied=loops.copied,
        scattered_loads=loops.row_reads * _distance(shape, tile, decision.blocks, l1_sets(target)),
    )


@dataclass(frozen=True, slots=True)
class _Loops:
    """The loops of a decision: `nest` around the register tile, from the inside, each with its extent and whether it
    moves rows, columns and sums; `depth` steps of a tile; whether there are `sums` in memory; totals of cycles of the
    inner loops, loads in them, elements of rows read in them, vectors passed over, and elements copied."""

    nest: Sequence[tuple[int, bool, bool, bool]]
    depth: int
    sums: bool
    multiply: float
    loads: float
    row_reads: float
    passes: float
    copied: float

    @property
    def uses_panels_again(self) -> bool:
        """Whether a panel of columns is read for several row tiles before the next one."""
        return any(loop[0] > 1 for loop in takewhile(lambda loop: not loop[2], self.nest))


def _loops(shape: GemmShape, decision: Decision, target: Target) -> _Loops:
    """Of register tiles alone. The last tile of a line overlaps the one before."""
    assert shape.rows is not None and shape.columns is not None and shape.depth is not None
    tile = decision.tile
    n = tile.columns * registers_per_vector(tile.lanes, shape.element, target)
    rows = _tiles_of(shape.rows, tile.rows, rows_of_remainder(tile) if shape.splits_rows else 0)
    columns = _tiles_of(shape.columns, tile.columns, 1 if shape.splits_columns else 0, last=1)  # a part of a vector
    tiles = [(height, n * width // tile.columns, a * b) for height, a in rows for width, b in columns]
    row_tiles, column_tiles = sum(a for _, a in rows), sum(b for _, b in columns)
    steps = shape.around * shape.lines * shape.depth
    lines = (shape.lines * (shape.around // shape.repeats), True, False, True)
    panels = (column_tiles, False, True, True)
    middle = (lines, panels) if decision.columns_outside else (panels, lines)
    return _Loops(
        nest=((row_tiles, True, False, True), *middle, (shape.repeats, True, True, True)),
        depth=shape.depth,
        sums=False,
        multiply=steps * sum(many * cycles_per_step(height, width, target) for height, width, many in tiles),
        loads=steps * sum(many * (height + width) for height, width, many in tiles),
        row_reads=steps * sum(many * height for height, _, many in tiles),
        passes=0,
        copied=0,
    )


def _tiles_of(extent: int, size: int, small: int, last: int = 0) -> list[tuple[int, int]]:
    """Sizes of tiles and how many there are of each: what whole tiles leave is in `small` ones, if there are such. The
    `last` elements of the extent are in no whole tile."""
    if not small or small >= size:
        return [(size, -(-extent // size))]
    whole = (extent - last) // size
    return [(size, whole), (small, -(-(extent - whole * size) // small))]


def _cut_loops(shape: GemmShape, tile: Tile, blocks: Blocks, target: Target) -> _Loops:
    """Of blocks. Rows that are left over in a line have a tile of their own."""
    shape = as_blocks_see(shape, blocks)
    assert shape.rows is not None and shape.columns is not None and shape.depth is not None
    registers = tile.columns * registers_per_vector(tile.lanes, shape.element, target)
    pieces, depth = shape.outer_depth // blocks.depth, blocks.depth * (shape.depth // shape.outer_depth)
    lines = max(1, blocks.rows // shape.rows) if shape.lines > 1 else 1
    whole, left = divmod(blocks.rows // lines, tile.rows)
    row_blocks = -(-shape.rows * shape.lines // blocks.rows)
    column_tiles = -(-shape.columns // tile.columns)
    column_blocks = -(-column_tiles // blocks.columns)
    steps = shape.around * row_blocks * column_blocks * blocks.columns * lines * pieces * depth
    left_step = cycles_per_step(left, registers, target) if left else 0
    vectors = shape.around * row_blocks * blocks.rows * column_blocks * blocks.columns * registers
    copied = shape.around * shape.lines * shape.rows * shape.depth * column_blocks
    return _Loops(
        nest=(
            ((whole + (left > 0)) * lines, True, False, True),
            (blocks.columns, False, True, True),
            (pieces, True, True, False),
            (row_blocks, True, False, True),
            (column_blocks, False, True, True),
            (shape.around, True, shape.repeats > 1, True),
        ),
        depth=depth,
        sums=True,
        multiply=steps * (whole * cycles_per_step(tile.rows, registers, target) + left_step),
        loads=steps * (whole * (tile.rows + registers) + (left + registers if left else 0)),
        row_reads=steps * (blocks.rows // lines),
        passes=(pieces + 1 + (TRANSPOSING if shape.transposed else 0)) * vectors,
        copied=copied if shape.run else 0,
    )


def _near_rows(
    shape: GemmShape, tile: Tile, depth: int, first: tuple[float, float, float], size: float
) -> float:
    """Bytes of a tile's rows that an L1 of `size` bytes reads. Where the elements of a step are contiguous and those of
    a row are not, each step has cache lines of its own; unless these fit beside the panel, the next tiles, which need
    the remainder of them, find them gone."""
    rows, panel, _ = first
    if shape.stride != shape.element:
        return rows
    lines = depth * (LINE_BYTES + (tile.rows - 1) * shape.element) / shape.windows
    return rows if lines + panel <= size else lines


def _read(
    nest: Sequence[tuple[int, bool, bool, bool]], first: tuple[float, float, float], size: float
) -> tuple[float, float, float]:
    """Bytes of rows, columns and sums that come from beyond a cache of `size` bytes: an operand that a loop does not
    move is still there in its next round if all that one round touches fits."""
    rows, columns, sums = read_rows, read_columns, read_sums = first
    for extent, moves_rows, moves_columns, moves_sums in nest:
        fits = rows + columns + sums <= size
        if moves_rows or not fits:
            read_rows *= extent
        if moves_columns or not fits:
            read_columns *= extent
        if moves_sums or not fits:
            read_sums *= extent
        rows *= extent if moves_rows else 1
        columns *= extent if moves_columns else 1
        sums *= extent if moves_sums else 1
    return read_rows, read_columns, read_sums


def _distance(shape: GemmShape, tile: Tile, blocks: Blocks | None, sets: int) -> int:
    """What reading one element of a row costs beside a hit in L1, in that of a line of its own far
    from those of other rows: 1 where rows lie on such lines, CROWDING more where they push one another out."""
    if blocks is not None and shape.run:
        return 0  # they are copied
    lines, remainder = divmod(shape.stride, LINE_BYTES)
    crowded = lines > 0 and not remainder and tile.rows * gcd(lines, sets) > CROWDED * sets
    return (shape.run > 0) + CROWDING * crowded


# The choice


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest decision, its cycles, and the cheapest one that differs: in its blocks, and in its tile."""

    decision: Decision
    cycles: float
    compared: int
    others: tuple[tuple[Decision, float], ...]

    def __str__(self) -> str:
        return str(self.decision)

    @property
    def missed(self) -> list[str]:
        """What was not chosen, and by how much."""
        return [
            f"{other}: {millions(time)} predicted, {millions(self.cycles)} with {self.decision}"
            for other, time in self.others
        ]


def candidates(shape: GemmShape, target: Target) -> list[Decision]:
    """The decisions that are compared for a contraction; unknown extents count as large. None may be possible where
    the result is transposed."""
    known = assumed(shape)
    tiles = candidate_tiles(replace(known, exact_columns=known.part), target)
    found: list[Decision] = []
    for n, tile in enumerate([] if shape.transposed else tiles):
        found.append(Decision(tile))
        if n < CUT_TILES and known.lines * (known.around // known.repeats) > 1:
            found.append(Decision(tile, columns_outside=False))
    cut = candidate_tiles(known, target) if known.exact_columns else tiles
    for n, tile in enumerate(cut[:CUT_TILES]):
        blocks = candidate_blocks(shape, tile, target, FEW_BLOCKS if n else MANY_BLOCKS)
        found += [Decision(tile, b) for b in blocks]
    return found


def assumed(shape: GemmShape, columns: int = LARGE) -> GemmShape:
    """The contraction with a large extent in place of each that is not known, or with so many `columns`; of few rows
    with as many as these may be."""
    return replace(
        shape,
        rows=shape.rows or min(shape.few_rows or LARGE, LARGE),
        columns=shape.columns or columns,
        depth=shape.depth or LARGE,
        outer_depth=shape.outer_depth if shape.depth else LARGE,
        splits_columns=shape.columns is None,
    )


@lru_cache(maxsize=4096)
def choose(shape: GemmShape, target: Target) -> Choice:
    """The decision with the fewest cycles; the first of equal ones."""
    found = candidates(shape, target)
    costs = [cycles(shape, decision, target) for decision in found]
    best = min(range(len(found)), key=costs.__getitem__)
    taken = found[best]
    rivals = (
        [n for n, d in enumerate(found) if d.tile != taken.tile],
        [n for n, d in enumerate(found) if (d.blocks is None) != (taken.blocks is None)],
    )
    others = [min(group, key=costs.__getitem__) for group in rivals if group]
    return Choice(taken, costs[best], len(found), tuple((found[n], costs[n]) for n in dict.fromkeys(others)))


def why_not_transposed(shape: GemmShape, transposed: GemmShape, target: Target) -> str:
    """Why a contraction is better computed as it is than `transposed`; empty where it is not."""
    if not candidates(transposed, target):
        return "no block fits L2"
    across, along = choose(transposed, target).cycles, choose(shape, target).cycles
    return "" if across < along else f"{millions(across)} predicted, {millions(along)} without"


def choose_tile(shape: GemmShape, target: Target) -> Tile:
    """The cheapest register tile of a contraction that is not cut into blocks."""
    return choose(replace(shape, uncut=shape.uncut or "tiles are chosen alone"), target).decision.tile


def why_not_cut(shape: GemmShape, choice: Choice) -> str:
    """Why a contraction has no blocks."""
    if shape.uncut:
        return shape.uncut
    if not may_be_cut(shape, choice.decision.tile):
        return "there are too few tiles"
    cut = [(d, time) for d, time in choice.others if d.blocks is not None]
    if not cut:
        return "no block fits L2"
    (best, time), *_ = cut
    return f"{millions(time)} predicted with {best}, {millions(choice.cycles)} without blocks"
