"""The parts that the loops of a contraction play: which is the vector, which the rows of a register tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.core import divisors
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import COSTLY
from tilewright.ir.sym import Sym, var
from tilewright.loops.edit import extent_of, loop_var
from tilewright.schedule.gemm.reduction_nest import ReductionNest
from tilewright.schedule.steps.access import element_bytes, known, stores_in, stride_in
from tilewright.target.target import VECTOR_BYTES


@dataclass(frozen=True, eq=False)
class GemmAxes:
    """Which loop of the nest that reads the sums plays which part. `block` is a column axis that the layout itself has;
    `line`, one of the outer loops, moves the same operand as `row`: as the lines of an image do."""

    sums: ReductionNest
    vector: Op
    row: Op | None
    block: Op | None
    outer: list[Op]
    line: Op | None

    @property
    def columns(self) -> set[Op]:
        """The loads of the operand that moves with the columns."""
        return self.sums.moving(self.vector)

    def axis(self, loop: Op) -> int:
        """The axis of the sums that one of the loops runs over."""
        return self.sums.axis_of[loop]

    @property
    def tile(self) -> tuple[int, ...]:
        """The axes of the sums that a register tile runs over, that of the vectors last."""
        return tuple(self.axis(o) for o in (self.row, self.block, self.vector) if o is not None)


def assign_axes(sums: ReductionNest, vector: Op | None = None) -> GemmAxes:
    """Vector: the axis in which the result is contiguous, unless another one is given. Row: an axis that only the
    broadcast operand moves in, or else one that moves the columns, too, as that of a batch does."""
    store = stores_in(sums.loops[0])[0]
    live = [o for o in sums.loops if extent_of(o) != 1]
    if vector is None:
        vector = next((o for o in live if stride_in(store, loop_var(o)) == 1), None)
    if vector is None or vector not in sums.axis_of:
        raise ScheduleError("the result is not contiguous in any axis of the sum")
    moved = {o: sums.moving(o) for o in live}
    with_vector = moved[vector]
    block = row = None
    for o in live:
        if o is vector:
            continue
        only_columns = bool(moved[o]) and moved[o] <= with_vector and extent_of(o).is_const
        if only_columns and known(extent_of(vector)) == VECTOR_BYTES / element_bytes(sums.sums):
            block = o if len(with_vector) == 1 else block
        if moved[o] - with_vector or (len(with_vector) > 1 and moved[o]):
            shares = row is not None and not moved[row] & with_vector  # columns with the row found before
            row = row if shares and moved[o] & with_vector else o
    outer = [o for o in sums.loops if o not in (vector, row, block)]
    line = None
    if row is not None and not moved[row] & with_vector:
        lines = [o for o in outer if o in live and extent_of(o).is_const and moved[o] == moved[row]]
        line = lines[-1] if lines else None
    return GemmAxes(sums, vector, row, block if block is not row else None, outer, line)


def same_rows(axes: GemmAxes, loop: Op) -> int:
    """How many iterations of a loop, one after the other, read the same rows, as blocks of filters of one group do: 1
    where this is not known, or it moves no rows."""
    rows = axes.sums.moving(loop) - axes.columns
    extent = known(extent_of(loop))
    if not rows or extent is None:
        return 1
    v = loop_var(axes.sums.stage.axes[axes.axis(loop)])
    return next((n for n in reversed(divisors(extent)) if all(_stays(o, v, n) for o in rows)), 1)


def _stays(load: Op, v: Sym, count: int) -> bool:
    """Whether a load reads the same place for `count` values of v from any multiple of that on."""
    group, within = var("group"), var("within", 0, count - 1)
    return all(within not in i.subs({v: group * count + within}).vars for i in load.attrs["idx"])


def transposed_axes(axes: GemmAxes, constants: Sequence[Value]) -> GemmAxes | None:
    """Axes with vectors along what are rows in `axes`, where these are whole vectors of constants: packed when
    compiling they need no copy, and no lane is idle. The result is contiguous in its rows then, and has to be
    transposed. None where the contraction has not this form."""
    if axes.row is None or axes.block is not None or axes.line is not None:
        return None
    sums = axes.sums
    lanes = VECTOR_BYTES // element_bytes(sums.sums)
    rows, columns = sums.moving(axes.row), axes.columns
    whole = (known(extent_of(axes.row)) or 1) % lanes == 0
    if rows & columns or (known(extent_of(axes.vector)) or 0) < lanes or not whole:
        return None
    if any((o.operands[0] in constants) != (o in rows) for o in rows | columns):
        return None
    if len(stores_in(sums.loops[0])) != 1 or is_costly(sums.loops[-1]):
        return None
    v = loop_var(sums.stage.axes[sums.axis_of[axes.vector]])
    if any(v in c.vars for o in columns for c in o.attrs.get("guard", ())):
        return None  # each element that is broadcast would have conditions
    found = assign_axes(sums, axes.row)
    return found if found.row is axes.vector and found.block is None else None


def is_costly(loop: Op) -> bool:
    """Whether the work of a loop is too much code to be repeated for every vector of a tile."""
    return any(op.name in COSTLY for op in loop.walk())
