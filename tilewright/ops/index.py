"""Operators whose positions are data: gathers and scatters. Indices below 0 count from the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import Compute, compute, irregular, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import (
    Dim,
    UndecidedDimsError,
    checked_axis,
    dims,
    require,
    require_equal_dim,
    require_length,
)
from tilewright.ops.traits.facts import NONE, Traits

_BOTH = frozenset({0, 1})
_OUT_OF_RANGE = "an index is out of range"


def _in_range(t: ScalarBuilder, raw: Scalar, size: Sym) -> tuple[Scalar, Scalar]:
    """An index counted from the front, and whether it lies in 0..size."""
    wide = raw.cast(dt.i64)
    position = t.select(wide < 0, wide + t.index(size), wide)
    return position, (position >= 0) & (position < t.index(size))


def _within(t: ScalarBuilder, raw: Scalar, size: Sym) -> tuple[Scalar, Scalar]:
    """An index that is never counted from the end, and whether it lies in 0..size."""
    wide = raw.cast(dt.i64)
    return wide, (wide >= 0) & (wide < t.index(size))


def checked_position(t: ScalarBuilder, raw: Scalar, size: Sym) -> Sym:
    """An index as a variable in 0..size; out of range is reported, and then it is 0."""
    position, ok = _in_range(t, raw, size)
    t.check(ok, "ExecutionError", _OUT_OF_RANGE)
    return t.bind(
        t.select(ok, position, 0), "at", 0, size.value - 1 if size.is_const and size.value > 0 else None
    )


def known_position(t: ScalarBuilder, raw: Scalar, size: Sym) -> Sym:
    """An index that is known to lie in 0..size as a variable."""
    return t.bind(raw.cast(dt.i64), "at", 0, size.value - 1 if size.is_const and size.value > 0 else None)


def _not_empty(positions: Sequence[Sym], sizes: Sequence[Sym]) -> list[Sym]:
    """Conditions that keep a load out of axes that may turn out empty."""
    return [s.lt(p, d) for p, d in zip(positions, sizes, strict=True) if not (d.bounds[0] or 0) > 0]


def _require_index_dtype(indices: Array | TensorType) -> None:
    if not indices.dtype.is_int:
        raise ValueError(f"indices must be integers, not {indices.dtype}")


@primitive
def within(x: Array, *, low: Dim, high: Dim, what: str) -> Compute:
    """x, integers of which each lies in low..high, both included; any other is reported as `what`."""
    _require_index_dtype(x)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        value = x[tuple(i)]
        wide = value.cast(dt.i64)
        t.check((wide >= t.index(sym(low))) & (wide <= t.index(sym(high))), "ExecutionError", what)
        return value

    return compute([x], x.shape, body)


@primitive
def gather(x: Array, indices: Array, *, axis: int = 0, in_range: bool = False) -> Compute:
    """Slices of x along `axis`: the shape of `indices` takes the place of that axis (NumPy's take). `in_range` says
    that all indices are known to lie in 0..size of the axis, so that none is looked at."""
    a = checked_axis(axis, x.rank)
    _require_index_dtype(indices)
    end = a + indices.rank
    position = known_position if in_range else checked_position

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        at = position(t, indices[tuple(i[a:end])], x.shape[a])
        return x.load((*i[:a], at, *i[end:]), _not_empty([at], [x.shape[a]]))

    return compute([x, indices], [*x.shape[:a], *indices.shape, *x.shape[a + 1 :]], body, dtype=x.dtype)


gather.onnx("Gather", since=1, axis="axis")


@primitive
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Compute:
    """For each position of `indices` the element of x there, with the index in place of `axis`."""
    a = checked_axis(axis, x.rank)
    _require_index_dtype(indices)
    if indices.rank != x.rank:
        raise ValueError(f"indices must have as many axes as the data, {x.rank}, not {indices.rank}")
    _require_within(indices, x, a)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        at = checked_position(t, indices[tuple(i)], x.shape[a])
        return x.load((*i[:a], at, *i[a + 1 :]), _not_empty([at], [x.shape[a]]))

    return compute([x, indices], indices.shape, body, dtype=x.dtype)


gather_elements.onnx("GatherElements", since=11, axis="axis")


def _require_within(indices: Array | TensorType, x: Array | TensorType, axis: int) -> None:
    """ValueError for more positions than the data have along another axis than the one that is looked up."""
    for k, (count, size) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if k != axis:
            require(s.le(count, size), f"indices reach beyond axis {k} of the data: {count} and {size}")


@primitive
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Compute:
    """Slices of x at the index vectors along the last axis of `indices`; leading `batch_dims` go in step."""
    _require_index_dtype(indices)
    depth = _index_depth(indices, x.rank, batch_dims)
    for a, b in zip(indices.shape[:batch_dims], x.shape[:batch_dims], strict=True):
        require_equal_dim(a, b, "batches of indices and of the data")
    outer = indices.rank - 1

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        sizes = x.shape[batch_dims : batch_dims + depth]
        at = [checked_position(t, indices[(*i[:outer], k)], d) for k, d in enumerate(sizes)]
        return x.load((*i[:batch_dims], *at, *i[outer:]), _not_empty(at, sizes))

    shape = [*indices.shape[:-1], *x.shape[batch_dims + depth :]]
    return compute([x, indices], shape, body, dtype=x.dtype)


gather_nd.onnx("GatherND", since=11, batch_dims="batch_dims")


def _index_depth(indices: Array | TensorType, rank: int, batch_dims: int = 0) -> int:
    """The length of the index vectors."""
    if indices.rank < 1:
        raise ValueError("indices must have an axis of index vectors")
    if not indices.shape[-1].is_const:
        dim = indices.shape[-1]
        raise UndecidedDimsError(
            f"the size of index vectors, {dim}, must be known: it decides the rank", (dim,)
        )
    depth = indices.shape[-1].value
    if not 0 <= batch_dims < max(indices.rank, 1) or batch_dims + depth > rank:
        raise ValueError(f"index vectors of {depth} after {batch_dims} batch axes do not fit {rank} axes")
    return depth


@primitive
def one_hot(indices: Array, values: Array, *, depth: Dim, axis: int = -1) -> Compute:
    """`values[1]` where the position on the new axis (of `depth`) is the index, else `values[0]`."""
    a = checked_axis(axis, indices.rank + 1)
    size = sym(depth)
    if values.rank != 1:
        raise ValueError(f"the values must be a vector, not {values.type}")
    require_equal_dim(values.shape[0], sym(2), "the number of values and 2")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        raw = indices[tuple(k for n, k in enumerate(i) if n != a)].cast(dt.i64)
        position = t.select(raw < 0, raw + t.index(size), raw)
        return t.select(position.eq(t.index(i[a])), values[1], values[0])

    shape = [*indices.shape[:a], size, *indices.shape[a:]]
    return compute([indices, values], shape, body, dtype=values.dtype)


@primitive
def lookup(x: Array, keys: Array, values: Array, default: Array, *, required: bool = False) -> Compute:
    """values[k] where x equals keys[k], elsewhere `default`, a scalar; `keys` ascend. Where a key is `required`, others
    are reported."""
    if keys.rank != 1 or values.shape != keys.shape or not keys.shape[0].is_const or keys.shape[0] == 0:
        raise ValueError(
            f"keys {keys.type} and values {values.type} must be vectors of one known length above 0"
        )
    if keys.dtype != x.dtype or default.dtype != values.dtype or default.rank:
        raise ValueError(
            f"{x.type} among keys {keys.type}, or default {default.type} for values {values.type}"
        )

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        wanted, count = x[tuple(i)], keys.shape[0].value
        low, left = t.const(0, dt.i64), count
        while left > 1:
            middle = low + left // 2
            low = t.select(keys[t.bind(middle, "middle", 0, count - 1)] <= wanted, middle, low)
            left -= left // 2
        at = t.bind(low, "at", 0, count - 1)
        found = keys[at].eq(wanted)
        if required:
            t.check(found, "ExecutionError", "a category is none of those that the model knows")
        return t.select(found, values[at], default[()])

    return compute([x, keys, values, default], x.shape, body, dtype=values.dtype)


@primitive
def searchsorted(x: Array, bounds: Array, *, right: bool = False) -> Compute:
    """How many of `bounds`, which ascend along their last axis, are below each element of x, or where `right`, not
    above it (i64). Outer axes of `bounds` are those of x. NaN is above all numbers."""
    *outer, count = bounds.shape
    if bounds.dtype != x.dtype or (outer and x.rank != bounds.rank):
        raise ValueError(f"the place of {x.type} among {bounds.type}")
    for d, e in zip(outer, x.shape, strict=False):
        require_equal_dim(d, e, "outer dims of the bounds and of what is placed")
    most = count.bounds[1]
    are_some = [s.ge(count, 1)] if (count.bounds[0] or 0) < 1 else []
    steps = 48 if most is None else int(most).bit_length()

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        wanted, row = x[tuple(i)], tuple(i[: len(outer)])
        low, high = t.const(0, dt.i64), t.index(count)
        for _ in range(steps):
            middle = t.apply("shr", low + high, 1)
            at = t.bind(t.apply("min", middle, t.index(count - 1)), "middle", 0, None)
            bound = bounds.load((*row, at), are_some)
            is_below = bound <= wanted if right else bound < wanted
            if x.dtype.is_float:  # NaN is the last in order
                nan = t.apply("is_nan", wanted)
                is_below = t.apply(
                    "or", is_below, nan if right else nan & t.apply("not", t.apply("is_nan", bound))
                )
            goes_up = (low < high) & is_below
            high = t.select(goes_up, high, t.apply("min", middle, high))
            low = t.select(goes_up, middle + 1, low)
        return low

    return compute([x, bounds], x.shape, body, dtype=dt.i64)


@primitive
def table_lookup(x: Array, table: Array) -> Compute:
    """table[b] for each byte of x, where b is the byte as a number without a sign; `table` has 256 elements."""
    if not x.dtype.is_int or x.dtype.bits != 8:
        raise ValueError(f"bytes are looked up, not {x.dtype}")
    if table.shape != (256,):
        raise ValueError(f"the table of a byte has 256 elements, not {table.type}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        return table[t.bind(t.bitcast(x[tuple(i)], dt.u8), "byte", 0, 255)]

    return compute([x, table], x.shape, body, dtype=table.dtype)


@primitive
def triangle(x: Array, *, diagonal: Dim = 0, upper: bool = True) -> Compute:
    """x with zeros below (`upper`) or above the given diagonal of its last two axes."""
    if x.rank < 2:
        raise ValueError(f"a matrix has 2 axes at least, not {x.rank}")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        beyond = i[-1] - i[-2] - diagonal
        return x.load(i, [s.ge0(beyond if upper else -beyond)])

    return compute([x], x.shape, body)


# Scatters


def _put_types(x: TensorType, part: TensorType, *, at: Sequence[Dim]) -> tuple[TensorType, ...]:
    require_length(at, x.rank, "at")
    if part.rank != x.rank or part.dtype != x.dtype:
        raise ValueError(f"{part} cannot be put into {x}: both have the same dtype and rank")
    for axis, (start, size, whole) in enumerate(zip(dims(at), part.shape, x.shape, strict=True)):
        where = f"{start} to {start + size} along axis {axis}, of {whole} elements"
        require(s.ge0(start), f"cannot put elements at {where}")
        require(s.le(start + size, whole), f"cannot put elements at {where}")
    return (x,)


@irregular(_put_types)
def put(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, at: Sequence[Dim]) -> None:
    """x with `part` in place of the box of its size that begins at `at`, which lies within x."""
    (x, part), (out,) = inputs, outputs
    for_each(t, x.shape, lambda i: out.store(i, x.load(i)))
    for_each(t, part.shape, lambda i: out.store([k + start for k, start in zip(i, at, strict=True)], part.load(i)))


put.declares(lambda **_: Traits(moves=_BOTH, chooses=_BOTH, continuous=_BOTH, is_exact=True))


def _scatter_types(
    x: TensorType, indices: TensorType, updates: TensorType, **attrs: object
) -> tuple[TensorType, ...]:
    _require_index_dtype(indices)
    if updates.dtype != x.dtype:
        raise ValueError(f"updates must have the dtype of the data, {x.dtype}, not {updates.dtype}")
    if attrs["reduction"] not in ("none", "add", "mul", "min", "max"):
        raise ValueError(f"reduction '{attrs['reduction']}' is none of none, add, mul, min, max")
    return (x,)


def _scatter_elements_types(
    x: TensorType, indices: TensorType, updates: TensorType, *, axis: int = 0, reduction: str = "none"
) -> tuple[TensorType, ...]:
    checked_axis(axis, x.rank)
    if indices.rank != x.rank or updates.rank != x.rank:
        raise ValueError(
            f"indices and updates must have {x.rank} axes, not {indices.rank} and {updates.rank}"
        )
    for d, e in zip(indices.shape, updates.shape, strict=True):
        require_equal_dim(d, e, "dims of indices and updates")
    _require_within(indices, x, checked_axis(axis, x.rank))
    return _scatter_types(x, indices, updates, reduction=reduction)


def _scatter_nd_types(
    x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str = "none", drop: bool = False
) -> tuple[TensorType, ...]:
    depth = _index_depth(indices, x.rank)
    expected = (*indices.shape[:-1], *x.shape[depth:])
    if updates.rank != len(expected):
        raise ValueError(f"updates must have {len(expected)} axes, not {updates.rank}")
    for d, e in zip(updates.shape, expected, strict=True):
        require_equal_dim(d, e, "dims of updates and of the slices they replace")
    return _scatter_types(x, indices, updates, reduction=reduction)


def for_each(t: ScalarBuilder, shape: Sequence[Sym], body: Callable[[tuple[Sym, ...]], None]) -> None:
    """Run `body` for every index of `shape`, in row-major order."""

    def nested(index: tuple[Sym, ...]) -> None:
        if len(index) == len(shape):
            body(index)
            return
        with t.loop(shape[len(index)]) as i:
            nested((*index, i))

    nested(())


def _put(t: ScalarBuilder, out: Array, index: Sequence[Sym], value: Scalar, reduction: str) -> None:
    if reduction == "none":
        out.store(index, value)
        return
    if out.dtype.kind == "bool":
        reduction = {"add": "or", "max": "or", "mul": "and", "min": "and"}[reduction]
    out.store(index, t.apply(reduction, out.load(index), value))


def _put_checked(
    t: ScalarBuilder,
    out: Array,
    raw: Sequence[tuple[int, Scalar]],
    index: list[Sym],
    value: Scalar,
    reduction: str,
    drop: bool = False,
) -> None:
    """Put `value` at `index`, of which the axes in `raw` are data; nothing where an index is out of range, which is
    reported unless such values are to `drop`."""
    inside = _within if drop else _in_range
    pairs = [(axis, *inside(t, position, out.shape[axis])) for axis, position in raw]
    for _, _, ok in pairs:
        if not drop:
            t.check(ok, "ExecutionError", _OUT_OF_RANGE)
    with t.when(*[ok for _, _, ok in pairs]):
        for axis, position, _ in pairs:
            index[axis] = t.bind(position, "at", 0, None)
        _put(t, out, index, value, reduction)


def _put_traits(*, reduction: str = "none", **others: Any) -> Traits:
    """x with updates put into it: what is not combined is moved."""
    put = frozenset({0, 2})
    moved = put if reduction == "none" else NONE
    return Traits(moves=moved, chooses=moved, continuous=put, is_exact=bool(moved))


@irregular(_scatter_elements_types)
def scatter_elements(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, axis: int = 0, reduction: str = "none"
) -> None:
    """x with the elements of `updates` put where `indices` say along `axis`, in row-major order."""
    (x, indices, updates), (out,) = inputs, outputs
    a = checked_axis(axis, x.rank)
    for_each(t, x.shape, lambda i: out.store(i, x.load(i)))

    def update(i: tuple[Sym, ...]) -> None:
        _put_checked(t, out, [(a, indices.load(i))], list(i), updates.load(i), reduction)

    for_each(t, indices.shape, update)


scatter_elements.declares(_put_traits)


scatter_elements.onnx("ScatterElements", since=11, axis="axis", reduction="reduction")
scatter_elements.onnx("Scatter", since=9, axis="axis")


@irregular(_scatter_nd_types)
def scatter_nd(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, reduction: str = "none", drop: bool = False
) -> None:
    """x with the slices of `updates` put at the index vectors of `indices`, in row-major order.

    Index vectors that lie outside are reported; with `drop`, these and those below 0 are left out."""
    (x, indices, updates), (out,) = inputs, outputs
    depth = indices.shape[-1].value
    outer = indices.rank - 1
    for_each(t, x.shape, lambda i: out.store(i, x.load(i)))

    def update(i: tuple[Sym, ...]) -> None:
        raw = [(k, indices.load((*i[:outer], k))) for k in range(depth)]
        index = [sym(0)] * depth + list(i[outer:])
        _put_checked(t, out, raw, index, updates.load(i), reduction, drop)

    for_each(t, updates.shape, update)


scatter_nd.declares(_put_traits)


scatter_nd.onnx("ScatterND", since=11, reduction="reduction")
