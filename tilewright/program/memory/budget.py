"""More memory than a model of such weights is expected to take, or than a machine has, is never taken silently."""

from __future__ import annotations

from collections import Counter

from tilewright.ir.core import Func
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.program.memory.of_call import given_bytes
from tilewright.program.memory.plan import TYPICAL_DIM, typical
from tilewright.program.memory.storage import lifetimes_of

BUDGET = 1 << 30
"""Bytes of intermediate results that any model may take beside twice the bytes of its weights: images of eight million
pixels have about this much in a network of 32 channels."""


def over_budget(func: Func, arena: Sym, weights: int) -> list[Remark]:
    """A warning where the `arena` of a program is larger than twice its `weights` and the budget, with the place where
    so much is needed at once. Dims that are not known count as typical ones."""
    needed = typical(arena)
    if needed <= 2 * weights + BUDGET:
        return []
    most, count, place = _most_at_once(func)
    sizes = "" if arena.is_const else f" for unknown dims of {TYPICAL_DIM}"
    told = (
        f"intermediate results take {needed:,} bytes of memory{sizes}, more than {BUDGET:,} and twice the {weights:,} "
        f"of the weights: {count} tensors of {most:,} bytes are needed at once at {place}"
    )
    return [Remark("memory", "the model", told, "warning")]


def check_room(func: Func, arena: Sym, weights: int, memory: str, bytes: int) -> None:
    """UnsupportedError where a program does not fit into the memory of a machine that holds all of it: what is missing,
    of what, and where most is needed at once. Sizes that are not known count with the least that they can have."""
    ends = _least(given_bytes(func))
    between = _least(arena)
    needed = weights + between + ends
    if needed <= bytes:
        return
    most, count, place = _most_at_once(func)
    where = f"; {count} tensors of {most:,} bytes are needed at once at {place}" if count else ""
    raise UnsupportedError(
        f"the program takes {needed:,} bytes of memory '{memory}', {needed - bytes:,} more than its {bytes:,}: "
        f"{weights:,} of weights, {between:,} of intermediate results, {ends:,} of inputs and outputs{where}",
        hint="weights of fewer bits (`tilewright quantize`) or smaller inputs take less",
    )


def _least(size: Sym) -> int:
    return size.value if size.is_const else size.bounds[0] or 0


def _most_at_once(func: Func) -> tuple[int, int, str]:
    """The most bytes of intermediate results that are needed at once, of how many tensors, and where."""
    live: Counter[int] = Counter()
    count: Counter[int] = Counter()
    lifetimes, ops = lifetimes_of(func)
    for t in lifetimes:
        for step in range(t.first, t.last + 1):
            live[step] += typical(t.size)
            count[step] += 1
    if not live:
        return 0, 0, ""
    step, most = max(live.items(), key=lambda found: found[1])
    return most, count[step], str(ops[step].loc)
