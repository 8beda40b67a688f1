"""Default schedules: what to do with a kernel when nobody says otherwise, from the target's facts alone."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.diag import Remark, ScheduleError, failure
from tilewright.ir.sym import Sym, sym
from tilewright.loops.conditions.specialize import for_other_dims, specialize_less
from tilewright.loops.counts import iterations
from tilewright.loops.edit import extent_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lower import Lowered
from tilewright.schedule.conv.fused_window import schedule_banded
from tilewright.schedule.conv.sliding_window import schedule_windows
from tilewright.schedule.conv.unpack_output import schedule_unblocked
from tilewright.schedule.conv.winograd import schedule_rows_of_tiles, schedule_tiled
from tilewright.schedule.gemm.attention import schedule_attention
from tilewright.schedule.gemm.contraction import schedule_contraction
from tilewright.schedule.gemm.recurrence import schedule_recurrence
from tilewright.schedule.maps.elementwise import schedule_maps
from tilewright.schedule.maps.opaque import schedule_own_loops
from tilewright.schedule.rows.row_reduction import schedule_dot_products, schedule_rows, schedule_sums
from tilewright.schedule.steps.nontemporal import stream_results
from tilewright.schedule.trace import Schedule, with_otherwise
from tilewright.target.target import Target

_BY_KIND = {
    "attention": (schedule_attention, schedule_maps),
    "contraction": (schedule_windows, schedule_dot_products, schedule_contraction, schedule_maps),
    "tiled": (schedule_tiled, schedule_rows_of_tiles, schedule_maps),
    "rows of tiles": (schedule_rows_of_tiles, schedule_maps),
    "banded": (schedule_banded, schedule_maps),
    "unblocked": (schedule_unblocked, schedule_maps),
    "reduce": (schedule_windows, schedule_sums, schedule_contraction, schedule_maps),
    "row": (schedule_rows, schedule_maps),
    "map": (schedule_maps,),
    "irregular": (schedule_recurrence, schedule_own_loops),
}

_IN_STEPS = ("contraction", "reduce")
"""Kinds of kernels whose tiles for small dims are chosen in steps; the others have one kernel for all of these."""

_FOR_OTHER_DIMS = {"tiled": "rows of tiles"}
"""Kinds whose kernel for other dims is of a kind of its own."""


def schedule_kernel(lowered: Lowered, kind: str, target: Target, remarks: list[Remark]) -> Lowered:
    """Schedule a freshly lowered kernel; the first schedule for its kind that applies is taken.

    A schedule may suppose that dims are large; its kernel is then joined with one for smaller dims. Returns the kernel
    to use: a schedule that gives up halfway leaves its kernel unused. The steps are kept in `KernelInfo.schedule`.
    """
    work = total_work(lowered)
    is_empty = work.is_const and work.value == 0  # tensors without elements: there is nothing to decide
    found = lowered.clone() if is_empty else _for_all_dims(lowered, kind, target, remarks)
    found.func.info = replace(kernel_info(found.func), work=work)
    return found


def schedule_plainly(
    lowered: Lowered, kind: str, target: Target, remarks: list[Remark], error: Exception
) -> Lowered:
    """A kernel that takes the place of one whose schedule failed with `error`, as none should: a defect costs time, not
    the model. It has the simplest schedule of its kind, or none where that fails, too; a remark asks for a report."""
    remarks.append(failure("schedule", lowered.func.name, error, "it has its simplest schedule, and is slow"))
    candidate = lowered.clone()
    s = Schedule(candidate.func)
    try:
        _BY_KIND.get(kind, (schedule_maps,))[-1](s, candidate, target)
    except Exception as e:
        remarks.append(failure("schedule", lowered.func.name, e, "it has no schedule, and is slow"))
        candidate, s = lowered.clone(), Schedule(lowered.func)
    candidate.func.info = replace(
        kernel_info(candidate.func), schedule=s.lines(), work=total_work(lowered)
    )
    return candidate


def _for_all_dims(lowered: Lowered, kind: str, target: Target, remarks: list[Remark]) -> Lowered:
    """The kernel for large dims and those for smaller ones, or one for all dims where these would not go together."""
    large = _scheduled(lowered, kind, target, remarks, supposing=True)
    info = kernel_info(large.func)
    if not info.specialized_for:
        return large
    others = lowered.clone()
    if (specialize_less(others.func, info.specialized_for) and kind in _IN_STEPS) or kind in _FOR_OTHER_DIMS:
        small = _for_all_dims(others, _FOR_OTHER_DIMS.get(kind, kind), target, [])
    else:
        small = _scheduled(others, kind, target, [], supposing=False)
    steps = with_otherwise(info.schedule, kernel_info(small.func).schedule)
    try:
        for_other_dims(large.func, small.func, lowered.func.dims)
    except ScheduleError as e:
        remarks.append(Remark("schedule", f"{lowered.func.name}: a kernel for large dims", str(e)))
        return _scheduled(lowered, kind, target, [], supposing=False)
    large.func.info = replace(kernel_info(large.func), schedule=steps)
    return large


def _scheduled(
    lowered: Lowered, kind: str, target: Target, remarks: list[Remark], *, supposing: bool
) -> Lowered:
    attempts = _BY_KIND.get(kind, ())
    for attempt in attempts[-1:] if _is_empty(lowered) else attempts:
        candidate = lowered.clone()
        s = Schedule(candidate.func, supposing)
        try:
            attempt(s, candidate, target)
        except ScheduleError as e:
            remarks.append(Remark("schedule", f"{lowered.func.name}: {attempt.__name__}", str(e)))
            continue
        stream_results(s, target)
        remarks += [Remark("tiling", lowered.func.name, reason) for reason in s.missed]
        candidate.func.info = replace(kernel_info(candidate.func), schedule=s.lines())
        return candidate
    return lowered.clone()


def _is_empty(lowered: Lowered) -> bool:
    """Whether a loop of the kernel never runs: tiles of no elements are nothing to choose sizes for."""
    return any(extent_of(o) == 0 for st in lowered.stages for o in (*st.axes, *st.reduce))


def total_work(lowered: Lowered) -> Sym:
    """Elements computed by all stages, reduction steps counted singly; for operators with loops of their own, what
    these execute."""
    if not lowered.stages:
        return iterations(lowered.func)
    total = sym(0)
    for stage in lowered.stages:
        count: Sym = sym(prod(stage.tiles))  # elements of one round
        for loop in (*stage.axes, *stage.reduce):
            count = count * extent_of(loop)
        total = total + count
    return total
