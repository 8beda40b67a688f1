"""Why each loop of a kernel is run as it is: shared by threads or not, in vectors or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from tilewright.cost.parallel import is_worth_a_fork, least_shared_work
from tilewright.cost.roofline import WORTH_LANES, is_worth_vectors
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import enclosing_loops, extent_of, is_loop, kind_of, loop_var, loops_in, reason_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.order.parallel import check_independent
from tilewright.loops.spec import why_not_shared
from tilewright.runtime.report.records import LoopRecord
from tilewright.target.machine import Machine
from tilewright.target.target import Target


def loop_records(func: Func, machine: Machine) -> tuple[LoopRecord, ...]:
    """What is said of each loop, in the order of the program; loops of one form (iterations, depth and reasons) are
    said once, with their number."""
    counts: Counter[LoopRecord] = Counter()
    names: dict[LoopRecord, str] = {}
    for loop in loops_in(func.body):
        found = _record(func, loop, machine)
        form = replace(found, loop="")
        names.setdefault(form, found.loop)
        counts[form] += 1
    return tuple(replace(form, loop=names[form], count=count) for form, count in counts.items())


def first_steps(func: Func) -> tuple[str, ...]:
    """The schedule of a kernel, without that for sizes that are smaller."""
    return tuple(takewhile(lambda step: not step.startswith("otherwise"), kernel_info(func).schedule))


def _record(func: Func, loop: Op, machine: Machine) -> LoopRecord:
    around = enclosing_loops(loop)
    inside = [o for o in loop.walk() if o is not loop and is_loop(o)]
    kind = kind_of(loop)
    shared = kind == "parallel"
    vector = kind in ("vector", "dot")
    threads = _threads(func, loop, around, inside, machine)
    lanes = _lanes(loop, around, inside)
    extent = str(extent_of(loop))
    return LoopRecord(
        func.name, loop_var(loop).name, extent, kind, len(around), shared, threads.reason, vector, lanes.reason,
        threads_change=threads.change, lanes_change=lanes.change,
    )  # fmt: skip


class _Why(NamedTuple):
    """Why a loop is run as it is, and what would change that ("": nothing that is known)."""

    reason: str
    change: str = ""


def _threads(func: Func, loop: Op, around: Sequence[Op], inside: Sequence[Op], machine: Machine) -> _Why:
    """Why threads share the iterations, or do not."""
    kind, extent = kind_of(loop), extent_of(loop)
    if kind == "parallel":
        return _Why("its iterations do not depend on each other: threads take pieces of them")
    if kind in ("vector", "dot"):
        return _Why("its iterations are the lanes of vectors")
    if kind == "unroll":
        return _Why("its iterations are written out one after the other, so that their values stay in registers")
    if outer := _named(around, "parallel"):
        return _Why(f"threads share loop '{outer}' around it already")
    if inner := _named(inside, "parallel"):
        return _Why(f"threads share loop '{inner}' in it, in each of its iterations")
    if extent == 1:
        return _Why("it has one iteration")
    if reason := _dependence("threads", loop):
        return _Why(reason)
    work = kernel_info(func).work
    if isinstance(machine, Target) and work is not None and work.is_const and not is_worth_a_fork(work.value, machine):
        enough = f"a kernel of {least_shared_work(machine):.0f} operations or more, as by a larger batch"
        return _Why(f"the kernel computes {work} elements: waking threads takes longer", enough)
    if (alone := why_not_shared(loop, "")) is not None:
        return _Why(alone)
    beside = len([op for op in func.body.ops if op.name != "return"]) > 1
    if not around and beside:
        return _Why("it is one of several loops that follow each other, and is too short to wake threads for")
    return _Why("loops around it are not shared either, and sharing it would wake threads in each of their iterations")


def _lanes(loop: Op, around: Sequence[Op], inside: Sequence[Op]) -> _Why:
    """Why the iterations are lanes of vectors, or not."""
    kind, extent = kind_of(loop), extent_of(loop)
    if kind == "vector":
        return _Why(f"its {extent} iterations are lanes of vectors: neighbours lie beside each other, or are shared")
    if kind == "dot":
        return _Why("its iterations are the products that an instruction adds up in each lane")
    if inner := _named(inside, "vector"):
        return _Why(f"the lanes are those of loop '{inner}' in it")
    if outer := _named(around, "vector"):
        return _Why(f"it runs in each lane of loop '{outer}' around it")
    if extent == 1:
        return _Why("it has one iteration")
    if not is_worth_vectors(extent.value if extent.is_const else None):
        return _Why(f"{extent} iterations fill too small a part of a vector", f"an axis of {WORTH_LANES} or more")
    if reason := _dependence("vectors", loop):
        return _Why(reason)
    if inside:
        return _Why(f"lanes would be those of the innermost loop '{loop_var(inside[-1]).name}', which has none")
    if _stores(loop):
        apart = "this form of kernel makes no vectors of it: its elements lie apart, or each takes steps of its own"
        return _Why(apart, "an order of the axes in which neighbours lie beside each other")
    return _Why("it computes no elements: positions, sizes and conditions alone")


def _dependence(what: str, loop: Op) -> str:
    """Why iterations cannot run at once; "" where they can."""
    try:
        check_independent(what, loop)
    except ScheduleError as error:
        return reason_of(error)
    return ""


def _named(loops: Sequence[Op], kind: str) -> str:
    return next((loop_var(o).name for o in loops if kind_of(o) == kind), "")


def _stores(loop: Op) -> bool:
    return any(op.name == "store" for op in loop.walk())
