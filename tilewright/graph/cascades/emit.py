"""The ops of a cascade, which take the place of those that compute whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.graph.cascades.links import FUSED
from tilewright.graph.cascades.rows import RowRange
from tilewright.graph.cascades.steps import (
    Cascade,
    JoinRows,
    MakeRows,
    PlaceRows,
    RowBuffer,
    Step,
    is_in_lines,
)
from tilewright.ir.core import Block, Builder, Op, Value
from tilewright.ir.diag import Loc
from tilewright.ops.index import put
from tilewright.ops.source import full
from tilewright.ops.view import concat, section


def emitted(cascade: Cascade, steps: Sequence[Step]) -> list[Op]:
    """The ops of the steps, in order. Readers of the tensors that are needed as a whole read the new ones; the ops of
    the cascade are dropped."""
    writer = _Writer(cascade)
    for step in steps:
        writer.write(step)
    for buffer, value in writer.wholes.items():
        value.name = buffer.value.name
        inside = set(cascade.ops)
        for user in [u for u in buffer.value.users if u not in inside]:
            user.set_operands([value if v is buffer.value else v for v in user.operands])
    for op in reversed(cascade.ops):
        op.drop()
    return writer.ops


class _Writer:
    def __init__(self, cascade: Cascade) -> None:
        self.cascade = cascade
        self.ops: list[Op] = []
        self.values: dict[RowBuffer, Value] = {}
        self.parts: dict[RowBuffer, list[Value]] = {}
        self.wholes: dict[RowBuffer, Value] = {}

    def write(self, step: Step) -> None:
        match step:
            case MakeRows():
                self._make(step)
            case JoinRows():
                self._join(step)
            case PlaceRows():
                self._place(step)

    def _axis(self, buffer: RowBuffer) -> int:
        return self.cascade.links[buffer.value].axis

    def _make(self, step: MakeRows) -> None:
        given: list[tuple[Value, RowRange | None]] = []
        for v, source in zip(step.link.op.operands, step.sources, strict=True):
            rows = None if source is None else RowRange(self._axis(source), source.start, source.stop)
            given.append((v, None) if source is None else (self.values[source], rows))
        op = step.link.on_rows(step.result.start, step.result.stop, given)
        self.ops.append(op)
        self.values[step.result] = op.result

    def _join(self, step: JoinRows) -> None:
        old, new, axis = step.old, step.new, self._axis(step.old)
        kept, first = old.stop - step.result.start, step.result.start - old.start

        def joined(a: Value, b: Value) -> Value:
            return concat(section(a, axis, first, kept), b, axis=axis)

        region = _region(
            "elementwise", "slice_concat", [self.values[old], self.values[new]], joined, self._loc(old)
        )
        self.values[step.result] = self._added(region)

    def _place(self, step: PlaceRows) -> None:
        whole, part, axis = step.whole, self.values[step.new], self._axis(step.new)
        if (step.new.start, step.new.stop) == (whole.start, whole.stop):
            self.wholes[whole] = self.values[whole] = part
            return
        if is_in_lines(whole.value, axis):
            parts = self.parts.setdefault(whole, [])
            parts.append(part)
            if step.new.stop == whole.stop:
                self.wholes[whole] = self.values[whole] = self._concat(whole, parts, axis)
            return
        if step.new.start == 0:
            type = whole.value.tensor
            fill = _region(
                "elementwise",
                "full",
                [],
                lambda: full(value=0, dtype=type.dtype, shape=type.shape),
                self._loc(whole),
            )
            self.wholes[whole] = self._added(fill)
        at = tuple(step.new.start if k == axis else 0 for k in range(whole.value.tensor.rank))
        before = self.wholes[whole]
        region = _region("opaque", "put", [before, part], lambda x, p: put(x, p, at=at), self._loc(whole))
        self.wholes[whole] = self.values[whole] = self._added(region)

    def _concat(self, whole: RowBuffer, parts: Sequence[Value], axis: int) -> Value:
        type = whole.value.type
        return self._added(Op("concat", parts, [type], {"axis": axis}, loc=self._loc(whole)))

    def _loc(self, buffer: RowBuffer) -> Loc:
        op = buffer.value.op
        assert op is not None
        return op.loc

    def _added(self, op: Op) -> Value:
        self.ops.append(op)
        return op.result


def _region(strategy: str, name: str, operands: Sequence[Value], body: Callable[..., Value], loc: Loc) -> Op:
    """The region of what `body` makes of its operands."""
    block = Block([v.type for v in operands], [v.name for v in operands])
    with Builder(block, loc=loc) as builder:
        result = body(*block.args)
        builder.emit("yield", [result])
    attrs: dict[str, Any] = {"strategy": strategy, "name": name}
    return Op(FUSED, operands, [result.type], attrs, [block], loc)
