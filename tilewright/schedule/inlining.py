"""What of a region is a stage, a loop nest that fills a buffer, and what is written into the bodies of its readers.

Decided before a region is lowered (`loops/lower.py`): cheap ops that are no reductions are computed where they are
read, and reductions take over the axes of the stage that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tilewright.cost.recompute import may_be_repeated
from tilewright.graph.match import picks_matrices
from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import COSTLY, converted_from
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.nodes import (
    RegionNode,
    RegionPlan,
    at_positions,
    is_irregular,
    is_view,
    node_of,
)
from tilewright.ops.define import Compute


def plan_of(region: Op, constants: Sequence[int] = (), *, keeps_layout: bool = False) -> RegionPlan:
    """How to lower a `fused` op, of which operands number `constants` have known elements. With `keeps_layout` sums
    have their own layout, and not that of the views that read them."""
    return RegionPlan() if is_irregular(region) else _Inlining(region, constants).plan(keeps_layout)


class _Inlining:
    """State of the decisions about one region."""

    def __init__(self, region: Op, constants: Sequence[int]) -> None:
        (body,) = region.blocks
        self.constants = {body.args[k] for k in constants}
        self.yielded = list(body.ops[-1].operands)
        self.nodes: dict[Value, RegionNode] = {op.result: node_of(op) for op in body.ops[:-1]}
        self.over_readers: set[Value] = set()
        self.ends_sums: dict[Op, bool] = {}
        self.after_sums: set[Op] = set()  # what is computed from reductions of this kernel, be it of other shapes

    def plan(self, keeps_layout: bool) -> RegionPlan:
        for node in self.nodes.values():
            producers = [self.nodes[v] for v in node.op.operands if v in self.nodes]
            if any(p.compute.combine or p.op in self.after_sums for p in producers):
                self.after_sums.add(node.op)
        for node in self.nodes.values():
            node.inline = self._may_inline(node)
        _inline_for_one_element(self.nodes.values(), self._ends_a_sum)
        if not keeps_layout:
            self._absorb_views()
        return RegionPlan(self.nodes, frozenset(self.over_readers))

    def _may_inline(self, node: RegionNode) -> bool:
        value = node.op.result
        if node.compute.combine or node.compute.tiles or value in self.yielded:
            return False
        if self._is_narrow_factor(node) or self._is_weight(node):
            return False
        if node.op in self.after_sums and not is_view(node.compute) and self._is_read_in_windows(value):
            return False
        readers = {id(u) for u in value.users}
        if len(readers) == 1 and len(value.users) == 1:
            return self._reads_once(value)
        if any(self.nodes[u.result].compute.combine for u in value.users) and self._ends_a_sum(node):
            return False
        ops = node.compute.body.ops
        shared = not self._ends_a_sum(node) and all(self._stores_alike(u, node) for u in value.users)
        return may_be_repeated(len(ops), any(o.name in COSTLY for o in ops), shared)

    def _stores_alike(self, reader: Op, node: RegionNode) -> bool:
        """Whether a reader is elementwise work on elements of the same shape, and leaves the region."""
        c, leaves = self.nodes[reader.result].compute, reader.result in self.yielded
        return leaves and c.shape == node.compute.shape and not (c.combine or c.tiles or is_view(c))

    def _is_narrow_factor(self, node: RegionNode) -> bool:
        """Whether it rounds an operand of a sum of products to fewer bits than the sum has, or fills it up with zeros:
        these are multiplied in groups, that lie together in memory."""
        value, ops = node.op.result, node.compute.body.ops
        bits = value.tensor.dtype.bits
        if (source := converted_from(ops[-1].operands[0])) is not None:
            wider = source.scalar.dtype.bits
        elif any(o.attrs.get("guard") for o in ops if o.name == "load"):
            wider = max((u.result.tensor.dtype.bits for u in value.users if u.name != "yield"), default=0)
        else:
            return False
        readers = (u for u in value.users if u.name != "yield" and len(u.operands) == 2)
        return bits < wider and any(bool(self.nodes[u.result].compute.combine) for u in readers)

    def _is_weight(self, node: RegionNode) -> bool:
        """Whether it computes an operand of a sum of products from constants: a stage, so that a schedule may say where
        that is done."""
        (reader,) = node.op.result.users if len(node.op.result.users) == 1 else (None,)
        while reader is not None and reader.name != "yield" and is_view(self.nodes[reader.result].compute):
            (reader,) = reader.result.users if len(reader.result.users) == 1 else (None,)
        if reader is None or reader.name == "yield" or is_view(node.compute) or picks_matrices(node.op):
            return False
        if not node.op.operands:
            return False
        multiplies = len(reader.operands) == 2 and bool(self.nodes[reader.result].compute.combine)
        return multiplies and self._is_known(node)

    def _is_known(self, node: RegionNode) -> bool:
        """Whether all of its elements follow from constants, or from matrices that data pick of them."""
        read = node.op.operands[:1] if picks_matrices(node.op) else node.op.operands
        producers = (self.nodes.get(v) for v in read if v not in self.constants)
        return all(p is not None and self._is_known(p) for p in producers)

    def _is_read_in_windows(self, value: Value) -> bool:
        """Whether a reduction reads its elements several times, be it through other index maps."""
        size = product(extent for _, extent in self.nodes[value].compute.axes)
        for reader in (self.nodes[u.result] for u in value.users if u.name != "yield"):
            if reader.compute.combine:
                iterations = product(e for _, e in (*reader.compute.axes, *reader.compute.reduce))
                if iterations != size:
                    return True
            elif is_view(reader.compute) and self._is_read_in_windows(reader.op.result):
                return True
        return False

    def _ends_a_sum(self, node: RegionNode) -> bool:
        """Whether it is elementwise work on a sum of its own shape, best done once while the sum is in registers."""
        found = self.ends_sums.get(node.op)  # paths through shared values are many
        if found is None:
            found = self.ends_sums[node.op] = self._follows_a_sum(node)
        return found

    def _follows_a_sum(self, node: RegionNode) -> bool:
        producers = (self.nodes.get(v) for v in node.op.operands)
        alike = [p for p in producers if p is not None and p.compute.shape == node.compute.shape]
        return any(bool(p.compute.combine) or (p.inline and self._ends_a_sum(p)) for p in alike)

    def _reads_once(self, value: Value) -> bool:
        """False when the only reader would compute a costly element many times (broadcast or reduction window)."""
        node = self.nodes[value]
        if not self._chain_is_costly(node):
            return True
        reader = self.nodes[value.users[0].result]
        extents = product(e for _, e in (*reader.compute.axes, *reader.compute.reduce))
        return extents == product(e for _, e in node.compute.axes)

    def _chain_is_costly(self, node: RegionNode) -> bool:
        """Whether it, or what is written into it, has a costly operation."""
        pending, seen = [node], {node.op}
        while pending:
            current = pending.pop()
            if any(o.name in COSTLY for o in current.compute.body.ops):
                return True
            inlined = [self.nodes[v] for v in current.op.operands if v in self.nodes and self.nodes[v].inline]
            pending += [n for n in inlined if n.op not in seen]
            seen.update(n.op for n in inlined)
        return False

    def _absorb_views(self) -> None:
        """A reduction takes over the axes of the stage that reads it through index maps, so the maps cost nothing. A
        product with rows that the kernel computes from sums keeps its own: these rows come in blocks."""
        for value, node in self.nodes.items():
            if not node.compute.combine or value in self.yielded or self._multiplies_sums(node):
                continue
            found = self._read_position(value, node)
            if found is None:
                continue
            reader, position = found
            mapped = at_positions(node.compute, reader, position)
            if mapped is not None:
                node.compute = mapped
                self.over_readers.add(value)

    def _multiplies_sums(self, node: RegionNode) -> bool:
        return node.op in self.after_sums and len(node.op.operands) == 2

    def _read_position(self, value: Value, node: RegionNode) -> tuple[Compute, tuple[Sym, ...]] | None:
        """The stage that alone reads `value`, and the position it reads, in terms of that stage's axes."""
        position = tuple(v for v, _ in node.compute.axes)
        while True:
            if len(value.users) != 1 or value in self.yielded:
                return None
            reader = self.nodes[value.users[0].result]
            loads = reader.loads_of(value)
            if (
                reader.compute.combine
                or reader.compute.tiles
                or len(loads) != 1
                or loads[0].attrs.get("guard")
            ):
                return None
            at = dict(zip((v for v, _ in node.compute.axes), loads[0].attrs["idx"], strict=True))
            position = tuple(i.subs(at) for i in position)
            if not reader.inline:
                return reader.compute, position
            value, node = reader.op.result, reader


def _inline_for_one_element(nodes: Collection[RegionNode], stays: Callable[[RegionNode], bool]) -> None:
    """Mark what has several readers, and does not stay a stage, to be written into them where all end in one element of
    one stage: it is computed once there. Sums and ops that fill tiles stay."""
    of_value = {node.op.result: node for node in nodes}
    stages: dict[Op, Op | None] = {}
    for node in reversed(list(nodes)):
        ends: set[Op | None] = set()
        for user in node.op.result.users:
            reader = of_value.get(user.result) if user.results else None
            alike = reader is not None and node.is_read_alike(reader)
            ends.add((stages[user] if reader.inline else user) if alike and reader is not None else None)
        stages[node.op] = stage = ends.pop() if len(ends) == 1 else None
        is_sum = bool(node.compute.combine or node.compute.tiles)
        if stage is not None and len(node.op.result.users) > 1 and not is_sum and not stays(node):
            node.inline = True
