"""Operators that only move elements: every one is an index map, so that fusion can make it free."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, ge, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import Compute, compute, op, primitive
from tilewright.ops.define.broadcasting import fits, may_be_one, require_broadcast
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import (
    Dim,
    checked_axes,
    checked_axis,
    dims,
    require,
    require_equal_dim,
    require_length,
    require_same_dtype,
    surely_different,
)


def shape_of(x: Value) -> tuple[Sym, ...]:
    """The shape of a tensor value."""
    return x.tensor.shape


@primitive
def transpose(x: Array, *, perm: Sequence[int]) -> Compute:
    """Axis `k` of the result is axis `perm[k]` of x."""
    order = [checked_axis(a, x.rank) for a in perm]
    if sorted(order) != list(range(x.rank)):
        raise ValueError(f"{tuple(perm)} is not a permutation of the {x.rank} axes")
    inverse = [order.index(a) for a in range(x.rank)]
    return compute([x], [x.shape[a] for a in order], lambda t, i, r: x[tuple(i[k] for k in inverse)])


@primitive(is_alias=True)
def reshape(x: Array, *, shape: Sequence[Dim]) -> Compute:
    """The elements of x in row-major order under another shape with as many elements."""
    new = dims(shape)
    if surely_different(product(x.shape), product(new)):
        raise ValueError(f"{product(x.shape)} elements cannot take a shape of {product(new)}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        if any(d == 0 for d in (*x.shape, *new)):
            return t.const(0, x.dtype)
        return x[reshaped_index(x.shape, new, i)]

    return compute([x], new, body)


def reshaped_index(old: Sequence[Sym], new: Sequence[Sym], index: Sequence[Sym]) -> tuple[Sym, ...]:
    """Where the element at `index` of a tensor of shape `new` lies when its shape is `old`.

    Axes are matched in the least groups of equal size, so that few divisions are left; axes of one element take part
    in none.
    """
    if any(d == 1 for d in (*old, *new)):
        pairs = [(d, i) for d, i in zip(new, index, strict=True) if d != 1]
        found = iter(reshaped_index([d for d in old if d != 1], [d for d, _ in pairs], [i for _, i in pairs]))
        return tuple(sym(0) if d == 1 else next(found) for d in old)
    result: list[Sym] = []
    a = b = 0
    while a < len(old) or b < len(new):
        group_a, group_b = _next_group(old[a:], new[b:])
        flat = sym(0)
        for d, i in zip(new[b : b + group_b], index[b : b + group_b], strict=True):
            flat = flat * d + i
        result.extend(_unflattened(flat, old[a : a + group_a]))
        a, b = a + group_a, b + group_b
    return tuple(result)


def _next_group(old: Sequence[Sym], new: Sequence[Sym]) -> tuple[int, int]:
    """How many leading axes of each shape make up the same number of elements; all where none do."""
    of_new = {}
    for n in range(len(new), 0, -1):
        of_new[product(new[:n])] = n
    for n in range(1, len(old) + 1):
        if (m := of_new.get(product(old[:n]))) is not None:
            return n, m
    return len(old), len(new)


def _unflattened(flat: Sym, shape: Sequence[Sym]) -> list[Sym]:
    """The index whose row-major position in `shape` is `flat`."""
    index: list[Sym] = []
    for k in reversed(range(len(shape))):
        is_first = k == 0
        index.append(sym(0) if shape[k] == 1 else flat if is_first else flat % shape[k])
        flat = flat if shape[k] == 1 else flat // shape[k] if not is_first else flat
    return index[::-1]


@primitive
def expand(x: Array, *, shape: Sequence[Dim]) -> Compute:
    """x broadcast to `shape` (NumPy's broadcast_to)."""
    new = dims(shape)
    if len(new) < x.rank:
        raise ValueError(f"{x.rank} axes cannot be broadcast to {len(new)}")
    for own, d in zip(x.shape, new[len(new) - x.rank :], strict=True):
        require_broadcast(own, d, "dims of the tensor and of the target shape")
    return compute([x], new, lambda t, i, r: x.at(i))


expand.broadcasts(lambda x, *, shape: [dims(shape)])


@primitive
def stretch(x: Array, *, shape: Sequence[Dim], first: Sequence[int] = (), of: str = "") -> Compute:
    """x broadcast to `shape`, which has as many axes, where a dim of x may turn out to be 1 or that of `shape`. Along
    the axes `first` it has no more than one element. `of` is the operator that needs it, in words."""
    new = dims(shape)
    require_length(new, x.rank, "the target shape")
    for own, d in zip(x.shape, new, strict=True):
        if own != 1 and surely_different(own, d) and not may_be_one(own):
            raise ValueError(f"a dim of {own} is not 1, nor is it {d}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        places = [s.select(s.eq(own, 1), 0, k) if own != d else k for own, d, k in zip(x.shape, new, i, strict=True)]
        return x[tuple(sym(0) if axis in first else place for axis, place in enumerate(places))]

    return compute([x], new, body)


@stretch.requires
def _same_or_one(x: TensorType, *, shape: Sequence[Dim], first: Sequence[int], of: str) -> tuple[Sym, str]:
    pairs = [(own, d) for own, d in zip(x.shape, dims(shape), strict=True) if own != d]
    holds = s.logical_and(*(fits(own, d) for own, d in pairs))
    return holds, f"{of}: it must be that {holds}"


@primitive
def slice_(x: Array, *, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int] = ()) -> Compute:
    """`sizes[k]` elements along each axis k, from `starts[k]` on, `steps[k]` apart (1 by default).

    Starts count from 0 and every element must lie inside of x: clamping is the caller's part.
    """
    steps = tuple(steps) or (1,) * x.rank
    for values, what in ((starts, "starts"), (sizes, "sizes"), (steps, "steps")):
        require_length(values, x.rank, what)
    if 0 in steps:
        raise ValueError("a step of 0 never ends")
    for start, size, step, d in zip(dims(starts), dims(sizes), steps, x.shape, strict=True):
        for position in (start, start + (size - 1) * step):
            outside = (position.bounds[1] or 0) < 0 or ((d - 1 - position).bounds[1] or 0) < 0
            if outside and size.bounds[0] not in (None, 0):
                raise ValueError(f"position {position} is outside of an axis of {d} elements")
    return compute(
        [x],
        dims(sizes),
        lambda t, i, r: x[tuple(b + k * c for b, k, c in zip(starts, i, steps, strict=True))],
    )


@primitive
def pad(
    x: Array, *, before: Sequence[Dim], after: Sequence[Dim], mode: str = "constant", value: float = 0
) -> Compute:
    """x with `before[k]` and `after[k]` elements more (or, negative, fewer) at the ends of each axis k.

    Modes: "constant" (`value`), "edge" (the nearest element), "reflect" (mirrored, the edge not
    repeated), "wrap" (the other end goes on).
    """
    require_length(before, x.rank, "before")
    require_length(after, x.rank, "after")
    shape = [d + b + a for d, b, a in zip(x.shape, before, after, strict=True)]
    for d in shape:
        if (hi := d.bounds[1]) is not None and hi < 0:
            raise ValueError(f"cropping leaves {d} elements")
    padded = [k for k in range(x.rank) if sym(before[k]) != 0 or sym(after[k]) != 0]
    for k in padded if mode != "constant" else ():
        require(ge(x.shape[k], 1), f"mode '{mode}' has nothing to repeat along an empty axis")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode '{mode}' is none of constant, edge, reflect, wrap")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        inner = [k - b for k, b in zip(i, before, strict=True)]
        if mode == "constant":
            guard = [g for k in padded for g in _inside(inner[k], x.shape[k], before[k], after[k])]
            return x.load(inner, guard, value)
        return x[
            tuple(
                _repeated(k, d, mode) if n in padded else k
                for n, (k, d) in enumerate(zip(inner, x.shape, strict=True))
            )
        ]

    return compute([x], shape, body)


def _inside(position: Sym, size: Sym, before: Dim, after: Dim) -> list[Sym]:
    """The conditions under which `position` lies in 0..size, given the padding that may take it out."""
    conditions = []
    if before != 0 and sym(before).bounds != (None, 0):
        conditions.append(s.ge0(position))
    if after != 0:
        conditions.append(s.lt(position, size))
    return conditions


def _repeated(position: Sym, size: Sym, mode: str) -> Sym:
    """The element in 0..size that stands at a position outside of it."""
    if mode == "edge":
        return s.minimum(s.maximum(position, 0), size - 1)
    if mode == "wrap":
        return position % size
    period = s.maximum(2 * (size - 1), 1)
    phase = position % period
    return s.minimum(phase, 2 * (size - 1) - phase) if size != 1 else sym(0)


@primitive
def concat(*xs: Array, axis: int) -> Compute:
    """The operands one after the other along `axis`."""
    if not xs:
        raise ValueError("concat takes at least one operand")
    require_same_dtype(*xs)
    a = checked_axis(axis, xs[0].rank)
    ends = [sym(0)]
    for x in xs:
        if x.rank != xs[0].rank:
            raise ValueError(f"operands must have equally many axes, not {xs[0].rank} and {x.rank}")
        for k in range(x.rank):
            if k != a:
                require_equal_dim(x.shape[k], xs[0].shape[k], f"dims of axis {k}")
        ends.append(ends[-1] + x.shape[a])
    shape = [_most_known([x.shape[k] for x in xs]) for k in range(xs[0].rank)]
    shape[a] = ends[-1]

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        element: Scalar | None = None
        for n in reversed(range(len(xs))):
            own = [k - ends[n] if axis_ == a else k for axis_, k in enumerate(i)]
            is_before_end = s.lt(i[a], ends[n + 1])
            guard = ([s.ge0(own[a])] if n else []) + ([is_before_end] if n + 1 < len(xs) else [])
            loaded = xs[n].load(own, guard)
            element = (
                loaded if element is None else t.select(t.index(is_before_end, dt.bool_), loaded, element)
            )
        assert element is not None
        return element

    return compute(xs, shape, body)


def _most_known(candidates: Sequence[Sym]) -> Sym:
    return next((d for d in candidates if d.is_const), candidates[0])


@primitive
def reverse(x: Array, *, axes: Sequence[int]) -> Compute:
    """x with the order along `axes` reversed."""
    reversed_axes = checked_axes(axes, x.rank)
    return compute(
        [x],
        x.shape,
        lambda t, i, r: x[
            tuple(d - 1 - k if n in reversed_axes else k for n, (k, d) in enumerate(zip(i, x.shape, strict=True)))
        ],
    )


@op
def squeeze(x: Value, *, axes: Sequence[int]) -> Value:
    """x without `axes`, whose dims must be 1."""
    shape = shape_of(x)
    dropped = checked_axes(axes, len(shape))
    for a in dropped:
        require_equal_dim(shape[a], sym(1), f"the dim of squeezed axis {a} and 1")
    return reshape(x, shape=tuple(d for k, d in enumerate(shape) if k not in dropped))


@op
def unsqueeze(x: Value, *, axes: Sequence[int]) -> Value:
    """x with axes of one element put in, at positions `axes` of the result."""
    shape = list(shape_of(x))
    for a in checked_axes(axes, len(shape) + len(axes)):
        shape.insert(a, sym(1))
    return reshape(x, shape=tuple(shape))


@op
def flatten(x: Value, *, axis: int = 1) -> Value:
    """x as a matrix: the axes before `axis` are its rows, the others its columns."""
    shape = shape_of(x)
    at = axis + len(shape) if axis < 0 else axis
    if not 0 <= at <= len(shape):
        raise ValueError(f"axis {axis} does not exist: the tensor has {len(shape)} axes")
    return reshape(x, shape=(product(shape[:at]), product(shape[at:])))


flatten.onnx("Flatten", since=1, axis="axis")


def sliced(x: Value, starts: Sequence[Dim], sizes: Sequence[Dim], steps: Sequence[int]) -> Value:
    """The slice; x itself where that is all of it."""
    each = zip(starts, sizes, steps, shape_of(x), strict=True)
    if all(start == 0 and size == d and step == 1 for start, size, step, d in each):
        return x
    found: Value = slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
    return found


def channels_first(x: Value) -> Value:
    """[n, *space, c] as [n, c, *space]; passes remove what meets its opposite."""
    rank = len(shape_of(x))
    found: Value = transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    return found


def channels_last(x: Value) -> Value:
    """[n, c, *space] as [n, *space, c]."""
    found: Value = transpose(x, perm=(0, *range(2, len(shape_of(x))), 1))
    return found


def section(x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """So many elements along one axis, from `start` on, each `step` places behind the one before."""
    shape = shape_of(x)
    a = checked_axis(axis, len(shape))
    starts = tuple(start if k == a else 0 for k in range(len(shape)))
    steps = tuple(step if k == a else 1 for k in range(len(shape)))
    found: Value = slice_(x, starts=starts, sizes=(*shape[:a], size, *shape[a + 1 :]), steps=steps)
    return found


def is_consecutive_slice(op: Op) -> bool:
    """Whether the elements of a slice follow each other in its operand: all axes before the first longer than one
    have length one there, all axes after it are whole."""
    source, part = op.operands[0].tensor.shape, op.result.tensor.shape
    if any(step != 1 for step in op.attrs["steps"]):
        return False
    cut = next((k for k, d in enumerate(part) if d != 1), len(part))
    return part[cut + 1 :] == source[cut + 1 :]


@op
def split(x: Value, *, sizes: Sequence[Dim], axis: int) -> tuple[Value, ...]:
    """Consecutive parts of x along `axis`, of `sizes` elements each."""
    shape = shape_of(x)
    a = checked_axis(axis, len(shape))
    require_equal_dim(sum(dims(sizes), sym(0)), shape[a], "the sum of the sizes and the split dim")
    parts = []
    start = sym(0)
    for size in dims(sizes):
        starts = tuple(start if k == a else sym(0) for k in range(len(shape)))
        parts.append(slice_(x, starts=starts, sizes=(*shape[:a], size, *shape[a + 1 :])))
        start = start + size
    return tuple(parts)


@op
def tile(x: Value, *, repeats: Sequence[Dim]) -> Value:
    """x repeated `repeats[k]` times along each axis k."""
    shape = shape_of(x)
    require_length(repeats, len(shape), "repeats")
    counts = dims(repeats)
    if all(n == 1 for n in counts):
        return x
    apart = tuple(d for k in shape for d in (sym(1), k))
    wide = tuple(d for pair in zip(counts, shape, strict=True) for d in pair)
    spread = expand(reshape(x, shape=apart), shape=wide)
    return reshape(spread, shape=tuple(n * d for n, d in zip(counts, shape, strict=True)))


@primitive
def copy(x: Array) -> Compute:
    """The same elements in memory of their own: for outputs that would share another tensor's."""
    return compute([x], x.shape, lambda t, i, r: x[tuple(i)])
