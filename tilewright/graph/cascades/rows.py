"""Which rows of its operands an operator reads for some rows of its result, and the operator on these rows alone.

Rows are consecutive positions along one axis. Both follow from what the operator computes (`Compute`): where the index
of a load is the position along that axis times a stride, plus kernel positions, rows are read as an interval. Windows
are cut by their padding; an operator on some rows is only taken where its loads are those of the whole one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.ir.core import Op
from tilewright.ir.diag import TypeRuleError
from tilewright.ir.sym import Sym, affine_in, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.operator import Compute


@dataclass(frozen=True, slots=True)
class RowRange:
    """Positions `start` to `stop` (exclusive) along an axis."""

    axis: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Reads:
    """Rows a to b of the result read `(a * times + low) // parts` to `((b - 1) * times + high) // parts` of an operand,
    along its `axis` of `extent` positions, as far as they are there, and `fewest` rows at least: also where all that is
    read is padding."""

    axis: int
    extent: int
    times: int = 1
    low: int = 0
    high: int = 1
    parts: int = 1
    fewest: int = 1

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """The positions that are read for rows of the result, those in the padding included. NoRows where that is no
        whole number of rows."""
        first, last = start * self.times + self.low, (stop - 1) * self.times + self.high
        if first % self.parts or last % self.parts:
            raise NoRows("rows of another length would be cut")
        return first // self.parts, last // self.parts

    def rows(self, start: int, stop: int) -> RowRange:
        """Those of the operand."""
        low, high = self.reach(start, stop)
        count = min(self.fewest, self.extent)
        first = min(max(low, 0), self.extent - count)
        return RowRange(self.axis, first, max(first + count, min(high, self.extent)))

    def placed(self, start: int, stop: int) -> tuple[int, int]:
        """Where the rows of the operand begin in what is read, and how many there are: an operator on some rows has the
        same attributes wherever these are the same."""
        rows = self.rows(start, stop)
        return rows.start - self.reach(start, stop)[0], rows.count


class NoRows(Exception):
    """An operator cannot be computed by rows; the message says why."""


def reads_of(op: Op, axis: int) -> tuple[Reads | None, ...]:
    """For each operand which of its rows are read for rows of the result along `axis`; None where these read all of
    it. NoRows where an operator reads them in another way."""
    operator = OPERATORS.get(op.name)
    types = tuple(v.tensor for v in op.operands)
    if operator is None or len(op.results) != 1 or not all(t.is_static for t in types):
        raise NoRows(f"{op.name} has sizes that are not known, or several results")
    if operator.is_alias:
        return (_of_reshape(types[0], op.result.tensor, axis),)
    if operator.kind != "primitive":
        raise NoRows(f"{op.name} has loops of its own")
    found = _of_compute(operator.compute(types, op.attrs), axis, op.name)
    if "kernel" in op.attrs:  # a pooling of fewer rows than its windows have visits them in another way
        return tuple(None if r is None else replace(r, fewest=r.high - r.low) for r in found)
    return found


def _of_reshape(old: TensorType, new: TensorType, axis: int) -> Reads:
    """A reshape splits rows along an axis, or joins several of another axis."""
    (before, row), (sizes, extents) = _around(new, axis), (_numbers(old), range(old.rank))
    found = [k for k in extents if prod(sizes[:k]) == before and sizes[k] != 1]
    if not found:
        raise NoRows("a reshape joins rows with what is around them")
    own = prod(sizes[found[0] + 1 :])
    return Reads(found[0], sizes[found[0]], row, 0, row, own)


def _around(type: TensorType, axis: int) -> tuple[int, int]:
    """The number of elements before an axis, and of those in one of its rows."""
    sizes = _numbers(type)
    return prod(sizes[:axis]), prod(sizes[axis + 1 :])


def _numbers(type: TensorType) -> tuple[int, ...]:
    return tuple(d.value for d in type.shape)


@lru_cache(maxsize=4096)
def _of_compute(compute: Compute, axis: int, name: str) -> tuple[Reads | None, ...]:
    if compute.tiles:
        raise NoRows(f"{name} is computed by tiles")
    row = compute.axes[axis][0]
    found: list[Reads | None] = [None] * len(compute.body.args)
    place = {v: k for k, v in enumerate(compute.body.args)}
    for op in compute.body.ops:
        if op.name == "bind" or (op.name == "index" and row in _variables(op.attrs)):
            raise NoRows(f"what {name} computes depends on the position")
        if op.name == "load":
            k = place[op.operands[0]]
            read = _of_load(op, row, compute, name)
            if read is not None and found[k] not in (None, read):
                raise NoRows(f"{name} reads an operand in two ways")
            found[k] = read or found[k]
    return tuple(found)


def _variables(attrs: Mapping[str, Any]) -> set[Sym]:
    return {v for value in attrs.values() for e in _listed(value) if isinstance(e, Sym) for v in e.vars}


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _of_load(load: Op, row: Sym, compute: Compute, name: str) -> Reads | None:
    """What a load reads along the one axis on which its index depends on the row."""
    moving = [(k, i) for k, i in enumerate(load.attrs["idx"]) if row in i.vars]
    if not moving:
        return None
    if len(moving) > 1 or (parts := affine_in(moving[0][1], row)) is None or not parts[0].is_const:
        raise NoRows(f"{name} reads rows in another order")
    axis, extent = moving[0][0], load.operands[0].tensor.shape[moving[0][0]].value
    ends = _ends(parts[1], dict(compute.reduce))
    if parts[0].value < 1 or ends is None:
        raise NoRows(f"{name} reads rows in another order")
    return Reads(axis, extent, parts[0].value, ends[0], ends[1] + 1)


def _ends(e: Sym, reduce: Mapping[Sym, Sym]) -> tuple[int, int] | None:
    """The least and the greatest value of a sum of kernel positions; None for anything else."""
    low = high = 0
    for v in e.vars:
        parts, extent = affine_in(e, v), reduce.get(v)
        if parts is None or extent is None or not (parts[0].is_const and extent.is_const):
            return None
        most = parts[0].value * (extent.value - 1)
        low, high, e = low + min(most, 0), high + max(most, 0), parts[1]
    return (low + e.value, high + e.value) if e.is_const else None


# The operator on some rows


def attrs_on_rows(op: Op, rows: RowRange, reads: Sequence[Reads | None]) -> dict[str, Any]:
    """The attributes with which an operator computes some rows of its result, of those rows of its operands that these
    read. NoRows where there are none."""
    found = next((r for r in reads if r is not None), None)
    own = None if found is None else found.rows(rows.start, rows.stop)
    if rows.count == op.result.tensor.shape[rows.axis] and (found is None or own is None or own.count == found.extent):
        return op.attrs
    attrs = dict(op.attrs)
    if found is not None and own is not None:
        low, high = found.reach(rows.start, rows.stop)
        ends = own.start - low, high - own.stop
        for names, at in ((("pads_begin", "pads_end"), rows.axis - 2), (("before", "after"), rows.axis)):
            for name, end in zip(names, ends, strict=True):
                if name in attrs:
                    attrs[name] = _replaced(attrs[name] or (0,) * _spatial_axes(op), at, end)
    if "starts" in attrs:
        attrs["starts"] = _replaced(attrs["starts"], rows.axis, 0)
    for name in ("shape", "sizes"):
        if name in attrs:
            attrs[name] = _replaced(attrs[name], rows.axis, rows.count)
    _check(op, rows, reads, attrs)
    return attrs


def _spatial_axes(op: Op) -> int:
    """Axes that the windows of an operator slide along: those of its kernel, or of its filters."""
    return len(op.attrs["kernel"]) if "kernel" in op.attrs else op.operands[1].tensor.rank - 2


def _replaced(values: Sequence[Any], place: int, value: int) -> tuple[Any, ...]:
    if not 0 <= place < len(values):
        raise NoRows("no window lies along the rows")
    return (*values[:place], value, *values[place + 1 :])


def _check(op: Op, rows: RowRange, reads: Sequence[Reads | None], attrs: Mapping[str, Any]) -> None:
    """NoRows where an operator with these attributes does not load, for its row 0, what `op` loads for the first of the
    rows."""
    operator, types = OPERATORS[op.name], []
    for v, read in zip(op.operands, reads, strict=True):
        type = v.tensor
        if read is not None:
            count = sym(read.rows(rows.start, rows.stop).count)
            type = TensorType(type.dtype, (*type.shape[: read.axis], count, *type.shape[read.axis + 1 :]))
        types.append(type)
    shape = op.result.tensor.shape
    wanted = TensorType(
        op.result.tensor.dtype, (*shape[: rows.axis], sym(rows.count), *shape[rows.axis + 1 :])
    )
    try:
        found = operator.result_types(types, dict(attrs))
        if operator.is_alias and found == (wanted,):
            return
        whole, part = (
            operator.compute(t, dict(a)) for t, a in (([v.tensor for v in op.operands], op.attrs), (types, attrs))
        )
    except (TypeRuleError, ValueError) as error:
        raise NoRows(f"{op.name} is not defined on some rows: {error}") from error
    if found != (wanted,):
        raise NoRows(f"{op.name} on some rows has another shape")
    row = whole.axes[rows.axis][0]
    loads = [[o for o in c.body.ops if o.name == "load"] for c in (whole, part)]
    if len(whole.body.ops) != len(part.body.ops) or len(loads[0]) != len(loads[1]):
        raise NoRows(f"{op.name} on some rows computes something else")
    for a, b in zip(*loads, strict=True):
        for axis, (i, j) in enumerate(zip(a.attrs["idx"], b.attrs["idx"], strict=True)):
            read = reads[whole.body.args.index(a.operands[0])]
            first = read.rows(rows.start, rows.stop).start if read is not None and read.axis == axis else 0
            own = {row: sym(0)} if rows.count == 1 else {}  # an axis of one position is not indexed
            if i.subs({row: row + rows.start}).subs(own) - first != j.subs(own):
                raise NoRows(f"{op.name} on some rows reads something else")
