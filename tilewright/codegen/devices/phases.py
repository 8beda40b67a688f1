"""The grids of a kernel: nests that follow each other, each of which runs where its conditions hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import ONE, ZERO, Sym, logical_and, select
from tilewright.target.gpu.webgpu import GRID

_FIRST = COMPUTING.union({"const", "index", "alloc"})
"""What each grid of a kernel does for itself."""


@dataclass(frozen=True, eq=False)
class Phase:
    """One grid: its nest, what stands `before` it and each grid does for itself, and whether it runs at all, which is
    an expression of the dims of the kernel."""

    before: tuple[Op, ...]
    nest: Op
    runs: Sym = ONE

    def groups(self, each: Sequence[Sym]) -> tuple[Sym, Sym, Sym]:
        """Groups along x, y and z; none where it does not run."""
        x, y, z = each
        return self.if_it_runs(x), y, z

    def if_it_runs(self, size: Sym) -> Sym:
        return size if self.runs is ONE else select(self.runs, size, ZERO)


def phases_of(func: Func) -> list[Phase] | None:
    """The grids of a kernel, in order; None for one that is not made of grids alone. A kernel that is made for some
    dims in one way and for others in another has those of both."""
    return _phases(func.body, (), ONE, frozenset(dim.name for dim in func.dims))


def _phases(block: Block, before: tuple[Op, ...], runs: Sym, dims: frozenset[str]) -> list[Phase] | None:
    ops = [op for op in block.ops if op.name not in ("return", "barrier")]
    before = (*before, *(op for op in ops if op.name in _FIRST))
    found: list[Phase] = []
    for op in ops:
        if op.name in _FIRST:
            continue
        if op.name == "if" and not op.operands:
            holds = logical_and(runs, *op.attrs["guard"])
            inner = _phases(op.blocks[0], before, holds, dims) if dims.issuperset(v.name for v in holds.vars) else None
            if inner is None:
                return None
            found += inner
        elif op.name == "for" and op.attrs.get("level") in GRID:
            found.append(Phase(before, op, runs))
        else:
            return None
    return found
