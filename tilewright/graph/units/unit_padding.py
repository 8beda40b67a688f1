"""Products whose sizes no run of a unit fits, padded with zeros: for units that take blocks of fixed sizes.

    x[60, 50] @ w[50, 30]    becomes    (pad(x)[64, 56] @ pad(w)[56, 32])[:60, :30]

Zeros along the depth add nothing, and rows and columns that were added are cut off. An axis of rows or columns that is
as long as a run stays where the other one is made of whole runs: its last tile begins earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.match import dtype_of, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, rewrite
from tilewright.ops.define import OPERATORS
from tilewright.ops.view import pad, slice_
from tilewright.passes import PassContext


@dataclass(frozen=True)
class UnitGrain:
    """Of which numbers a unit's rows, columns and depth are multiples, and names of the dtypes of its operands and
    sums."""

    dtypes: tuple[str, str, str]
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True)
class UnitPadding:
    """Pad products for the units of a machine."""

    name: ClassVar[str] = "unit-padding"
    grains: tuple[UnitGrain, ...] = ()

    def run(self, module: Module, ctx: PassContext) -> None:
        if all((g.rows, g.columns, g.depth) == (1, 1, 1) for g in self.grains):
            return
        rule = Rule("padded_products", ("matmul", "matmul_widening"), self.padded, told="padded to sizes of the unit")
        if rewrite(module.main, [rule], module, ctx.remarks, stage=self.name, within=ctx):
            drop_dead(module)

    def padded(self, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
        """A product of sizes that the unit of its dtypes takes; None where it has them, or there is no such unit."""
        turned = op.attrs.get("transpose_a", False), op.attrs["transpose_b"]
        left, right = op.operands
        sums = op.attrs.get("sums") or dtype_of(op.result).accumulator
        dtypes = dtype_of(left).name, dtype_of(right).name, sums.name
        grains = [g for g in self.grains if g.dtypes == dtypes]
        rows, depth = shape_of(left)[-2:][:: -1 if turned[0] else 1]
        columns = shape_of(op.result)[-1]
        if not grains or not all(n.is_const and n.value > 0 for n in (rows, columns, depth)):
            return None
        more = min(_missing(g, rows.value, columns.value, depth.value) for g in grains)
        if not any(more):
            return None
        m, n, k = more
        x = _padded(left, (k, m) if turned[0] else (m, k))
        w = _padded(right, (n, k) if turned[1] else (k, n))
        found = OPERATORS[op.name](x, w, **op.attrs)
        shape = shape_of(op.result)
        return slice_(found, starts=(0,) * len(shape), sizes=shape, steps=(1,) * len(shape)) if m or n else found


def _missing(grain: UnitGrain, rows: int, columns: int, depth: int) -> tuple[int, int, int]:
    """How many rows, columns and steps of the depth are added."""
    m, n, k = (-n % g for n, g in zip((rows, columns, depth), (grain.rows, grain.columns, grain.depth), strict=True))
    if n == 0 and rows >= grain.rows:
        m = 0
    elif m == 0 and columns >= grain.columns:
        n = 0
    elif m * columns <= n * rows and columns >= grain.columns:
        n = 0  # fewer elements are added by whole runs of rows
    elif rows >= grain.rows and n * rows < m * columns:
        m = 0
    return m, n, k


def _padded(value: Value, more: Sequence[int]) -> Value:
    """Zeros behind the last two axes."""
    if not any(more):
        return value
    front = (0,) * (len(shape_of(value)) - 2)
    return pad(value, before=(*front, 0, 0), after=(*front, *more))
