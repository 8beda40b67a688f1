"""From a fused region to its schedule: which strategies are tried, in which order, and what the kernel becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.graph.fusion.classify import classify, is_operator
from tilewright.graph.fusion.strategy import Match, Strategies, is_faster
from tilewright.ir.core import Op
from tilewright.ir.diag import Remark, ScheduleError
from tilewright.ir.sym import Sym, sym
from tilewright.loops.conditions.specialize import for_other_dims, specialize_less
from tilewright.loops.counts import iterations
from tilewright.loops.edit import extent_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.queues.waits import finish_queues
from tilewright.loops.stages import Lowered
from tilewright.loops.storage.inplace import kept_in_place
from tilewright.schedule.estimates import Counted, counted
from tilewright.schedule.outside import Outside
from tilewright.schedule.steps.nontemporal import stream_results
from tilewright.schedule.steps.vectorize import note_scalar_loops
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule, with_otherwise
from tilewright.target.machine import Machine
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class MatchingStrategy:
    """A strategy that matches, and the cycles that its answer gives, if it gives any."""

    strategy: Strategy
    cycles: float | None


def matching(
    op: Op, strategies: Strategies[Strategy], target: Machine, remarks: list[Remark]
) -> list[MatchingStrategy]:
    """The strategies that may be tried on a `fused` op, in their order.

    A strategy whose `match` declines has nothing to do with kernels of this form, which is no news to anybody.
    """
    region = FusedRegion(op, _owner(op, strategies, remarks), target)
    answers = [(s, a) for s, a in strategies.answers(lambda s: s.match(region)) if isinstance(a, Match)]
    return [
        MatchingStrategy(s if s in strategies.ours else Outside(s, strategies), a.cycles) for s, a in answers
    ]


def cheapest_first(
    candidates: Sequence[MatchingStrategy], lowered: Lowered, target: Machine, remarks: list[Remark]
) -> list[MatchingStrategy]:
    """The strategies to try on a kernel in turns: of two with an estimate the cheaper one first, of others the earlier
    one."""
    if len(candidates) < 2:
        return [*candidates]
    work = counted(lowered)
    pending = [(c, _cycles(c, work, target)) for c in candidates]
    found: list[tuple[MatchingStrategy, float | None]] = []
    while pending:
        best = pending[0]
        for other in pending[1:]:
            if is_faster(other[1], best[1]):
                best = other
        pending.remove(best)
        found.append(best)
    told = (c.strategy.name if cycles is None else f"{c.strategy.name} {cycles:.4g}" for c, cycles in found)
    remarks.append(Remark("estimated cycles", lowered.func.name, ", ".join(told), "applied"))
    return [c for c, _ in found]


def _cycles(candidate: MatchingStrategy, work: Counted, target: Machine) -> float | None:
    return candidate.strategy.estimate(work, target) if candidate.cycles is None else candidate.cycles


def _owner(op: Op, strategies: Strategies[Strategy], remarks: list[Remark]) -> Strategy:
    """The strategy that fusion made the region for; one of ours for its weightiest op where that is not there."""
    name = op.attrs["strategy"]
    found = strategies.find(name)
    if found is not None:
        return found
    remarks.append(Remark("strategy", op.attrs["name"], f"there is no strategy '{name}', which fusion chose"))
    infos = [(o, classify(o)) for o in op.blocks[0].ops if is_operator(o)]
    weightiest = max(infos, key=lambda found: found[1].kind.value)
    return next(s for s in strategies.ours if s.claims(*weightiest))


def schedule_kernel(
    lowered: Lowered, candidates: Sequence[MatchingStrategy], target: Machine, remarks: list[Remark]
) -> Lowered:
    """Schedule a freshly lowered kernel; the first strategy that does not decline is taken.

    A schedule may specialise for large dims; its kernel is then joined with one for smaller dims. Returns the kernel
    to use: a schedule that gives up halfway leaves its kernel unused. The steps are kept in `KernelInfo.schedule`.
    """
    work = total_work(lowered)
    is_empty = work is not None and work.is_const and work.value == 0  # nothing to decide
    found = lowered.clone() if is_empty else _for_all_dims(lowered, candidates, target, remarks)
    found.func.info = replace(kernel_info(found.func), work=work)
    return found


def schedule_plainly(
    lowered: Lowered,
    strategies: Sequence[Strategy],
    target: Machine,
) -> Lowered:
    """A kernel that takes the place of better ones that failed: one strategy schedules it, for all dims alike, or none
    does."""
    candidate = lowered.clone()
    s = Schedule(candidate.func)
    for strategy in strategies:
        strategy.schedule(s, candidate, target)
    finish_queues(candidate.func, target)
    candidate.func.info = replace(kernel_info(candidate.func), schedule=s.lines(), work=total_work(lowered))
    return candidate


def _for_all_dims(
    lowered: Lowered, candidates: Sequence[MatchingStrategy], target: Machine, remarks: list[Remark]
) -> Lowered:
    """The kernel for large dims and those for smaller ones, or one for all dims where these would not go together. What
    is cheapest for smaller dims is estimated anew."""
    strategies = [c.strategy for c in candidates]
    found = _scheduled(lowered, strategies, target, remarks, may_specialize=True)
    large, strategy, below = found.kernel, strategies[found.place], strategies[found.place + 1 :]
    least = kernel_info(large.func).specialized_for
    if not least:
        return large
    others = lowered.clone()
    is_narrower = specialize_less(others.func, least)
    asked = strategy.for_other_dims(below)
    smaller = [c for c in candidates if c.strategy in asked]
    left = cheapest_first(smaller or candidates, others, target, [])
    if smaller or (is_narrower and strategy.respecialize_remainder):
        small = _for_all_dims(others, left, target, [])
    else:
        small = _scheduled(others, [c.strategy for c in left], target, []).kernel
    try:
        return _joined(large, small, lowered)
    except ScheduleError as e:
        remarks.append(Remark("schedule", f"{lowered.func.name}: a kernel for large dims", str(e)))
        without = [c for c in candidates if c.strategy is not strategy]
        if asked and without:  # those that serve other dims serve all
            return _for_all_dims(lowered, without, target, remarks)
        return _scheduled(lowered, strategies, target, []).kernel


def _joined(large: Lowered, small: Lowered, lowered: Lowered) -> Lowered:
    """A kernel for some dims, with one for all others, which is used up. ScheduleError where that is not possible."""
    steps = with_otherwise(kernel_info(large.func).schedule, kernel_info(small.func).schedule)
    for_other_dims(large.func, small.func, lowered.func.dims)
    large.func.info = replace(kernel_info(large.func), schedule=steps)
    return large


@dataclass(frozen=True, eq=False)
class _Scheduled:
    """A kernel, and the place of its strategy among those that were tried."""

    kernel: Lowered
    place: int


def _scheduled(
    lowered: Lowered,
    strategies: Sequence[Strategy],
    target: Machine,
    remarks: list[Remark],
    *,
    may_specialize: bool = False,
) -> _Scheduled:
    """The kernel of the first strategy that does not decline."""
    name = lowered.func.name
    first = len(strategies) - 1 if _is_empty(lowered) else 0
    for k in range(max(0, first), len(strategies)):
        candidate = lowered.clone()
        s = Schedule(candidate.func, may_specialize)
        try:
            strategies[k].schedule(s, candidate, target)
        except ScheduleError as e:
            remarks.append(Remark("schedule", f"{name}: {strategies[k].name}", str(e)))
            continue
        if isinstance(target, Target):
            stream_results(s, target)
            note_scalar_loops(s)
        finish_queues(candidate.func, target)
        remarks.append(Remark("strategy", name, strategies[k].name, "applied"))
        remarks += [Remark("tiling", name, reason) for reason in dict.fromkeys(s.missed)]
        candidate.func.info = replace(kernel_info(candidate.func), schedule=s.lines())
        return _Scheduled(candidate, k)
    remarks.append(Remark("strategy", name, "no strategy schedules it: its loops run as they were lowered"))
    return _Scheduled(lowered.clone(), len(strategies) - 1)


def _is_empty(lowered: Lowered) -> bool:
    """Whether a loop of the kernel never runs: tiles of no elements are nothing to choose sizes for."""
    return any(extent_of(o) == 0 for st in lowered.stages for o in (*st.axes, *st.reduce))


def total_work(lowered: Lowered) -> Sym | None:
    """Elements computed by all stages, reduction steps counted singly; for operators with loops of their own, what
    these execute, or None where that depends on data. What only copies elements to the same places does not count: a
    result mostly lies where they are."""
    if not lowered.stages:
        func = lowered.func
        counted = iterations(func, [op for op in func.body.ops if kept_in_place(func, op) is not None])
        return counted if counted.vars <= {*lowered.func.dims} else None
    total = sym(0)
    for stage in lowered.stages:
        count: Sym = sym(prod(stage.tiles))  # elements of one iteration
        for loop in (*stage.axes, *stage.reduce):
            count = count * extent_of(loop)
        total = total + count
    return total
