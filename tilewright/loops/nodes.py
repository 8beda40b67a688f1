"""The ops of a region on their way into a kernel, and where their elements are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.core import Op, Value, substitute
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS, Compute


@dataclass(eq=False)
class RegionNode:
    """An op of the region on its way into the kernel."""

    op: Op
    compute: Compute
    inline: bool

    def loads_of(self, value: Value) -> list[Op]:
        """The loads of its body that read operand `value`."""
        args = {a for a, v in zip(self.compute.body.args, self.op.operands, strict=True) if v is value}
        return [op for op in self.compute.body.ops if op.name == "load" and op.operands[0] in args]

    def is_read_alike(self, reader: RegionNode) -> bool:
        """Whether each element of `reader`, and no sum, reads the element of this op's result at its own place."""
        c, loads = reader.compute, reader.loads_of(self.op.result)
        axes = tuple(v for v, _ in c.axes)
        if c.combine or c.tiles or c.shape != self.compute.shape:
            return False
        return all(load.attrs["idx"] == axes and not load.attrs.get("guard") for load in loads)


@dataclass(frozen=True)
class RegionPlan:
    """What lowering makes of a region: its ops in order, by the values that they give, those written into their readers
    marked; and the reductions that are computed over the axes of their reader. An irregular operator needs none."""

    nodes: Mapping[Value, RegionNode] = field(default_factory=dict)
    over_readers: frozenset[Value] = frozenset()


def is_irregular(region: Op) -> bool:
    """Whether it is one operator that writes its own loops."""
    (body,) = region.blocks
    return len(body.ops) == 2 and OPERATORS[body.ops[0].name].kind == "irregular"


def node_of(op: Op) -> RegionNode:
    """An op of a region, not yet written into its readers."""
    return RegionNode(op, OPERATORS[op.name].compute([v.tensor for v in op.operands], op.attrs), inline=False)


def is_view(compute: Compute) -> bool:
    """Whether it only moves the elements of one operand."""
    names = [o.name for o in compute.body.ops if o.name not in ("index", "yield")]
    return not compute.combine and names == ["load"]


def at_positions(reduction: Compute, reader: Compute, position: tuple[Sym, ...]) -> Compute | None:
    """`reduction` computed over the axes of its reader; None when these read it in place, or not one to one."""
    own = tuple(v for v, _ in reader.axes)
    if position == own or product(reader.shape) != product(reduction.shape):
        return None
    used = frozenset[Sym]().union(*(i.vars for i in position))
    if any(v not in used for v, extent in reader.axes if extent != 1):
        return None  # a broadcast repeats elements
    inner = tuple(var(f"v{k}") for k in range(len(own)))
    rename = dict(zip(own, inner, strict=True))
    mapping = {v: i.subs(rename) for (v, _), i in zip(reduction.axes, position, strict=True)}
    body = reduction.body.clone({}, lambda a: substitute(a, mapping))
    axes = tuple((n, extent) for n, (_, extent) in zip(inner, reader.axes, strict=True))
    return Compute(axes, reduction.reduce, reduction.combine, reduction.dtype, reduction.acc, body)
