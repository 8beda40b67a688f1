"""Cleaning up a loop program: what the ranges of its loops decide is decided."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Func, Op, Value, erase_dead
from tilewright.ir.scalar import COMPUTING, scalar_operation
from tilewright.ir.sym import ONE, Sym, sym
from tilewright.ir.sym import simplify as simplify_sym
from tilewright.ir.symbolic.arith import factors_of
from tilewright.loops.analysis.bounds import Ranges, holds, relevant
from tilewright.loops.edit import (
    block_of,
    body_of,
    enclosing,
    enclosing_loops,
    extent_of,
    is_loop,
    kind_of,
    loop_range,
    loop_var,
    new_if,
    put_ops,
    ranges_of,
    substitute_in,
    take_ops,
)
from tilewright.loops.primitive import primitive

PURE = COMPUTING | {"load", "const", "index", "lanes_reduce"}


@primitive
def simplify(func: Func, within: Op | None = None) -> Func:
    """Remove what has no effect, in place, from all of the program or from the body of the loop `within`; the program
    computes the same.

    - conditions that hold for certain (or hold already around) go, and so does what never runs;
    - loops of one iteration become their body, loops of none vanish;
    - conditions that stand still in a loop move out of it (not out of a parallel one);
    - index expressions lose divisions, remainders, minima and maxima that the ranges decide;
    - of selections by what is decided (such a condition, or integers that are known to be equal) what is selected is
      left, and of checks nothing;
    - scalars, registers and scratch that nobody reads go.
    """
    if within is None:
        put_ops(func.body, _block(func.body, {}, frozenset()))
    else:
        put_ops(
            body_of(within),
            _block(body_of(within), ranges_of([*enclosing_loops(within), within]), frozenset()),
        )
    if within is None or not _erase_unread_around(within):
        _erase_unread(func)
    return func


def _block(block: Block, ranges: Ranges, assumed: frozenset[Sym]) -> list[Op]:
    ops: list[Op] = []
    for op in take_ops(block):
        if is_loop(op):
            ops += _loop(op, ranges, assumed)
        elif op.name == "if":
            ops += _if(op, ranges, assumed)
        elif op.name in ("load", "store"):
            ops += _access(op, ranges, assumed)
        else:
            if op.name == "run":
                put_ops(body_of(op), _block(body_of(op), ranges, assumed))
            elif op.name == "index":
                op.attrs["expr"] = _index(op.attrs["expr"], ranges)
            elif op.name == "prefetch":
                op.attrs["idx"] = tuple(_index(i, ranges) for i in op.attrs["idx"])
            elif (decided := _DECIDABLE.get(op.name)) is not None and decided(op, ranges):
                continue
            ops.append(op)
    return ops


def _truth(condition: Value, ranges: Ranges) -> bool | None:
    """Of a flag that is an index expression or a comparison of known integers for equality."""
    made = condition.op
    if made is None:
        return None
    if made.name == "index":
        expr: Sym = made.attrs["expr"]
        return expr.value != 0 if expr.is_const else holds(expr, ranges)
    said = scalar_operation(made)
    known = [v.op.attrs["value"] for v in made.operands if v.op is not None and v.op.name == "const"]
    if not (said.signs and said.commutative) or len(known) != 2 or not made.operands[0].scalar.dtype.is_int:
        return None
    a, b = known
    return (a > b) - (a < b) in said.signs


def _select(op: Op, ranges: Ranges) -> bool:
    """Whether the condition is decided: the operand that it picks then takes the place of the result."""
    condition, holding, other = op.operands
    truth = _truth(condition, ranges)
    if truth is None:
        return False
    op.result.replace_by(holding if truth else other)
    op.drop()
    return True


def _check(op: Op, ranges: Ranges) -> bool:
    """Whether what is to hold is known to: the check is dropped then."""
    if not _truth(op.operands[0], ranges):
        return False
    op.drop()
    return True


_DECIDABLE = {"select": _select, "check": _check}


def _loop(loop: Op, ranges: Ranges, assumed: frozenset[Sym]) -> list[Op]:
    extent = _index(extent_of(loop), ranges)
    loop.attrs["extent"] = extent
    if extent.is_const and extent.value <= 0:
        loop.drop()
        return []
    if extent is ONE and kind_of(loop) != "parallel":
        loop.parent = None
        substitute_in(body_of(loop), {loop_var(loop): sym(0)})
        return _block(body_of(loop), ranges, assumed)
    put_ops(body_of(loop), _block(body_of(loop), ranges | {loop_var(loop): loop_range(loop)}, assumed))
    if not body_of(loop).ops:
        return []
    return _hoisted(loop)


def _hoisted(loop: Op) -> list[Op]:
    """The loop, with the conditions of its only content that do not read its variable around it."""
    ops = body_of(loop).ops
    if len(ops) != 1 or ops[0].name != "if" or ops[0].operands or kind_of(loop) == "parallel":
        return [loop]
    inner = ops[0]
    guard: tuple[Sym, ...] = inner.attrs["guard"]
    still = tuple(c for c in guard if loop_var(loop) not in c.vars)
    if not still:
        return [loop]
    inner.attrs["guard"] = tuple(c for c in guard if c not in still)
    if not inner.attrs["guard"]:
        put_ops(body_of(loop), take_ops(body_of(inner)))
    return [new_if(still, [loop], loc=inner.loc)]


def _if(op: Op, ranges: Ranges, assumed: frozenset[Sym]) -> list[Op]:
    guard = _open(op.attrs["guard"], ranges, assumed)
    if guard is None:
        op.drop()
        return []
    inside = _block(body_of(op), ranges, assumed | set(guard))
    if not guard and not op.operands:
        return inside
    if not inside:
        op.drop()
        return []
    op.attrs["guard"] = guard
    put_ops(body_of(op), inside)
    return [op]


def _access(op: Op, ranges: Ranges, assumed: frozenset[Sym]) -> list[Op]:
    op.attrs["idx"] = tuple(_index(i, ranges) for i in op.attrs["idx"])
    if "guard" not in op.attrs:
        return [op]
    guard = _open(op.attrs["guard"], ranges, assumed)
    if guard is None and op.name == "store":
        op.drop()
        return []
    if guard is None:
        other = Op("const", [], [op.result.type], {"value": op.attrs.get("other", 0)}, loc=op.loc)
        op.result.replace_by(other.result)
        op.drop()
        return [other]
    op.attrs["guard"] = guard
    if not guard:
        del op.attrs["guard"]
        op.attrs.pop("other", None)
    return [op]


def _open(guard: Sequence[Sym], ranges: Ranges, assumed: frozenset[Sym]) -> tuple[Sym, ...] | None:
    """The conditions that are not decided; None when one is false."""
    left: list[Sym] = []
    for c in guard:
        if c in assumed or c in left:
            continue
        truth = holds(c, ranges)
        if truth is False:
            return None
        if truth is None:
            left.append(c)
    return tuple(left)


_DIVISIONS = frozenset({"floordiv", "mod", "min", "max", "select", "ge0", "eq0"})


def _index(e: Sym, ranges: Ranges) -> Sym:
    """`e` simplified; plain polynomials are left alone, as nothing can be decided in them."""
    return simplify_sym(e, relevant(ranges, e)) if _has_division(e) else e


def _has_division(e: Sym) -> bool:
    if e.kind in ("var", "const"):
        return False
    return any([f.kind in _DIVISIONS for mono, _ in e.terms for f in factors_of(mono)])


def _erase_unread(func: Func) -> None:
    """Remove pure ops without users, then local buffers that are only written, until nothing changes."""
    changed = True
    while changed:
        for block in _blocks(func.body):
            erase_dead(block, lambda op: op.name in PURE)
        changed = False
        for op in [o for o in func.body.walk() if o.name == "alloc"]:
            if _is_only_written(op):
                for user in list(op.result.users):
                    user.erase()
                op.erase()
                changed = True
    _erase_empty(func.body)


def _erase_unread_around(loop: Op) -> bool:
    """What `_erase_unread` does where only a loop's body has changed: what that no longer reads is defined in it or in
    the blocks around, so that a kernel of many loops is not gone through for each of them. False, with more to do,
    where a buffer is no longer read."""
    around = [block_of(o) for o in (loop, *enclosing(loop)[::-1])]
    for block in (*_blocks(body_of(loop))[::-1], *around):
        erase_dead(block, lambda op: op.name in PURE)
        if any(_is_only_written(op) for op in block.ops):
            return False
    _erase_empty(body_of(loop))
    for op in (loop, *enclosing(loop)[::-1]):
        if op.name not in ("for", "if") or body_of(op).ops:
            break
        op.erase()
    return True


def _is_only_written(op: Op) -> bool:
    """Whether it is a local buffer that nobody reads."""
    return op.name == "alloc" and all(user.name == "store" for user in op.result.users)


def _blocks(block: Block) -> list[Block]:
    return [block, *(b for op in block.walk() for b in op.blocks)]


def _erase_empty(block: Block) -> None:
    for op in list(block.ops):
        for b in op.blocks:
            _erase_empty(b)
        if op.name in ("for", "if") and not body_of(op).ops:
            op.erase()
