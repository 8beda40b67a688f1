"""The plan of a program's memory: the best one that can be made, within a limit where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tilewright.ir.core import Module, Op
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym
from tilewright.program.memory.effort import SEARCH, PlanEffort
from tilewright.program.memory.of_call import bytes_of_call, given_bytes
from tilewright.program.memory.places import annotate
from tilewright.program.memory.plan import plan_in_order
from tilewright.program.memory.storage import Pairs, Storage, assign_storage


def plan_memory(
    module: Module, inplace: Mapping[str, Pairs], scratch: Mapping[Op, Sym], effort: PlanEffort,
    optional: OptionalSteps, *, apart: bool, most: int | None, threads: int,
) -> None:  # fmt: skip
    """Write down where values and scratch memory lie, as `assign_storage` has it. Where a call with so many `threads`
    would take more than `most` bytes, their scratch memory lies wherever it fits, and there is room for no more; in the
    end with a longer search."""
    shared = partial(assign_storage, module.main, inplace, effort=effort, scratch=scratch)
    simple = partial(assign_storage, module.main, plan=plan_in_order)
    plan = partial(optional.attempt, "share-memory", lambda: shared(apart=apart), simple)
    if most is None:
        annotate(module.main, plan())
        return
    tries = (partial(shared, threads=threads, effort=e) for e in dict.fromkeys((effort, SEARCH)))
    more = (partial(optional.attempt, "pack-scratch", packed, lambda: None) for packed in tries)
    _annotate_within(module, most, threads, (plan, *more))


def _annotate_within(module: Module, most: int, threads: int, plans: Iterable[Callable[[], Storage | None]]) -> None:
    """Write down the first of some plans with which a call with so many threads takes no more than `most` bytes, or
    the one that takes least. No further one is made where more is needed at a step than there is, or sizes are not
    known, for which no limit is held."""
    known: tuple[int, Storage] | None = None
    for plan in plans:
        if (storage := plan()) is None:
            continue
        annotate(module.main, storage)
        taken, given = bytes_of_call(module, threads), given_bytes(module.main)
        if not (taken.is_const and given.is_const):
            return
        if known is None or taken.value < known[0]:
            known = taken.value, storage
        if taken.value <= most or given.value + storage.arena.alive > most:
            break
    if known is not None:
        annotate(module.main, known[1])
