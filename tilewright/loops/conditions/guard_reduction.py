"""Leaving out what adds nothing to a sum."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.scalar import converted_from, identity, scalar_operation
from tilewright.ir.sym import Sym
from tilewright.loops.analysis.deps import Accumulation, accumulation_of
from tilewright.loops.edit import block_of, buffer_type, is_loop, kind_of, loop_var, new_if, put_ops, refuse
from tilewright.loops.primitive import primitive


@primitive
def guard_reduction(func: Func, loop: Op) -> Op:
    """Skip the iterations in which a guarded load gives the neutral element, instead of accumulating it.

        acc[i] += x[k if c else 0] * w[k]    ->    if c { acc[i] += x[k] * w[k] }

    The conditions that a vector loop around decides for all of its lanes move; those of single lanes stay, as do those
    on positions that are bound beside the accumulation. They move out of a loop of kind `dot`, but for those of single
    products. Where something is checked there nothing moves. A factor of a neutral element counts as finite. What is
    said of products in sums holds of all operations that absorb the neutral element: `max` of `min`, `or` of `and`.
    ScheduleError when the loop has no such accumulation.
    """
    stores = [op for op in loop.walk() if op.name == "store"]
    moved = [op for op in stores if _skip(op)]
    if not moved:
        refuse("guard_reduction", loop, "none of its sums has terms that may be left out where they are padding")
    return loop


def _skip(store: Op) -> bool:
    found = accumulation_of(store)
    block = block_of(store)
    if any((op.name in ("store", "check") and op is not store) or op.blocks for op in block.ops):
        return False
    inside = {op.attrs["var"] for op in block.ops if op.name == "bind"}
    holder = block.parent
    if isinstance(holder, Op) and is_loop(holder) and kind_of(holder) == "dot":
        inside.add(loop_var(holder))
        block = block_of(holder)
        if block.ops != [holder]:
            return False
    inside.add(_lane_around(block.ops[0]))
    shared: tuple[Sym, ...] = ()
    for load in [] if found is None else _neutral_loads(found):
        guard: tuple[Sym, ...] = load.attrs["guard"]
        shared = tuple(c for c in guard if not inside & c.vars)
        if shared:
            break
    if not shared:
        return False
    load.attrs["guard"] = tuple(c for c in guard if c not in shared)
    if not load.attrs["guard"]:
        del load.attrs["guard"]
        load.attrs.pop("other", None)
    put_ops(block, [new_if(shared, list(block.ops))])
    return True


def _lane_around(op: Op) -> Sym | None:
    """The variable of the vector loop directly around."""
    holder = block_of(op).parent
    in_lanes = isinstance(holder, Op) and is_loop(holder) and kind_of(holder) == "vector"
    return loop_var(holder) if isinstance(holder, Op) and in_lanes else None


def _neutral_loads(found: Accumulation) -> list[Op]:
    """The guarded loads that make the accumulated value neutral where their guard does not hold."""
    neutral, applied = identity(found.combine.name, buffer_type(found.buffer).dtype), found.value.op
    if _is_guarded(found.value, neutral):
        return [op for op in (applied,) if op is not None]
    if applied is None or scalar_operation(applied).absorbing != scalar_operation(found.combine).identity:
        return []
    factors = applied.operands if neutral else map(_before_casts, applied.operands)
    return [v.op for v in factors if v.op is not None and _is_guarded(v, neutral)]


def _before_casts(value: Value) -> Value:
    """What a value is cast from; zero stays zero."""
    while (source := converted_from(value)) is not None:
        value = source
    return value


def _is_guarded(value: Value, other: float | int) -> bool:
    op = value.op
    return (
        op is not None
        and op.name == "load"
        and bool(op.attrs.get("guard"))
        and op.attrs.get("other", other) == other
    )
