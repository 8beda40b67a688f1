"""A link of a cascade: a region (or a view between two) that can be computed some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm
from typing import Any

from tilewright.graph.cascades.rows import NoRows, Reads, RowRange, attrs_on_rows, reads_of
from tilewright.ir.core import Block, Builder, Op, Value, current_builder
from tilewright.ops.define import OPERATORS
from tilewright.ops.view import slice_

FUSED = "fused"


class Link:
    """How an op of a fused program computes rows of its result along `axis`. NoRows where it does not.

    `axes` are those along which it reads its operands; None for an operand of which it reads all.
    """

    def __init__(self, op: Op, axis: int) -> None:
        if len(op.results) != 1:
            raise NoRows("it has several results")
        if op.name != FUSED and not OPERATORS[op.name].is_alias:
            raise NoRows(f"{op.name} is no kernel")
        self.op = op
        self.axis = axis
        self.extent = op.result.tensor.shape[axis].value
        self._reads: dict[Op, tuple[Reads | None, ...]] = {}
        self._axis_of: dict[Value, int] = {}
        self._whole: set[Value] = set()
        self._find(self._ops, self._last)
        self.axes = tuple(None if v in self._whole else self._axis_of.get(v) for v in self._inner)
        self._attrs_of: dict[Any, dict[str, Any] | NoRows] = {}
        self._hull = lru_cache(maxsize=None)(self._hulls)
        self.needs = lru_cache(maxsize=None)(self._of_operands)
        """The rows of each operand that rows of the result, from a start to a stop, are computed of; None for all of
        it. NoRows where they cannot be computed alone."""
        self.unit = self._least_rows()
        """Rows are computed in multiples of this, as a view inside may join them."""
        for start in (0, self.extent - self.unit):
            self.needs(start, start + self.unit)

    @property
    def _ops(self) -> list[Op]:
        return self.op.blocks[0].ops[:-1] if self.op.name == FUSED else [self.op]

    @property
    def _inner(self) -> Sequence[Value]:
        """The operands as the ops inside see them."""
        return self.op.blocks[0].args if self.op.name == FUSED else self.op.operands

    @property
    def _last(self) -> Value:
        return self.op.blocks[0].ops[-1].operands[0] if self.op.name == FUSED else self.op.result

    def _find(self, ops: Sequence[Op], last: Value) -> None:
        self._axis_of[last] = self.axis
        for op in reversed(ops):
            needed = [v for v in op.results if v in self._axis_of]
            if not needed or not op.operands or op.result in self._whole:
                if any(v in self._whole for v in op.results):
                    self._whole.update(op.operands)
                continue
            reads = self._reads[op] = reads_of(op, self._axis_of[op.result])
            for v, read in zip(op.operands, reads, strict=True):
                if read is None:
                    self._whole.add(v)
                elif self._axis_of.setdefault(v, read.axis) != read.axis:
                    raise NoRows("it reads a tensor along two axes")

    def _least_rows(self) -> int:
        """The fewest rows at once that no view cuts: where it makes rows longer, or shorter."""
        found, rows = 1, {self._last: Fraction(1)}
        for op in reversed(self._ops):
            if op in self._reads and op.result in rows:
                for v, read in zip(op.operands, self._reads[op], strict=True):
                    if read is not None:
                        rows[v] = rows[op.result] * Fraction(read.times, read.parts)
                        found = lcm(found, rows[v].denominator)
        return min(found, self.extent)

    @cached_property
    def rows_of_one(self) -> tuple[Fraction | None, ...]:
        """For each operand how many of its rows each row of the result is computed of; None where these are not all of
        them, and no others' too."""
        return tuple(self._rows_of_one(k) for k in range(len(self.axes)))

    def _rows_of_one(self, k: int) -> Fraction | None:
        axis = self.axes[k]
        if axis is None:
            return None
        more = Fraction(self.op.operands[k].tensor.shape[axis].value, self.extent)
        count = lcm(self.unit, more.denominator)
        for start in (0, max(self.extent - count, 0)):
            rows = self.needs(start, start + count)[k]
            if rows is None or (rows.start, rows.stop) != (start * more, (start + count) * more):
                return None
        return more

    def _of_operands(self, start: int, stop: int) -> tuple[RowRange | None, ...]:
        hulls = self._hull(start, stop)
        return tuple(None if v in self._whole else hulls.get(v) for v in self._inner)

    def _hulls(self, start: int, stop: int) -> dict[Value, RowRange]:
        """The rows of each value that are computed, or read."""
        found = {self._last: RowRange(self.axis, start, stop)}
        for op in reversed(self._ops):
            if op not in self._reads or op.result not in found:
                continue
            own = found[op.result]
            self._attrs(op, own)
            for v, read in zip(op.operands, self._reads[op], strict=True):
                if read is not None:
                    rows, known = read.rows(own.start, own.stop), found.get(v)
                    if known is not None:
                        rows = RowRange(rows.axis, min(rows.start, known.start), max(rows.stop, known.stop))
                    found[v] = rows
        return found

    def _attrs(self, op: Op, rows: RowRange) -> dict[str, Any]:
        """The attributes with which an op inside computes some rows."""
        reads = self._reads[op]
        key = op, rows.count, *(None if r is None else r.placed(rows.start, rows.stop) for r in reads)
        if key not in self._attrs_of:
            try:
                self._attrs_of[key] = attrs_on_rows(op, rows, reads)
            except NoRows as error:
                self._attrs_of[key] = error
        found = self._attrs_of[key]
        if isinstance(found, NoRows):
            raise found
        return found

    def on_rows(self, start: int, stop: int, given: Sequence[tuple[Value, RowRange | None]]) -> Op:
        """The op for some rows of the result. `given` are its operands: tensors that have all that it reads, the rows
        that they are where they are no whole ones. A view is a kernel where it is one of a part."""
        block = Block([v.type for v, _ in given], [v.name for v in self._inner])
        inside = [(arg, rows) for arg, (_, rows) in zip(block.args, given, strict=True)]
        with Builder(block, loc=self.op.loc) as builder:
            result = self._body(dict(zip(self._inner, inside, strict=True)), start, stop)
            builder.emit("yield", [result])
        if self.op.name != FUSED and len(block.ops) == 2:
            (made,) = (op for op in block.ops if op.results)
            return Op(made.name, [v for v, _ in given], [result.type], made.attrs, loc=self.op.loc)
        attrs: dict[str, Any] = {"strategy": "elementwise", "name": f"slice_{self.op.name}"}
        attrs = self.op.attrs if self.op.name == FUSED else attrs
        return Op(FUSED, [v for v, _ in given], [result.type], attrs, [block], self.op.loc)

    def _body(self, values: dict[Value, tuple[Value, RowRange | None]], start: int, stop: int) -> Value:
        """Append the ops for some rows; `values` are those that are known, with the rows that they are."""
        hulls = self._hull(start, stop)
        for op in self._ops:
            rows = None if any(v in self._whole for v in op.results) else hulls.get(op.results[0])
            if op not in self._reads or rows is None:  # all of it, of whole operands
                copy = current_builder().block.append(op.clone({v: values[v][0] for v in op.operands}))
                values |= {old: (new, None) for old, new in zip(op.results, copy.results, strict=True)}
                continue
            reads = self._reads[op]
            operands = [
                _cut(*values[v], None if read is None else read.rows(rows.start, rows.stop))
                for v, read in zip(op.operands, reads, strict=True)
            ]
            values[op.result] = OPERATORS[op.name](*operands, **self._attrs(op, rows)), rows
        return _cut(*values[self._last], RowRange(self.axis, start, stop))


def _cut(value: Value, has: RowRange | None, needed: RowRange | None) -> Value:
    """The rows that are needed of a value that is some rows, or all."""
    shape = value.tensor.shape
    if needed is None:
        return value
    first = needed.start - (0 if has is None else has.start)
    if first == 0 and needed.count == shape[needed.axis]:
        return value
    starts = tuple(first if k == needed.axis else 0 for k in range(len(shape)))
    sizes = tuple(needed.count if k == needed.axis else d for k, d in enumerate(shape))
    return slice_(value, starts=starts, sizes=sizes)
