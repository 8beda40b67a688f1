"""Loops that copy a part of one buffer to another."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.ir.sym import ONE, Sym, affine_in, mod
from tilewright.ir.types import product
from tilewright.loops.edit import address_of, body_of, buffer_type, extent_of, is_loop, kind_of, loop_var
from tilewright.target.machine import Machine, Route


@dataclass(frozen=True, eq=False)
class Copy:
    """`target[..] = source[..]` in loops, outermost first."""

    load: Op
    store: Op
    loops: tuple[Op, ...]

    @property
    def source(self) -> Value:
        return self.load.operands[0]

    @property
    def target(self) -> Value:
        return self.store.operands[1]

    @property
    def is_filled(self) -> bool:
        """Whether elements are copied under a condition, and are a number where it does not hold."""
        return bool(self.load.attrs.get("guard"))

    @property
    def run_bytes(self) -> Sym:
        """Bytes that follow each other in both buffers."""
        size = buffer_type(self.source).dtype.bytes
        left = list(self.loops)
        run = ONE
        while (loop := next((o for o in reversed(left) if self._moves_by(o, run)), None)) is not None:
            left.remove(loop)
            run = run * extent_of(loop)
        return run * size

    def _moves_by(self, loop: Op, step: Sym) -> bool:
        found = [affine_in(address_of(o), loop_var(loop)) for o in (self.load, self.store)]
        return all(move is not None and move[0] is step for move in found)

    @property
    def bytes(self) -> Sym:
        """All that is copied."""
        return product(extent_of(o) for o in self.loops) * buffer_type(self.source).dtype.bytes


def copy_in(ops: list[Op]) -> Copy | str:
    """The copy that `ops` are, or why they are none."""
    loops: list[Op] = []
    while len(ops) == 1 and is_loop(ops[0]):
        if kind_of(ops[0]) == "parallel":
            return f"loop '{loop_var(ops[0])}' is parallel"
        loops.append(ops[0])
        ops = body_of(ops[0]).ops
    if [op.name for op in ops] != ["load", "store"] or ops[1].operands[0] is not ops[0].result:
        return "it does more than to copy elements of one buffer to another"
    load, store = ops
    if store.attrs.get("guard") or (load.attrs.get("guard") and "other" not in load.attrs):
        return "elements are copied under a condition; split the loops at it"
    return Copy(load, store, tuple(loops))


def why_not_on(copy: Copy, route: Route) -> str | None:
    """Why a copy cannot go along a route; None when it can."""
    source, target = (buffer_type(v).space for v in (copy.source, copy.target))
    if (source, target) != (route.source, route.target):
        return f"it copies from '{source}' to '{target}', and the route is from '{route.source}' to '{route.target}'"
    if copy.is_filled and not route.fills:
        return "elements are copied under a condition, and the route fills none; split the loops at it"
    size = copy.run_bytes
    if not route.partial and mod(size, route.unit) != 0:
        return f"it copies {size} bytes at a time, which are no multiple of the {route.unit} bytes of the route"
    return None


def route_of(copy: Copy, machine: Machine) -> Route | None:
    """The route of a machine between the memories of a copy."""
    return machine.route(buffer_type(copy.source).space, buffer_type(copy.target).space)
