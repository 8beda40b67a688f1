"""More memory of intermediate results than a model of such weights is expected to take is never taken silently."""

from __future__ import annotations

from collections import Counter

from tilewright.ir.core import Func
from tilewright.ir.diag import Remark
from tilewright.ir.sym import Sym
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
    live: Counter[int] = Counter()
    count: Counter[int] = Counter()
    lifetimes, ops = lifetimes_of(func)
    for t in lifetimes:
        for step in range(t.first, t.last + 1):
            live[step] += typical(t.size)
            count[step] += 1
    step, most = max(live.items(), key=lambda found: found[1])
    sizes = "" if arena.is_const else f" for unknown dims of {TYPICAL_DIM}"
    told = (
        f"intermediate results take {needed:,} bytes of memory{sizes}, more than {BUDGET:,} and twice the {weights:,} "
        f"of the weights: {count[step]} tensors of {most:,} bytes are needed at once at {ops[step].loc}"
    )
    return [Remark("memory", "the model", told, "warning")]
