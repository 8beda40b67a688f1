"""Rules of canonicalisation about views: those that do nothing, and those that meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.graph.match import dtype_of, shape_of, type_of
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, has_one_use, rule
from tilewright.ir.sym import Sym, prove_ge0, sym
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, expand, reshape, slice_, transpose


@rule("transpose", "reshape", "expand", "slice", "pad", "concat", "reverse")
def view_that_does_nothing(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A view whose result is its operand."""
    x = op.operands[0]
    if x.type != op.result.type or len(op.operands) != 1:
        return None
    attrs, rank = op.attrs, len(shape_of(x))
    same = {
        "transpose": lambda: tuple(attrs["perm"]) == tuple(range(rank)),
        "slice": lambda: all(step == 1 for step in attrs["steps"]),
        "pad": lambda: all(sym(p) == 0 for p in (*attrs["before"], *attrs["after"])),
        "reverse": lambda: all(shape_of(x)[a] == 1 for a in attrs["axes"]),
    }
    return x if same.get(op.name, lambda: True)() else None


@rule("transpose")
def transpose_of_transpose(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], "transpose")
    if inner is None:
        return None
    return transpose(inner.operands[0], perm=tuple(inner.attrs["perm"][k] for k in op.attrs["perm"]))


@rule("transpose")
def transpose_of_unit_axes(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A transpose that keeps the order of all axes longer than 1 is a reshape."""
    (x,) = op.operands
    moved = [k for k in op.attrs["perm"] if shape_of(x)[k] != 1]
    return reshape(x, shape=shape_of(op.result)) if moved == sorted(moved) else None


@rule("reshape")
def reshape_of_reshape(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], "reshape")
    return None if inner is None else reshape(inner.operands[0], shape=op.attrs["shape"])


@rule("reshape", "transpose", "expand")
def view_of_number(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A view of a `full` is a `full`."""
    source = defining(op.operands[0], "full")
    if source is None:
        return None
    return full(value=source.attrs["value"], dtype=source.attrs["dtype"], shape=shape_of(op.result))


@rule("expand")
def expand_of_expand(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], "expand")
    return None if inner is None else expand(inner.operands[0], shape=op.attrs["shape"])


@rule()
def broadcast_built_in(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Elementwise operators broadcast by themselves: an `expand` before them is needless, and so is the shape
    of a `full`."""
    if len(op.operands) < 2 or not any(map(_is_expanded, op.operands)) or not is_elementwise(op):
        return None
    found = list(op.operands)
    for k, operand in enumerate(op.operands):
        slim = _unexpanded(operand)
        if slim is None:
            continue
        trial = [*found[:k], slim, *found[k + 1 :]]
        if _broadcast_rank(trial) == type_of(op.result).rank and OPERATORS[op.name].result_types(
            [type_of(v) for v in trial], op.attrs
        ) == (op.result.type,):
            found = trial
    return None if found == list(op.operands) else OPERATORS[op.name](*found, **op.attrs)


def _is_expanded(value: Value) -> bool:
    return defining(value, "expand", "full") is not None and bool(shape_of(value))


def _unexpanded(value: Value) -> Value | None:
    """A value with fewer elements that broadcasts to the same."""
    source = defining(value, "expand", "full")
    if source is None or not _is_expanded(value):
        return None
    if source.operands:
        return source.operands[0]
    return full(value=source.attrs["value"], dtype=dtype_of(value), shape=())


def _broadcast_rank(values: Sequence[Value]) -> int:
    return max(type_of(v).rank for v in values)


def _steps(op: Op) -> tuple[int, ...]:
    return tuple(op.attrs["steps"]) or (1,) * type_of(op.result).rank


@rule("slice")
def slice_of_slice(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], "slice")
    if inner is None:
        return None
    rows = zip(op.attrs["starts"], _steps(op), inner.attrs["starts"], _steps(inner), strict=True)
    starts, steps = [], []
    for start, step, first, stride in rows:
        starts.append(sym(first) + sym(start) * stride)
        steps.append(step * stride)
    return slice_(inner.operands[0], starts=tuple(starts), sizes=op.attrs["sizes"], steps=tuple(steps))


@rule("slice")
def slice_of_concat(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A slice that lies inside of one operand of a concat is a slice of it."""
    joined = defining(op.operands[0], "concat")
    if joined is None:
        return None
    axis = joined.attrs["axis"] % type_of(op.result).rank
    if _steps(op)[axis] != 1:
        return None
    start, size = sym(op.attrs["starts"][axis]), sym(op.attrs["sizes"][axis])
    begin = sym(0)
    for part in joined.operands:
        end = begin + shape_of(part)[axis]
        if prove_ge0(start - begin) and prove_ge0(end - start - size):
            starts = tuple(start - begin if k == axis else v for k, v in enumerate(op.attrs["starts"]))
            return slice_(part, starts=starts, sizes=op.attrs["sizes"], steps=op.attrs["steps"])
        begin = end
    return NoMatch("the slice spans several operands of the concat")


@rule("concat")
def concat_of_concat(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Joined at once; operands without elements are left out."""
    axis = op.attrs["axis"] % type_of(op.result).rank
    parts: list[Value] = []
    for part in op.operands:
        inner = defining(part, "concat")
        nests = inner is not None and inner.attrs["axis"] % type_of(part).rank == axis and has_one_use(part)
        parts += inner.operands if nests and inner is not None else [part]
    parts = [p for p in parts if shape_of(p)[axis] != 0] or parts[:1]
    if parts == list(op.operands):
        return None
    found = concat(*parts, axis=axis)
    return found if found.type == op.result.type else None


@rule("concat")
def slices_put_together_again(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """concat(x[:a], x[a:]) -> x."""
    axis = op.attrs["axis"] % type_of(op.result).rank
    slices = [defining(v, "slice") for v in op.operands]
    first = slices[0]
    if first is None or first.operands[0].type != op.result.type:
        return None
    position = sym(0)
    for part in slices:
        if part is None or part.operands[0] is not first.operands[0] or any(s != 1 for s in _steps(part)):
            return None
        starts = [sym(s) for s in part.attrs["starts"]]
        if starts[axis] != position or any(s != 0 for k, s in enumerate(starts) if k != axis):
            return None
        position = position + part.attrs["sizes"][axis]
    return first.operands[0]


@rule("reduce_sum", "reduce_prod", "reduce_min", "reduce_max", "reduce_and", "reduce_or")
def reduction_of_nothing(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A reduction over axes of one element is a reshape."""
    (x,) = op.operands
    if any(shape_of(x)[a] != 1 for a in op.attrs["axes"]):
        return None
    return x if x.type == op.result.type else reshape(x, shape=shape_of(op.result))


@rule("matmul")
def transpose_into_matmul(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A transpose that takes the last axis of an operand to the other side of the product becomes a flag."""
    operands, attrs = list(op.operands), dict(op.attrs)
    for k, flag in enumerate(("transpose_a", "transpose_b")):
        swap = defining(operands[k], "transpose")
        if swap is None:
            continue
        perm = tuple(swap.attrs["perm"])
        rank = len(perm)
        if perm[-2] == rank - 1:
            operands[k] = transpose(swap.operands[0], perm=(*perm[:-2], perm[-1], perm[-2]))
            attrs[flag] = not attrs[flag]
    return None if operands == list(op.operands) else matmul(*operands, **attrs)


@rule("matmul")
def repeated_heads(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Heads that share their keys (or values): the queries of a group are rows of one product.

    matmul(q [n, g * r, t, d], k repeated r times [n, g * r, d, s]) -> matmul(q [n, g, r * t, d], k [n, g, d,
    s]).
    """
    return _heads_as_rows(op)


@rule("matmul")
def repeated_heads_of_one_query(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """As `repeated_heads`, where each head has one row. Others stay apart, so that work on rows of a head need not
    divide by their number."""
    shape = shape_of(op.operands[0])
    return _heads_as_rows(op) if len(shape) == 4 and shape[2] == 1 else None


def _heads_as_rows(op: Op) -> Replacement:
    q, repeated = op.operands
    if op.attrs["transpose_a"] or type_of(q).rank != 4 or type_of(repeated).rank != 4:
        return None
    k = _repeated_on_axis_1(repeated)
    if k is None or shape_of(q)[:2] != shape_of(repeated)[:2]:
        return None
    n, heads, t, d = shape_of(q)
    groups = shape_of(k)[1]
    rows = reshape(q, shape=(n, groups, heads // groups * t, d))
    product = matmul(rows, k, transpose_b=op.attrs["transpose_b"])
    return reshape(product, shape=shape_of(op.result))


def _repeated_on_axis_1(value: Value) -> Value | None:
    """x [n, g, s, d] where `value` is x with every g repeated, [n, g * r, s, d]."""
    merged = defining(value, "reshape")
    wide = defining(merged.operands[0], "expand") if merged is not None else None
    if wide is None or merged is None:
        return None
    source, target = shape_of(wide.operands[0]), shape_of(wide.result)
    if (
        len(target) != 5
        or len(source) != 5
        or source[2] != 1
        or not source[1].is_const
        or not target[2].is_const
    ):
        return None
    kept = (*source[:2], *source[3:])
    if source != (*target[:2], sym(1), *target[3:]) or shape_of(value) != (
        target[0], target[1] * target[2], *target[3:],
    ):  # fmt: skip
        return None
    return reshape(wide.operands[0], shape=kept)


# Slices that are put beside each other


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
    while (move := defining(v, "reshape", "transpose")) is not None:
        moves.insert(0, move)
        (v,) = move.operands
    cut = defining(v, "slice")
    return None if cut is None else _Moved(cut, tuple(moves))


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
        perm = move.attrs.get("perm")
        if perm is None:
            x = reshape(x, shape=(*shape_of(move.result), sym(count)))
        else:
            x = transpose(x, perm=(*perm, len(perm)))
    return x


VIEW_RULES = (
    view_that_does_nothing, transpose_of_transpose, transpose_of_unit_axes, reshape_of_reshape,
    view_of_number,
    expand_of_expand, broadcast_built_in, slice_of_slice, slice_of_concat, concat_of_concat,
    slices_put_together_again, reduction_of_nothing, transpose_into_matmul, repeated_heads,
    slices_beside_each_other,
)  # fmt: skip
