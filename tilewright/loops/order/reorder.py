"""Exchanging the loops of a nest."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Func, Op
from tilewright.ir.sym import ZERO, Sym
from tilewright.loops.analysis.deps import accesses, order_dependences
from tilewright.loops.edit import (
    block_of,
    body_of,
    describe,
    extent_of,
    is_inside,
    is_loop,
    kind_of,
    loop_var,
    new_if,
    put_ops,
    ranges_at,
    refuse,
    take_ops,
)
from tilewright.loops.primitive import primitive


@primitive
def reorder(func: Func, *order: Op) -> Sequence[Op]:
    """Give the loops of one nest this order, outermost first; other loops of the nest keep their places.

        for i { for j { if g { for k { S } } } }    ->    for i { for k { for j { if g { S } } } }

    The nest may hold nothing between its loops but index conditions, which move to the innermost.
    ScheduleError when the loops are not one such nest, when an extent or an `boustrophedon` would be used outside
    of the loop whose variable it reads, or when two accesses could change places (accumulations by one operation may).
    """
    wanted = list(order)
    if len(set(wanted)) != len(wanted):
        refuse("reorder", wanted[0], "a loop is listed twice")
    if len(wanted) < 2:
        return wanted
    chain = _chain(wanted)
    loops = [op for op in chain if is_loop(op)]
    places = [k for k, loop in enumerate(loops) if loop in wanted]
    new = list(loops)
    for place, loop in zip(places, wanted, strict=True):
        new[place] = loop
    if new != loops:
        _check(loops, new)
        _rebuild(chain, loops, new)
    return wanted


def _chain(wanted: Sequence[Op]) -> list[Op]:
    """The loops and conditions from the outermost to the innermost wanted loop."""
    innermost = next((w for w in wanted if all(o is w or is_inside(w, o) for o in wanted)), None)
    if innermost is None:
        refuse(
            "reorder",
            wanted[0],
            f"the loops {', '.join(str(loop_var(w)) for w in wanted)} are not nested in each other",
        )
    chain = [innermost]
    left = set(wanted) - {innermost}
    while left:
        holder = block_of(chain[0]).parent
        assert isinstance(holder, Op)
        if len(body_of(holder).ops) != 1:
            others = next(o for o in body_of(holder).ops if o is not chain[0])
            refuse(
                "reorder", holder, f"it holds more than the next loop ({describe(others)}); use fission first"
            )
        if holder.name == "run":
            refuse("reorder", wanted[0], "a run lies between the loops, which is done as a whole")
        if holder.operands:
            refuse("reorder", holder, "its condition is computed from data")
        left.discard(holder)
        chain.insert(0, holder)
    return chain


def _check(loops: Sequence[Op], new: Sequence[Op]) -> None:
    _check_kinds(loops, new)
    for k, loop in enumerate(new):
        inside = [o for o in new[k + 1 :] if loop_var(o) in extent_of(loop).vars]
        if inside:
            refuse(
                "reorder", loop, f"its extent reads '{loop_var(inside[0])}', whose loop would be inside of it"
            )
        turns = [o for o in new[k + 1 :] if loop_var(o) in loop.attrs.get("boustrophedon", ZERO).vars]
        if turns:
            refuse(
                "reorder",
                loop,
                f"it alternates with '{loop_var(turns[0])}', whose loop would be inside of it",
            )
    for a, b, free in order_dependences(accesses(loops[0]), loops, ranges_at(loops[0])):
        if [o for o in loops if o in free] != [o for o in new if o in free]:
            names = ", ".join(str(loop_var(o)) for o in loops if o in free)
            refuse(
                "reorder", next(o for o in loops if _moves(o, loops, new)),
                f"{describe(a.buffer)}: {a.place} and {b.place} may meet where {names} differ",
            )  # fmt: skip


def _moves(loop: Op, loops: Sequence[Op], new: Sequence[Op]) -> bool:
    return loops.index(loop) != list(new).index(loop)


def _check_kinds(loops: Sequence[Op], new: Sequence[Op]) -> None:
    for loop in loops:
        around, then = (order[: list(order).index(loop)] for order in (loops, new))
        if kind_of(loop) == "parallel" and set(around) != set(then):
            refuse("reorder", loop, "no loop moves into a parallel loop or out of it")
        if kind_of(loop) == "vector" and any(
            kind_of(o) != "unroll" for o in new[list(new).index(loop) + 1 :]
        ):
            refuse("reorder", loop, "a vector loop can only hold unrolled loops; vectorize after reordering")


def _rebuild(chain: Sequence[Op], loops: Sequence[Op], new: Sequence[Op]) -> None:
    """Link the loops in their new order, with all conditions of the chain in one `if` around the innermost
    body."""
    guard: list[Sym] = [g for op in chain if not is_loop(op) for g in op.attrs["guard"]]
    holder = block_of(chain[0])
    position = holder.ops.index(chain[0])
    payload = take_ops(body_of(loops[-1]))
    if guard:
        payload = [new_if(tuple(dict.fromkeys(guard)), payload)]
    for loop in reversed(new):
        put_ops(body_of(loop), payload)
        payload = [loop]
    holder.ops[position] = new[0]
    new[0].parent = holder
