"""Concats that their operands' kernels write, and slices that are read where they lie: no kernel copies them.

A part of a larger tensor can stand for a tensor of its own where its elements follow each other there. This is decided
after fusion: what is left as a kernel of its own then would only move elements from one place to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.ir.core import Block, Func, Module, Op, Value, replace_in_block
from tilewright.ir.sym import ZERO
from tilewright.ops.view import is_consecutive_slice
from tilewright.passes import PassContext
from tilewright.program.memory.storage import planned_bytes
from tilewright.program.memory.views import (
    Location,
    bytes_of,
    joins_consecutive_parts,
    locate,
    part_offsets,
    slice_offset,
)


@dataclass(frozen=True)
class PlaceViews:
    """Replace fused regions that only join or cut tensors by views, where that needs no more memory."""

    name: ClassVar[str] = "place-views"

    def run(self, module: Module, ctx: PassContext) -> None:
        views = _Views(module.main, ctx)
        views.find()
        views.place()


@dataclass(frozen=True)
class _View:
    """A region that becomes a view: where values will lie (`parents`), and the operands that are parts
    of the same memory."""

    region: Op
    parents: dict[Value, Location]
    direct: frozenset[Value] = frozenset()


class _Views:
    """The regions that become views, and where values lie then."""

    def __init__(self, func: Func, ctx: PassContext) -> None:
        self.func = func
        self.ctx = ctx
        self.parents: dict[Value, Location] = {}
        self.locations = locate(func)
        self.returned = {self.locations[v].root for v in func.returns}
        self.accepted: dict[Op, _View] = {}

    # Decisions

    def find(self) -> None:
        """Take every view that does not make the arena larger."""
        bytes: int | None = None
        for region in self.func.body.ops:
            view = self._view_of(region)
            if view is None:
                continue
            if any(at.offset % self.ctx.part_align is not ZERO for at in view.parents.values()):
                self._remark(region, f"a part does not begin at a multiple of {self.ctx.part_align} bytes for certain")
                continue
            if bytes is None:
                bytes = planned_bytes(self.func)
            parents = self.parents | view.parents
            needed = planned_bytes(self.func, parents)
            if needed > bytes:
                self._remark(region, "the tensors would be kept longer, in more memory")
                continue
            bytes, self.parents = needed, parents
            self.locations = locate(self.func, parents)
            self.accepted[region] = view
            self._remark(region, "no copy", applied=True)

    def _view_of(self, region: Op) -> _View | None:
        if region.name != "fused" or len(region.results) != 1:
            return None
        op = region.blocks[0].ops[-1].operands[0].op
        make = None if op is None else _MAKERS.get(op.name)
        return None if op is None or make is None else make(self, region, op)

    def _slice(self, region: Op, op: Op) -> _View | None:
        if region.blocks[0].ops[0] is not op:
            return None
        if region.result in self.returned:
            self._remark(region, "an output of the model has memory of its own")
        elif not is_consecutive_slice(op):
            self._remark(region, "its elements lie apart in the tensor that it is cut from")
        else:
            (source,) = region.operands
            return _View(region, {region.result: Location(source, slice_offset(op))}, frozenset({source}))
        return None

    def _concat(self, region: Op, op: Op) -> _View | None:
        if not joins_consecutive_parts(op):
            self._remark(region, "the elements of an operand lie apart in the result")
            return None
        actual = dict(zip(region.blocks[0].args, region.operands, strict=True))
        parents: dict[Value, Location] = {}
        direct = set()
        for part, offset in zip(op.operands, part_offsets(op), strict=True):
            value = actual.get(part)
            if value is None or op.operands.count(part) > 1:
                continue
            root = self.locations[value].root
            if root not in parents and self._may_move(value):
                parents[root] = Location(region.result, offset)
                direct.add(value)
        if not direct:
            self._remark(region, "no operand can be written in place")
            return None
        return _View(region, parents, frozenset(direct))

    def _may_move(self, value: Value) -> bool:
        """Whether the kernel of `value` can write it elsewhere: it is a whole tensor with memory of its own."""
        root = self.locations[value].root
        is_made_here = root.op is not None and root.op.name == "fused"
        is_own = root not in self.returned and self.locations[value] == Location(root)
        return is_made_here and is_own and bytes_of(root) == bytes_of(value)

    def _remark(self, region: Op, message: str, applied: bool = False) -> None:
        self.ctx.remark("place-views", f"{region.attrs.get('name', 'fused')} {region.loc}", message, applied)

    # Rewriting

    def place(self) -> None:
        """Put views in the place of the accepted regions."""
        ops: list[Op] = []
        for op in list(self.func.body.ops):
            view = self.accepted.get(op)
            ops += [op] if view is None else self._replacement(view)
        replace_in_block(self.func.body, ops)

    def _replacement(self, view: _View) -> list[Op]:
        region = view.region
        op = region.blocks[0].ops[-1].operands[0].op
        assert op is not None
        actual = dict(zip(region.blocks[0].args, region.operands, strict=True))
        before: list[Op] = []
        operands = []
        for part in op.operands:
            value = actual.get(part)
            if value not in view.direct:
                before.append(_part_region(region, part))
                value = before[-1].result
            assert value is not None
            operands.append(value)
        placed = Op(op.name, operands, [op.result.type], op.attrs, loc=region.loc)
        region.result.replace_by(placed.result)
        region.drop()
        return [*before, placed]


_MAKERS = {"slice": _Views._slice, "concat": _Views._concat}


def _part_region(region: Op, part: Value) -> Op:
    """The region that computes only `part`, a value of the body of `region`; a copy for an argument of it."""
    body = region.blocks[0]
    needed = _needed_for(part, body.ops)
    reads = [a for a in body.args if a is part or any(a in op.operands for op in needed)]
    block = Block([a.type for a in reads], [a.name for a in reads])
    values: dict[Value, Value] = dict(zip(reads, block.args, strict=True))
    for op in needed:
        block.append(op.clone(values))
    result = values[part]
    if not needed:
        result = block.append(Op("copy", [result], [part.type], loc=region.loc)).result
    block.append(Op("yield", [result]))
    actual = dict(zip(body.args, region.operands, strict=True))
    attrs: dict[str, Any] = region.attrs | {"name": "_".join(op.name for op in needed[-4:]) or "copy"}
    found = Op("fused", [actual[a] for a in reads], [part.type], attrs, [block], region.loc)
    found.result.name = part.name
    return found


def _needed_for(value: Value, ops: Sequence[Op]) -> list[Op]:
    """The ops that `value` is computed by, in order."""
    wanted = {value}
    found: list[Op] = []
    for op in reversed(ops):
        if wanted.intersection(op.results):
            found.append(op)
            wanted.update(op.operands)
    return found[::-1]
