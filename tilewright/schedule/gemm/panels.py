"""Operands of a contraction in the order in which its nest reads them: packed when compiling, copied, prefetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.cost.gemm.panels import (
    PREFETCHED_LINES,
    ColumnReads,
    copies_columns,
    is_far,
    is_prefetched,
    panels_of_a_copy,
    prefetch_distance,
    run_between_requests,
    streams_of,
)
from tilewright.cost.gemm.register_tile import Tile
from tilewright.cost.parallel import ASSUMED_EXTENT
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym, sym
from tilewright.loops.analysis.fields import field_bits
from tilewright.loops.edit import (
    buffer_type,
    enclosing,
    enclosing_loops,
    extent_of,
    kind_of,
    loop_var,
    reason_of,
)
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.loops.storage.packing import WORD_BYTES, Packing, identity_packing
from tilewright.schedule.gemm.dequantize import Dequantized
from tilewright.schedule.gemm.register_tile import Nest
from tilewright.schedule.steps.access import (
    bytes_of,
    element_bytes,
    elements_read,
    iterations_of,
    known,
    loads_in,
    stride_in,
    stride_of,
    takes_field_by,
)
from tilewright.schedule.steps.packing import packing_for
from tilewright.schedule.steps.transpose_tiles import schedule_squares, side_of, transposing
from tilewright.schedule.trace import Schedule
from tilewright.target.target import VECTOR_BYTES, Target

LONGEST_STRIDE = 16
"""Columns of a run that one load of a vector picks from."""


def pack_constants(
    s: Schedule,
    nests: Sequence[Sequence[Op]],
    weights: Sequence[Dequantized] = (),
    parts: Sequence[Op] = (),
    *,
    merged: bool = False,
) -> None:
    """Lay constant operands out in the order in which the summing nests read them: each its loops, vector last. A nest
    may lie in one before it. Elements of less than a byte that `weights` are computed of share bytes or words; loops
    over `parts` of panels leave these whole, and layouts that are `merged` say nothing of how loops are split. What
    reads them rarely takes them as they lie."""
    for operand in constants_of(s.func):
        loads = {load: nest for nest in nests for load in loads_in(nest[0]) if load.operands[0] is operand}
        if len(loads) != sum(not _runs_rarely(user) for user in operand.users):
            continue
        type, bits = buffer_type(operand), field_bits(buffer_type(operand).dtype)
        packings = (packing_for(load, nest, parts) for load, nest in loads.items())
        orders = {p.merged(type.shape) if p is not None and merged else p: p for p in packings}
        packing = next(iter(orders.values())) if len(orders) == 1 else None
        if packing is None:
            continue
        axes = _axes_taken(loads, weights) if bits else {}
        if False in axes and True not in axes:
            packing = packing.in_bytes(axes[False], bits)
        if merged:
            packing = packing.merged(type.shape)
        words = axes.get(True)
        if words is not None and type.shape[words] % (WORD_BYTES * 8 // bits) == 0:
            packing = packing.in_words(words, bits) or packing
        s.pack_argument(operand, packing)


def _runs_rarely(op: Op) -> bool:
    return any(o.attrs.get("rarely") for o in enclosing(op))


def _axes_taken(loads: Iterable[Op], weights: Sequence[Dequantized]) -> dict[bool, int]:
    """The axis of an operand along which elements are taken together, by whether these are of words; none where it is
    not one for all loads."""
    found: dict[bool, set[int | None]] = {}
    for load in loads:
        taken = next((w for w in weights if w.together is not None and w.together in enclosing_loops(load)), None)
        for words in {w.in_words for w in weights if w.together is not None} if taken is None else {taken.in_words}:
            axis = None if taken is None or taken.together is None else _axis_of(load, taken.together)
            found.setdefault(words, set()).add(axis)
    return {words: axis for words, (axis, *others) in found.items() if not others and axis is not None}


def _axis_of(load: Op, loop: Op) -> int | None:
    """The axis that a loop around a load moves it along; None where there is none."""
    found = [axis for axis, i in enumerate(load.attrs["idx"]) if loop_var(loop) in i.vars]
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, eq=False)
class _Columns:
    """An operand that moves with the vectors of a tile in one of its axes, by `stride` elements of memory from lane
    to lane, `step` of that axis, and its load in each of the nests on such tiles."""

    loads: tuple[Op, ...]
    axis: int
    stride: Sym | None
    step: Sym | None

    @property
    def operand(self) -> Value:
        operand: Value = self.loads[0].operands[0]
        return operand


def _columns_of(nests: Sequence[Nest]) -> Iterator[_Columns]:
    """The operands in memory that move with the vectors; all `nests` do the same, for different rows."""
    v = loop_var(nests[0].tile[-1])
    for loads in zip(*(loads_in(nest.loops[0]) for nest in nests), strict=True):
        moving = [axis for axis, i in enumerate(loads[0].attrs["idx"]) if v in i.vars]
        if buffer_type(loads[0].operands[0]).space == "global" and len(moving) == 1:
            step = stride_of(loads[0].attrs["idx"][moving[0]], v)
            yield _Columns(loads, moving[0], stride_in(loads[0], v), step)


def pack_columns(
    s: Schedule,
    nests: Sequence[Nest],
    reduction: Sequence[Op],
    around: Sequence[Op],
    target: Target,
) -> None:
    """Copy operands whose columns lie apart in memory into panels, once for each iteration of the last loop `around`.

    Elements apart in the vector axis would be gathered one by one in every step of every row tile.
    """
    lanes = extent_of(nests[0].tile[-1]).value
    for columns in _columns_of(nests) if around else ():
        load = columns.loads[0]
        reads = _reads_of(load, nests[0], reduction, around[-1])
        if columns.stride == 1 and not copies_columns(reads, target):
            continue
        panel, operand = _strided_panel(columns), columns.operand
        try:
            fill = s.pack(operand, around[-1], panel, only=columns.loads).fill
        except ScheduleError as e:
            s.missed.append(f"columns not copied into panels: {reason_of(e)}")
            continue
        if panel.factors[columns.axis]:
            _copy_runs(s, operand, fill, lanes)
        elif _through_squares(s, fill, target):
            continue
        s.vectorize(fill[-1], lanes, tail="peel")


def pack_all_columns(s: Schedule, nest: Nest, home: Op, target: Target) -> None:
    """Copy all columns that lie apart in memory at the start of each iteration of `home`, into panels as wide as the
    tile."""
    width = iterations_of(nest.tile[1:])
    lanes = extent_of(nest.tile[-1]).value
    for columns in _columns_of([nest]):
        if nest.group:
            _pack_groups(s, columns, nest, width or 1, home)
            continue
        if columns.stride == 1 and not is_far(_bytes_of_step(columns.loads[0], nest.outer)):
            continue
        try:
            fill = s.pack(columns.operand, home, _wide_panels(columns, width or 1), only=columns.loads).fill
            if columns.stride == 1:
                s.vectorize(fill[-1], lanes)
            else:
                _through_squares(s, fill, target)
        except ScheduleError as e:
            s.missed.append(f"columns not copied into panels: {reason_of(e)}")


def _through_squares(s: Schedule, fill: list[Op], target: Target) -> bool:
    """Whether a copy that transposes goes through squares of registers; masked ones, where an axis may be short, as the
    kernel would otherwise be another one for such axes. ScheduleError where a step on the way there is refused."""
    axes = transposing(fill)
    side = 0 if axes is None else side_of(*axes, target)
    if axes is None or not side:
        return False
    masked = target.masked_memory
    if not masked and not all(s.at_least(extent_of(o), side) for o in axes):
        return False
    schedule_squares(s, fill, *axes, side, target, masked=masked)
    return True


def pack_groups(s: Schedule, nests: Sequence[Nest], home: Op, target: Target) -> None:
    """Copy columns of the call at the start of each iteration of `home` into panels in which the elements of a group of
    products lie together."""
    for columns in _columns_of(nests):
        if columns.operand in constants_of(s.func):
            continue
        width = iterations_of(o for o in nests[0].tile if stride_in(columns.loads[0], loop_var(o)) != 0) or 1
        with s.noting("columns not copied in groups"):
            together = _panels_together(columns, nests[0], width, home, target) if columns.stride == 1 else 1
            around = s.split(home, together).outer if together > 1 else home
            _pack_groups(s, columns, nests[0], together * width, around)


def _panels_together(columns: _Columns, nest: Nest, width: int, home: Op, target: Target) -> int:
    """How many panels, which iterations of `home` read, are copied at a time as one that is as wide."""
    run = width * element_bytes(columns.operand)
    depth = iterations_of([*(o for o in nest.outer if o not in enclosing_loops(home)), *nest.group])
    panels = known(extent_of(home))
    if panels is None or depth is None or stride_in(columns.loads[0], loop_var(home)) != width:
        return 1
    return panels_of_a_copy(panels, run * depth, run, target)


def _pack_groups(s: Schedule, columns: _Columns, nest: Nest, width: int, home: Op) -> None:
    """Copy columns into panels in which the elements of a group of products lie together."""
    (group,) = nest.group
    idx = columns.loads[0].attrs["idx"]
    (depth,) = [axis for axis, i in enumerate(idx) if loop_var(group) in i.vars]
    factors = tuple(
        (width,) if axis == columns.axis else (extent_of(group).value,) if axis == depth else ()
        for axis in range(len(idx))
    )
    numbers: list[list[int]] = []
    for pieces in factors:
        first = sum(map(len, numbers))
        numbers.append(list(range(first, first + 1 + len(pieces))))
    (column, lane), (step, within) = numbers[columns.axis], numbers[depth]
    others = [n[0] for axis, n in enumerate(numbers) if axis not in (columns.axis, depth)]
    panel = Packing(factors, (column, *others, step, lane, within))
    *_, lanes, products = s.pack(columns.operand, home, panel, only=columns.loads).fill
    if columns.stride != 1:
        s.vectorize(products)
        return
    s.vectorize(s.collapse(lanes, products), VECTOR_BYTES // element_bytes(columns.operand), tail="peel")


def _copy_runs(s: Schedule, operand: Value, fill: Sequence[Op], lanes: int) -> None:
    """Copy what a run of a panel is picked from first, so that the picking needs no conditions."""
    (load,) = (o for o in loads_in(fill[-1]) if o.operands[0] is operand)
    if len(fill) > 2 and "guard" in load.attrs:
        run = s.pack(operand, fill[-3], identity_packing(len(load.attrs["idx"])), only=[load]).fill
        s.vectorize(run[-1], lanes, tail="peel")


def _strided_panel(columns: _Columns) -> Packing:
    """Columns innermost; of those of a window that moves by several, each `step`-th together, so that a vector of them
    is one load."""
    stride, axis, rank = columns.step, columns.axis, len(columns.loads[0].attrs["idx"])
    if stride is None or not stride.is_const or not 1 < stride.value <= LONGEST_STRIDE:
        return Packing(((),) * rank, (*(k for k in range(rank) if k != axis), axis))
    factors, others = _split_axis(rank, axis, stride.value)
    return Packing(factors, (*others, axis + 1, axis))


def _wide_panels(columns: _Columns, width: int) -> Packing:
    """Panels of so many columns, each with all that is read of them together."""
    factors, others = _split_axis(len(columns.loads[0].attrs["idx"]), columns.axis, width)
    return Packing(factors, (columns.axis, *others, columns.axis + 1))


def _split_axis(rank: int, axis: int, size: int) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """Factors that split one axis in two pieces, numbered as the axis and the one after it; the other pieces."""
    factors = tuple((size,) if k == axis else () for k in range(rank))
    return factors, [k if k < axis else k + 1 for k in range(rank) if k != axis]


def _reads_of(load: Op, nest: Nest, reduction: Sequence[Op], home: Op) -> ColumnReads:
    """How the tiles of an iteration of `home` read columns that move by one element from lane to lane. What the rows of
    a tile share is loaded once for all of them."""
    v = loop_var(nest.tile[-1])
    conditions = [c for c in load.attrs.get("guard", ()) if v in c.vars]
    within = enclosing_loops(load)
    within = within[within.index(home) + 1 :]
    moving = [o for o in within if stride_in(load, loop_var(o)) != 0]
    repeated = [o for o in within if o not in moving and o not in nest.tile]
    reads = prod(_at_most(extent_of(o)) for o in repeated)
    steps, elements = iterations_of(moving), elements_read(load, moving)
    return ColumnReads(
        reads=reads * steps / elements if steps and elements else reads,
        steps=_at_most(extent_of(reduction[-1])) if reduction else 1,
        step=_bytes_of_step(load, reduction),
        vectors=iterations_of(o for o in nest.tile[:-1] if o in moving) or 1,
        lanes=extent_of(nest.tile[-1]).value,
        element=element_bytes(load.operands[0]),
        conditions=len(conditions),
        conditions_move=any(loop_var(o) in c.vars for c in conditions for o in reduction),
    )


def _at_most(extent: Sym) -> int:
    """An extent, or what it is taken for where it is not known."""
    most = extent.bounds[1]
    return ASSUMED_EXTENT if most is None else most if extent.is_const else min(most, ASSUMED_EXTENT)


def _bytes_of_step(load: Op, reduction: Sequence[Op]) -> int | None:
    """By which one step of the innermost reduction moves the load; None where that is not constant."""
    step = stride_in(load, loop_var(reduction[-1])) if reduction else sym(0)
    return None if step is None else known(step * element_bytes(load.operands[0]))


def prefetch_panels(
    s: Schedule, reduction: Op, around: Sequence[Op], target: Target, *, once: int = 0
) -> None:
    """Bring packed operands from memory into L2 before they are needed. `reduction` is the loop that reads a panel of
    them (what it became, where deep sums are added up in blocks).

    While one panel is used for several tiles of rows, the next one comes, as slowly as memory delivers it. Of a panel
    that is read once, what later steps read comes: rows that multiply in bursts outrun the hardware's own guesses. With
    one row alone there is hardly any work that memory could be late for, unless that makes floats of what it reads:
    panels of narrow weights that few rows read `once` are asked for as well, so many lines ahead.

    But not where codes of whole bytes are multiplied as they are, which is for the caller to know: a token of 110
    million weights of 8 bits takes 3.59 ms with requests and 3.29 without, of 4 bits, which are taken apart, 2.5 and
    2.8 (Zen 5)."""
    if reduction.parent is None:  # of no rows nothing is left
        return
    packed = [s.func.args[index] for index in kernel_info(s.func).packed]
    loads = [load for load in loads_in(reduction) if load.operands[0] in packed]
    asked: set[Value] = set()
    for load in loads:
        operand = load.operands[0]
        moving = [o for o in around if o.parent is not None and stride_in(load, loop_var(o)) != 0]
        if not moving or operand in asked:
            continue
        if not once and not is_prefetched(bytes_of(operand), target):
            continue  # narrow weights of one product are few bytes, those of all of them come from memory
        depth = [o for o in enclosing_loops(load) if kind_of(o) == "serial"][-1]
        try:
            if once:
                _ask_for_later_steps(s, load, _moving_it(load) or depth, lines=once)
            elif _is_read_again(load, moving[-1], "serial"):
                asked.add(operand)
                _in_long_steps(s, depth)
                s.prefetch(load, moving[-1])
            elif _is_read_again(load, depth, "unroll"):
                _ask_for_later_steps(s, load, depth)
        except ScheduleError as e:
            s.missed.append(f"panels not prefetched: {reason_of(e)}")


def prefetch_next_panel(s: Schedule, nest: Op, panels: Sequence[Op]) -> None:
    """While parts of a panel of narrow weights are read one after the other, each once, ask for all of the next one,
    which the last of the loops over `panels` that moves them goes to: a part alone would ask for what is next to it,
    too."""
    packed = [s.func.args[index] for index in kernel_info(s.func).packed]
    for load in loads_in(nest):
        moving = [o for o in panels if o.parent is not None and stride_in(load, loop_var(o)) != 0]
        if moving and load.operands[0] in packed:
            with s.noting("panels not prefetched"):
                s.prefetch(load, moving[-1])


def _moving_it(load: Op) -> Op | None:
    """The innermost serial loop around a load each step of which moves it equally far: of words that several steps take
    elements from, one around these."""
    serial = [o for o in enclosing_loops(load) if kind_of(o) == "serial"]
    return next((o for o in reversed(serial) if known(stride_in(load, loop_var(o)) or sym(0))), None)


def _ask_for_later_steps(s: Schedule, load: Op, depth: Op, lines: int = PREFETCHED_LINES) -> None:
    """In the steps of `depth`, prefetch what later ones read. ScheduleError where they read less than a line each, or
    no elements a constant distance apart; and in streams, which the hardware's prefetchers follow."""
    step = stride_in(load, loop_var(depth))
    size = step.value * element_bytes(load.operands[0]) if step is not None and step.is_const else 0
    distance = prefetch_distance(size, lines)
    if not distance:
        raise ScheduleError("a step of the sum reads less than a cache line")
    around = enclosing_loops(load)
    read = elements_read(load, around[around.index(depth) + 1 :]) or 0
    if read * element_bytes(load.operands[0]) > size:
        raise ScheduleError("a step of the sum reads several streams")
    s.prefetch(load, depth, distance=distance)


def _in_long_steps(s: Schedule, depth: Op) -> None:
    """Split a loop into steps of several iterations, if it has such a divisor."""
    run = run_between_requests(known(extent_of(depth)) or 1)
    if run > 1:
        s.split(depth, run)


def _is_read_again(load: Op, loop: Op, kind: str) -> bool:
    """Whether loops of a kind within one iteration of `loop` read the same elements several times, for other rows."""
    around = enclosing_loops(load)
    within = [o for o in around[around.index(loop) + 1 :] if kind_of(o) == kind and extent_of(o) != 1]
    return any(stride_in(load, loop_var(o)) == 0 and not takes_field_by(load, loop_var(o)) for o in within)


# Constant columns that are read once, in several streams. Memory hands over more when the hardware's prefetchers follow
# several runs of addresses at a time than when all that a step of the sum reads lies together: the vectors of a tile's
# columns are cut into groups, each of which is packed as a run of its own, for all steps:
#
#    tile, step, vector, lane    ->    tile, group, step, vector in the group, lane


def cut_in_streams(s: Schedule, loops: list[Op], tile: Tile, element: int, target: Target) -> Op | None:
    """Split the loop over the vectors of a tile, of whose `loops` it is the last but one, into streams of constants of
    so many bytes an element; gives the loop over streams, None where there is only one."""
    streams = streams_of(tile, element, target)
    if streams == 1 or extent_of(loops[-2]) != tile.columns:
        return None
    parts = s.split(loops[-2], tile.columns // streams)
    loops[-2:] = [parts.outer, parts.inner, loops[-1]]
    return parts.outer


def order_of_streams(outer: Sequence[Op], tile: Sequence[Op], nontemporal: Op | None) -> list[Op]:
    """The loops in the order in which their constants are packed: each stream with all its steps."""
    if nontemporal is None:
        return [*outer, *tile]
    return [nontemporal, *outer, *(o for o in tile if o is not nontemporal)]
