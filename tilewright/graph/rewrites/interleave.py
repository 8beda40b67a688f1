"""A rule of canonicalisation about the slices of an axis that are put beside each other: a transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ops.view import reshape, slice_, transpose


@dataclass(frozen=True)
class _Moved:
    """A slice, and the reshapes and transposes behind it, of which the last gives an operand of a concat."""

    slice: Op
    moves: tuple[Op, ...]

    def is_like(self, other: _Moved) -> bool:
        """Whether the other is the same but for the place of its slice."""
        return (
            self.slice.operands[0] is other.slice.operands[0]
            and self.slice.attrs["steps"] == other.slice.attrs["steps"]
            and len(self.moves) == len(other.moves)
            and all(map(_alike, self.moves, other.moves))
        )


def _alike(a: Op, b: Op) -> bool:
    return a.name == b.name and a.result.type == b.result.type and a.attrs.get("perm") == b.attrs.get("perm")


@rule("concat")
def slices_beside_each_other(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """concat of f(x[.., 0, ..]), f(x[.., 1, ..]), ... -> a transpose of x: f of all of them at once, which keeps their
    axis last, whose place is then that of the concat."""
    axis = op.attrs["axis"] % type_of(op.result).rank
    found = [_moved(v) for v in op.operands]
    parts = [p for p in found if p is not None]
    if len(parts) < 2 or len(parts) != len(found) or any(shape_of(v)[axis] != 1 for v in op.operands):
        return None
    cut = _axis_of([p.slice for p in parts]) if all(p.is_like(parts[0]) for p in parts) else None
    if cut is None:
        return None
    whole = _all_at_once(parts[0], cut, len(parts))
    order = [*range(axis), len(shape_of(whole)) - 1, *range(axis, len(shape_of(whole)) - 1)]
    return reshape(transpose(whole, perm=tuple(order)), shape=shape_of(op.result))


def _moved(v: Value) -> _Moved | None:
    moves: list[Op] = []
    while v.op is not None and v.op.name in ("reshape", "transpose"):
        moves.insert(0, v.op)
        (v,) = v.op.operands
    return _Moved(v.op, tuple(moves)) if v.op is not None and v.op.name == "slice" else None


def _axis_of(slices: Sequence[Op]) -> int | None:
    """The axis of which each slice has the next element, where the slices differ in nothing else."""
    starts = [[sym(s) for s in op.attrs["starts"]] for op in slices]
    (cut, *others) = [k for k, at in enumerate(zip(*starts, strict=True)) if len(set(at)) > 1] or [-1]
    if cut < 0 or others or any(shape_of(op.result) != shape_of(slices[0].result) for op in slices):
        return None
    follow = all(own[cut] == starts[0][cut] + k for k, own in enumerate(starts))
    return cut if follow and shape_of(slices[0].result)[cut] == 1 else None


def _all_at_once(part: _Moved, cut: int, count: int) -> Value:
    """What the moves make of `count` slices, which are the last axis of the result."""
    first, shape = part.slice, shape_of(part.slice.result)
    sizes: list[Sym] = [sym(count) if k == cut else d for k, d in enumerate(shape)]
    x = slice_(
        first.operands[0],
        starts=first.attrs["starts"],
        sizes=tuple(sizes),
        steps=tuple(1 if k == cut else step for k, step in enumerate(first.attrs["steps"])),
    )
    x = transpose(x, perm=(*(k for k in range(len(shape)) if k != cut), cut))
    x = reshape(x, shape=(*shape, sym(count)))
    for move in part.moves:
        if move.name == "transpose":
            x = transpose(x, perm=(*move.attrs["perm"], len(move.attrs["perm"])))
        else:
            x = reshape(x, shape=(*shape_of(move.result), sym(count)))
    return x
