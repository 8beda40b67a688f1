"""Operands of a contraction in the order in which its nest reads them: packed ahead of time, copied, prefetched."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.panels import is_far, is_prefetched, pays_for_a_copy, run_between_requests, steps_ahead
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of, kind_of, loop_var
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.storage.packing import Packing, identity_packing
from tilewright.schedule.gemm.gemm_axes import bytes_of, element_bytes
from tilewright.schedule.steps.access import elements_read, loads_in, stride_in, variables
from tilewright.schedule.steps.packing import packing_for
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

LONGEST_STRIDE = 16
"""Columns of a run that one load of a vector picks from."""


def pack_constants(s: Schedule, nests: Sequence[Sequence[Op]]) -> None:
    """Lay constant operands out in the order in which the summing nests read them: each its loops, vector last. A nest
    may lie in one before it."""
    for index in kernel_info(s.func).constants:
        operand = s.func.args[index]
        loads = {load: nest for nest in nests for load in loads_in(nest[0]) if load.operands[0] is operand}
        if len(loads) != len(operand.users):
            continue
        packings = {packing_for(load, nest) for load, nest in loads.items()}
        packing = packings.pop() if len(packings) == 1 else None
        if packing is not None:
            s.pack_argument(operand, packing)


def pack_columns(
    s: Schedule,
    nests: Sequence[Sequence[Op]],
    reduction: Sequence[Op],
    around: Sequence[Op],
    rows: Sequence[Op],
) -> None:
    """Copy operands whose columns lie apart in memory into panels, once for each column tile. All `nests` do the same,
    for different rows.

    Elements apart in the vector axis would be gathered one by one in every step of every row tile; rows far apart
    (more than a few cache lines) share few sets of the first-level cache and push one another out.
    """
    v = loop_var(nests[0][-1])
    lanes = extent_of(nests[0][-1]).value
    for loads in zip(*(loads_in(nest[0]) for nest in nests), strict=True):
        load = loads[0]
        operand = load.operands[0]
        stride = stride_in(load, v)
        moving = [axis for axis, i in enumerate(load.attrs["idx"]) if v in i.vars]
        if buffer_type(operand).space != "global" or len(moving) != 1 or not around:
            continue
        if (
            stride == 1
            and not (_is_far(load, reduction) and _is_reused(rows) and _is_read_often(load))
            and not _is_masked(load, nests[0])
        ):
            continue
        panel = _panel(load, moving[0], stride)
        try:
            fill = s.pack(operand, around[-1], panel, only=loads).fill
        except ScheduleError:
            continue
        if panel.factors[moving[0]]:
            _copy_runs(s, operand, fill, lanes)
        s.vectorize(fill[-1], lanes, tail="peel")


def _copy_runs(s: Schedule, operand: Value, fill: Sequence[Op], lanes: int) -> None:
    """Copy what a run of a panel is picked from first, so that the picking needs no conditions."""
    (load,) = (o for o in loads_in(fill[-1]) if o.operands[0] is operand)
    if len(fill) > 2 and "guard" in load.attrs:
        run = s.pack(operand, fill[-3], identity_packing(len(load.attrs["idx"])), only=[load]).fill
        s.vectorize(run[-1], lanes, tail="peel")


def _panel(load: Op, moving: int, stride: Sym | None) -> Packing:
    """Columns innermost; every `stride`-th of them together, so that a vector of them is one load."""
    apart = (
        stride.value if stride is not None and stride.is_const and 1 < stride.value <= LONGEST_STRIDE else 1
    )
    rank = len(load.attrs["idx"])
    factors = tuple((apart,) if axis == moving and apart > 1 else () for axis in range(rank))
    pieces = [axis if axis <= moving or apart == 1 else axis + 1 for axis in range(rank)]
    others = [piece for axis, piece in enumerate(pieces) if axis != moving]
    return Packing(factors, (*others, *([moving + 1] if apart > 1 else []), moving))


def _is_masked(load: Op, nest: Sequence[Op]) -> bool:
    """Whether lanes of a load that is repeated in other steps and rows have conditions, as they have next to padding
    and where nobody knows how many there are; a panel has zeros there instead."""
    v = loop_var(nest[-1])
    if not any(v in c.vars for c in load.attrs.get("guard", ())):
        return False
    (along,) = [i for i in load.attrs["idx"] if v in i.vars]
    others = variables(i for i in load.attrs["idx"] if i is not along)
    again = [o for o in nest[:-1] if loop_var(o) not in others and extent_of(o).is_const]
    columns = extent_of(nest[-1])
    return pays_for_a_copy(
        product(extent_of(o) for o in again if stride_in(load, loop_var(o)) != columns).value
    )


def _is_far(load: Op, reduction: Sequence[Op]) -> bool:
    """Whether one step of the innermost reduction moves the load by many cache lines, in an operand that is not
    packed already."""
    if not reduction:
        return False
    step = stride_in(load, loop_var(reduction[-1]))
    return step is None or not step.is_const or is_far(step.value * element_bytes(load.operands[0]))


def _is_reused(rows: Sequence[Op]) -> bool:
    """Whether a panel serves enough row tiles to pay for copying it."""
    return any(not extent_of(o).is_const or pays_for_a_copy(extent_of(o).value) for o in rows)


def _is_read_often(load: Op) -> bool:
    """Whether the rounds of all loops around it read each element of the operand several times; a copy of what is
    read once only adds to the traffic. What is not known is taken to be read often."""
    rounds = product(extent_of(o) for o in enclosing_loops(load))
    elements = product(buffer_type(load.operands[0]).shape)
    return not (rounds.is_const and elements.is_const) or pays_for_a_copy(rounds.value, elements.value)


def prefetch_panels(s: Schedule, reduction: Op, around: Sequence[Op], target: Target) -> None:
    """Bring packed operands from far memory into the second-level cache before they are needed. `reduction` is the loop
    that reads a panel of them (what it became, where deep sums are cut in parts).

    While one panel is used for several tiles of rows, the next one comes, as slowly as memory delivers it. Of a panel
    that is read once, what later steps read comes: rows that multiply in bursts outrun the hardware's own guesses. With
    one row alone there is hardly any work that memory could be late for."""
    if reduction.parent is None:  # of no rows nothing is left
        return
    packed = [s.func.args[index] for index in kernel_info(s.func).packed]
    loads = [load for load in loads_in(reduction) if load.operands[0] in packed]
    asked: set[Value] = set()
    for load in loads:
        operand = load.operands[0]
        moving = [o for o in around if o.parent is not None and stride_in(load, loop_var(o)) != 0]
        if not moving or operand in asked or not is_prefetched(bytes_of(operand), target):
            continue
        depth = [o for o in enclosing_loops(load) if kind_of(o) == "serial"][-1]
        try:
            if _is_read_again(load, moving[-1], "serial"):
                asked.add(operand)
                _in_long_steps(s, depth)
                s.prefetch(load, moving[-1])
            elif _is_read_again(load, depth, "unroll"):
                _ask_for_later_steps(s, load, depth)
        except ScheduleError:
            continue


def _ask_for_later_steps(s: Schedule, load: Op, depth: Op) -> None:
    """In the steps of `depth`, prefetch what later ones read. ScheduleError where they read less than a line each, or
    no elements a constant distance apart; and in streams, which the hardware's prefetchers follow."""
    step = stride_in(load, loop_var(depth))
    size = step.value * element_bytes(load.operands[0]) if step is not None and step.is_const else 0
    ahead = steps_ahead(size)
    if not ahead:
        raise ScheduleError("a step of the sum reads less than a cache line")
    around = enclosing_loops(load)
    read = elements_read(load, around[around.index(depth) + 1 :]) or 0
    if read * element_bytes(load.operands[0]) > size:
        raise ScheduleError("a step of the sum reads several streams")
    s.prefetch(load, depth, ahead=ahead)


def _in_long_steps(s: Schedule, depth: Op) -> None:
    """Split a loop in steps of several rounds, if it has such a divisor."""
    run = run_between_requests(extent_of(depth).value if extent_of(depth).is_const else 1)
    if run > 1:
        s.split(depth, run)


def _is_read_again(load: Op, loop: Op, kind: str) -> bool:
    """Whether loops of a kind within one round of `loop` read the same elements several times, for other rows."""
    around = enclosing_loops(load)
    within = [o for o in around[around.index(loop) + 1 :] if kind_of(o) == kind and extent_of(o) != 1]
    return any(stride_in(load, loop_var(o)) == 0 for o in within)
