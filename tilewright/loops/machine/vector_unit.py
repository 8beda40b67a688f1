"""Whether a nest is work of a vector unit, and how many cycles it takes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from tilewright.ir.core import Op
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import Sym, affine_in
from tilewright.loops.edit import (
    address_of,
    buffer_type,
    describe,
    extent_of,
    is_loop,
    kind_of,
    loop_var,
)
from tilewright.target.machine import VectorUnit

_FREE = frozenset({"load", "store", "const", "for"})


def why_not_in_lanes(unit: VectorUnit, nest: Sequence[Op]) -> str | None:
    """Why a vector unit cannot do a nest; None where it can."""
    for op in (o for root in nest for o in root.walk() if o.name in ("load", "store")):
        buffer = op.operands[-1]
        if buffer_type(buffer).space not in unit.memories:
            space, known = buffer_type(buffer).space, ", ".join(unit.memories)
            return f"'{buffer.name}' is in memory '{space}', and unit '{unit.name}' works in {known}"
    return why_not_computed(unit, nest)


def why_not_computed(unit: VectorUnit, nest: Sequence[Op]) -> str | None:
    """Why a vector unit could not do a nest whose operands lie in its memory; None where it could."""
    for op in (o for root in nest for o in root.walk()):
        if is_loop(op) and (kind_of(op) == "parallel" or "boustrophedon" in op.attrs):
            return f"{describe(op)} is not an ordinary loop"
        if op.attrs.get("guard"):
            return f"{describe(op)} is under a condition; split the loop at it"
        if op.name in COMPUTING and op.name not in unit.operations and op.name != "cast":
            return f"unit '{unit.name}' does no '{op.name}'"
        if op.name not in _FREE and op.name not in COMPUTING:
            return f"{describe(op)} is nothing that a vector unit does"
        wrong = _why_not_here(unit, op) if op.name in ("load", "store") else None
        if wrong is not None:
            return wrong
    return None


def _why_not_here(unit: VectorUnit, access: Op) -> str | None:
    buffer = access.operands[-1]
    type = buffer_type(buffer)
    around = _loops_around(access)
    if around and _step(access, around[-1]) not in (0, 1):
        return f"elements of '{buffer.name}' do not follow each other along loop '{loop_var(around[-1])}'"
    if type.dtype.name not in unit.lanes:
        return f"unit '{unit.name}' has no lanes for '{buffer.name}', which is {type.dtype}"
    return None


def unit_cycles(unit: VectorUnit, nest: Sequence[Op], env: Mapping[str, int]) -> float:
    """Cycles of a nest on a unit: each store in it is computed a vector of results at a time. Loops from the innermost
    on that move all operands as one loop would are one; a sum along them comes together in `across` cycles."""
    return unit.start + sum(_of_store(unit, o, env) for root in nest for o in root.walk() if o.name == "store")


def _of_store(unit: VectorUnit, store: Op, env: Mapping[str, int]) -> float:
    ops = _computed_for(store)
    accesses = [store, *(o for o in ops if o.name == "load")]
    around = [o for o in _loops_around(store) if not _is_fixed(o, env)]
    lanes = min(unit.lanes[buffer_type(o.operands[-1]).dtype.name] for o in accesses)
    extents = [int(extent_of(o).evaluate(dict(env))) for o in around]
    taken = 0
    length = 1
    while taken < len(around):
        loop = around[-1 - taken]
        if taken and not all(_goes_on(o, loop, around[-taken], extents[-taken]) for o in accesses):
            break
        length *= extents[-1 - taken]
        taken += 1
    vectors = prod(extents[: len(around) - taken]) * ceil(length / lanes)
    computing = [o for o in ops if o.name in COMPUTING]
    each = sum(unit.operations.get(o.name, unit.move) for o in computing) or unit.move
    is_sum = bool(around) and _step(store, around[-1]) == 0
    return vectors * each + (prod(extents[: len(around) - taken]) * unit.across if is_sum else 0)


def _computed_for(store: Op) -> list[Op]:
    found: dict[Op, None] = {}
    pending = [store.operands[0].op]
    while pending:
        op = pending.pop()
        if op is not None and op not in found:
            found[op] = None
            pending += [v.op for v in op.operands if op.name != "load"]
    return list(found)


def _loops_around(store: Op) -> list[Op]:
    """The loops around a store, up to the run that it is in, outermost first."""
    found: list[Op] = []
    holder = store.parent.parent if store.parent else None
    while isinstance(holder, Op) and is_loop(holder):
        found.append(holder)
        holder = holder.parent.parent if holder.parent else None
    return found[::-1]


def _is_fixed(loop: Op, env: Mapping[str, int]) -> bool:
    return loop_var(loop).name in env


def _step(access: Op, loop: Op) -> Sym | int | None:
    found = affine_in(address_of(access), loop_var(loop))
    return None if found is None else found[0].value if found[0].is_const else found[0]


def _goes_on(access: Op, outer: Op, inner: Op, extent: int) -> bool:
    """Whether the outer loop moves an access as further iterations of the inner one would."""
    step, within = _step(access, outer), _step(access, inner)
    return isinstance(step, int) and isinstance(within, int) and step == within * extent
