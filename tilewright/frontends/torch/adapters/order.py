"""Orders and running totals: sorting and what is found by it, places among bounds, histograms."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.adapters.elementwise import ordered
from tilewright.frontends.torch.node import AtenNode, Number, whole
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import scan
from tilewright.ops.composites import positions as ps
from tilewright.ops.index import gather, gather_elements, scatter_elements, searchsorted
from tilewright.ops.sort import topk
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, squeeze

Pair = tuple[Value, Value]


def _flat(x: Value) -> Value:
    return reshape(x, shape=(product(shape_of(x)),))


def _first_place(x: Value) -> Value:
    """The position of a scalar in itself."""
    return full(value=0, dtype=dt.i64, shape=shape_of(x))


def _at(size: Sym, axis: int, rank: int) -> Value:
    """The positions along an axis, which broadcast along the others."""
    return iota(shape=tuple(size if k == axis else sym(1) for k in range(rank)), axis=axis)


def _scalar(d: Sym | int) -> Value:
    return sym_tensor(values=(sym(d),), scalar=True)


# Running totals


@aten("cumsum", "cumprod")
def running_total(node: AtenNode, self: Value, dim: int, dtype: DType | None = None) -> Value:
    x, rank = node.value(self, node.dtype), len(shape_of(self))
    operator = scan.cumsum if node.op.startswith("aten.cumsum") else scan.cumprod
    return operator(x, axis=node.axis(dim, rank)) if rank else x


@aten("cummax", "cummin")
def running_extremum(node: AtenNode, self: Value, dim: int) -> Pair:
    """The position is that of the last element which equals the extremum so far."""
    rank = len(shape_of(self))
    if rank == 0:
        return self, _first_place(self)
    axis, x = node.axis(dim, rank), ordered(self)
    values = (scan.cummax if node.op.startswith("aten.cummax") else scan.cummin)(x, axis=axis)
    is_best = ew.eq(x, values)
    if type_of(x).dtype.is_float:
        is_best = ew.or_(is_best, ew.is_nan(x))
    places = ew.select(is_best, _at(shape_of(x)[axis], axis, rank), node.value(0, dt.i64))
    return node.value(values, node.dtype), scan.cummax(places, axis=axis)


@aten("logcumsumexp")
def running_logsumexp(node: AtenNode, self: Value, dim: int) -> Value:
    rank = len(shape_of(self))
    return scan.cumlogsumexp(self, axis=node.axis(dim, rank)) if rank else self


# Sorting


@aten("topk")
def topk_(
    node: AtenNode, self: Value, k: Number, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    rank = len(shape_of(self))
    if rank == 0:
        return self, _first_place(self)
    values, places = topk(ordered(self), k=whole(k), axis=node.axis(dim, rank), largest=largest)
    return node.value(values, node.dtype), places


@aten("sort")
def sort(
    node: AtenNode, self: Value, dim: int = -1, descending: bool = False, stable: Any = None
) -> tuple[Value, ...]:
    """Equal elements keep their order."""
    rank = len(shape_of(self))
    if rank == 0:
        return self, _first_place(self)
    return _sorted(node, self, node.axis(dim, rank), descending)


def _sorted(node: AtenNode, x: Value, axis: int, descending: bool = False) -> Pair:
    values, places = topk(ordered(x), k=shape_of(x)[axis], axis=axis, largest=descending)
    return node.value(values, type_of(x).dtype), places


@aten("argsort")
def argsort(
    node: AtenNode, self: Value, dim: int = -1, descending: bool = False, stable: Any = None
) -> Value:
    return sort(node, self, dim, descending)[1]


@aten("msort")
def msort(node: AtenNode, self: Value) -> Value:
    return sort(node, self, 0)[0]


@aten("kthvalue")
def kthvalue(node: AtenNode, self: Value, k: Number, dim: int = -1, keepdim: bool = False) -> Pair:
    rank = len(shape_of(self))
    if rank == 0:
        return self, _first_place(self)
    axis, count = node.axis(dim, rank), whole(k)
    found = topk(ordered(self), k=count, axis=axis, largest=False)
    values, places = (_one_of(x, axis, count - 1, keepdim) for x in found)
    return node.value(values, node.dtype), places


def _one_of(x: Value, axis: int, place: Sym, keepdim: bool) -> Value:
    rank, shape = len(shape_of(x)), shape_of(x)
    starts = tuple(place if k == axis else sym(0) for k in range(rank))
    sizes = tuple(sym(1) if k == axis else d for k, d in enumerate(shape))
    found = slice_(x, starts=starts, sizes=sizes, steps=(1,) * rank)
    return found if keepdim else squeeze(found, axes=(axis,))


@aten("median", "nanmedian")
def median(node: AtenNode, self: Value, dim: int | None = None, keepdim: bool = False) -> Value | Pair:
    """The lower of two in the middle. NaN, at the end of the order, is passed over, or is the median if it is there."""
    x = _flat(self) if dim is None or not shape_of(self) else self
    axis = node.axis(dim or 0, len(shape_of(x)))
    values, order = _sorted(node, x, axis)
    size = shape_of(x)[axis]
    middle: Value = expand(_scalar((size - 1) // 2), shape=_kept(x, axis))
    if type_of(x).dtype.is_float:
        nans = rd.reduce_sum(ew.cast(ew.is_nan(x), dtype=dt.i64), axes=(axis,))
        left = ew.sub(_scalar(size), nans)
        if node.op.startswith("aten.nan"):
            middle = ew.shr(
                ew.max_(ew.sub(left, node.value(1, dt.i64)), node.value(0, dt.i64)), node.value(1, dt.i64)
            )
        else:
            middle = ew.select(ew.gt(nans, node.value(0, dt.i64)), left, middle)
    found = [gather_elements(v, middle, axis=axis) for v in (values, order)]
    shape = node.shape if not keepdim or not shape_of(self) else _kept(x, axis)
    value, place = (reshape(v, shape=shape) for v in found)
    return value if dim is None else (value, place)


def _kept(x: Value, axis: int) -> tuple[Sym, ...]:
    return tuple(sym(1) if k == axis else d for k, d in enumerate(shape_of(x)))


@aten("mode")
def mode(node: AtenNode, self: Value, dim: int = -1, keepdim: bool = False) -> Pair:
    """The least of the most frequent elements, and where it is last: runs of equal elements in order are counted."""
    rank = len(shape_of(self))
    if rank == 0:
        return self, _first_place(self)
    axis = node.axis(dim, rank)
    values, order = _sorted(node, self, axis)
    size = shape_of(self)[axis]
    at = expand(_at(size, axis, rank), shape=shape_of(self))
    previous = gather(values, ew.max_(ew.sub(iota(shape=(size,), axis=0), _scalar(1)), _scalar(0)), axis=axis)
    begins = ew.or_(ew.eq(at, _scalar(0)), ew.ne(values, previous))
    start = scan.cummax(ew.select(begins, at, _scalar(0)), axis=axis)
    best = rd.argmax(ew.sub(at, start), axis=axis)
    found = [gather_elements(v, best, axis=axis) for v in (values, order)]
    value, place = (v if keepdim else squeeze(v, axes=(axis,)) for v in found)
    return value, place


# Places among bounds


@aten("searchsorted")
def searchsorted_(
    node: AtenNode, sorted_sequence: Value, self: Value | Number, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    bounds = sorted_sequence
    if sorter is not None:
        bounds = gather_elements(bounds, node.value(sorter, dt.i64), axis=len(shape_of(bounds)) - 1)
    return _places_among(node, self, bounds, right or side == "right")


@aten("bucketize")
def bucketize(
    node: AtenNode, self: Value | Number, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    return _places_among(node, self, boundaries, right)


def _places_among(node: AtenNode, x: Value | Number, bounds: Value, right: bool) -> Value:
    common = node.common([x, bounds])
    found = searchsorted(node.value(x, common), node.value(bounds, common), right=right)
    return node.value(found, node.dtype)


@aten("histc")
def histc(node: AtenNode, self: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """Counts of elements in bins of one width; the last one includes its end. Without bounds they are those of data."""
    x = _flat(self)
    dtype = type_of(x).dtype
    low, high = node.value(min, dtype), node.value(max, dtype)
    if min == max and shape_of(x)[0] != 0:
        low, high = (f(x, axes=(0,), keepdims=False) for f in (rd.reduce_min, rd.reduce_max))
        one, same = node.value(1, dtype), ew.eq(low, high)
        low, high = ew.select(same, ew.sub(low, one), low), ew.select(same, ew.add(high, one), high)
    share = ew.div(ew.mul(ew.sub(x, low), node.value(bins, dtype)), ew.sub(high, low))
    inside = ew.and_(ew.ge(x, low), ew.le(x, high))
    outside = node.value(bins, dt.i64)
    place = ew.cast(ew.select(inside, share, node.value(0, dtype)), dtype=dt.i64)
    place = ew.select(inside, ew.min_(place, node.value(bins - 1, dt.i64)), outside)
    counts = scatter_elements(
        full(value=0, dtype=dt.i64, shape=(bins + 1,)), place, full(value=1, dtype=dt.i64, shape=shape_of(x)),
        axis=0, reduction="add",
    )  # fmt: skip
    return node.value(slice_(counts, starts=(0,), sizes=(bins,), steps=(1,)), node.dtype)


@aten("bincount")
def bincount(node: AtenNode, self: Value, weights: Value | None = None, minlength: Number = 0) -> Value:
    """How often each number is there, or the sum of its weights; the greatest one says how many there are."""
    x = node.value(self, dt.i64)
    one = full(value=0, dtype=dt.i64, shape=(1,))
    top = rd.reduce_max(concat(x, ew.sub(one, node.value(1, dt.i64)), axis=0), axes=(0,), keepdims=True)
    (most,) = node.symbols(top)
    count = maximum(most + 1, whole(minlength))
    given = (
        full(value=1, dtype=dt.i64, shape=shape_of(x)) if weights is None else node.value(weights, node.dtype)
    )
    start = full(value=0, dtype=type_of(given).dtype, shape=(count,))
    return node.value(scatter_elements(start, x, given, axis=0, reduction="add"), node.dtype)


# Different elements


@aten("_unique", "_unique2")
def unique(
    node: AtenNode,
    self: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Value, ...]:
    kinds, _, which, often = ps.unique(ordered(_flat(self)), node.translation.new_size(), True)
    found = (node.value(kinds, type_of(self).dtype), reshape(which, shape=shape_of(self)), often)
    return _wanted(node, found)


def _wanted(node: AtenNode, found: tuple[Value, Value, Value]) -> tuple[Value, ...]:
    """The results; those that are not asked for are empty in PyTorch."""
    nothing = full(value=0, dtype=dt.i64, shape=(0,))
    is_asked = [len(r.shape) != 1 or not isinstance(r.shape[0], int) or r.shape[0] != 0 for r in node.result]
    return tuple(x if k == 0 or asked else nothing for k, (x, asked) in enumerate(zip(found, is_asked, strict=False)))


@aten("unique_consecutive")
def unique_consecutive(
    node: AtenNode,
    self: Value,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Value, ...]:
    """Elements that differ from the one before."""
    if dim is not None and len(shape_of(self)) != 1:
        raise node.refuse("rows that differ from the row before", "flatten the tensor, or leave out dim")
    x = _flat(self)
    (size,) = shape_of(x)
    at = iota(shape=(size,), axis=0)
    previous = gather(x, ew.max_(ew.sub(at, _scalar(1)), _scalar(0)), axis=0)
    begins = ew.or_(ew.eq(at, _scalar(0)), ew.ne(x, previous))
    starts = ps.places(begins, node.translation.new_size())
    which = ew.sub(scan.cumsum(ew.cast(begins, dtype=dt.i64), axis=0), _scalar(1))
    often = scatter_elements(
        full(value=0, dtype=dt.i64, shape=shape_of(starts)), which, full(value=1, dtype=dt.i64, shape=(size,)),
        axis=0, reduction="add",
    )  # fmt: skip
    return _wanted(node, (gather(x, starts, axis=0), reshape(which, shape=shape_of(self)), often))


@aten("repeat_interleave")
def repeat_interleave(
    node: AtenNode,
    self: Value | None = None,
    repeats: Any = None,
    dim: int | None = None,
    output_size: Any = None,
) -> Value:
    """Each element as often as `repeats` says; of the one-operand form, the positions of the elements."""
    counts = repeats if repeats is not None else self
    assert counts is not None
    if not isinstance(counts, Value):
        counts = full(value=1, dtype=dt.i64, shape=(1,)) if counts == 1 else node.value(counts, dt.i64)
    x = None if node.op.endswith("repeat_interleave.Tensor") else self
    if x is not None and dim is None:
        x = _flat(x)
    axis = 0 if x is None else node.axis(dim or 0, len(shape_of(x)))
    size = shape_of(counts)[0] if x is None else shape_of(x)[axis]
    ends = scan.cumsum(expand(_flat(node.value(counts, dt.i64)), shape=(size,)), axis=0)
    given = node.result.shape[axis]
    total = node.size(given) if isinstance(given, int) else _last(node, ends)
    places = searchsorted(iota(shape=(total,), axis=0), ends, right=True)
    return node.value(places, node.dtype) if x is None else gather(x, places, axis=axis)


def _last(node: AtenNode, ends: Value) -> Sym:
    (size,) = shape_of(ends)
    padded = concat(full(value=0, dtype=dt.i64, shape=(1,)), ends, axis=0)
    (total,) = node.symbols(slice_(padded, starts=(size,), sizes=(1,), steps=(1,)))
    return total
