"""Results that are as long as data say: what is counted is measured, and then as many positions are written.

`number` is a new dim, which stands for how many there are where that is not known when compiling.
"""

from __future__ import annotations

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, maximum, minimum, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import positions as ps
from tilewright.ops.define.staged import measure_size
from tilewright.ops.index import gather, scatter_elements
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.scan import cumsum
from tilewright.ops.sort import topk
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, reshape, shape_of, slice_, unsqueeze


def _ends(counts: Value, number: Sym) -> tuple[Value, Sym]:
    """Where rows of so many elements end when they are joined, and how many there are in all."""
    total = measure_size(reduce_sum(counts, axes=(0,), keepdims=True), number)
    return cumsum(counts, axis=0), total


def nonzero(x: Value, number: Sym) -> Value:
    """The indices of the elements that are not zero, a row for each axis; those of a scalar are of a vector of one."""
    shape = shape_of(x) or (sym(1),)
    x = reshape(x, shape=shape)
    flags = reshape(ew.cast(ew.ne(x, 0) if dtype_of(x) is not dt.bool_ else x, dtype=dt.i32),
                    shape=(product(shape[:-1]), shape[-1]))  # fmt: skip
    counts = ew.cast(reduce_sum(flags, axes=(1,), keepdims=False), dtype=dt.i64)
    ends, total = _ends(counts, number)
    return ps.positions(x, ends, count=total)


def places(x: Value, number: Sym) -> Value:
    """Where the elements of a vector are that are not zero."""
    found = nonzero(x, number)
    return reshape(found, shape=(shape_of(found)[1],))


def unique(x: Value, number: Sym, in_order: bool) -> tuple[Value, Value, Value, Value]:
    """The different elements of a vector, where each comes first, which one each element is, and how often each is
    there: sorted where they are `in_order`, else as they come. NaN equals NaN."""
    (size,) = shape_of(x)
    values, order = topk(x, k=size, axis=0, largest=False)
    rank = iota(shape=(size,), axis=0)
    previous = gather(values, ew.max_(ew.sub(rank, 1), 0))
    differs = ew.ne(values, previous)
    if dtype_of(x).is_float:
        differs = ew.and_(differs, ew.not_(ew.and_(ew.is_nan(values), ew.is_nan(previous))))
    begins = ew.or_(ew.eq(rank, 0), differs)
    numbers = cumsum(ew.cast(begins, dtype=dt.i64), axis=0)
    starts = places(begins, number)
    (count,) = shape_of(starts)
    kinds, first = gather(values, starts), gather(order, starts)
    ends = concat(slice_(starts, starts=(minimum(count, 1),), sizes=(maximum(count - 1, 0),)),
                  sym_tensor(values=(size,)), axis=0)  # fmt: skip
    often = ew.sub(slice_(ends, starts=(0,), sizes=(count,)), starts)
    which = _inverse(order, ew.sub(numbers, 1))
    if not in_order:
        first, numbers = topk(first, k=count, axis=0, largest=False)
        kinds, often = gather(kinds, numbers), gather(often, numbers)
        which = gather(_inverse(numbers, iota(shape=(count,), axis=0)), which)
    return kinds, first, which, often


def _inverse(order: Value, values: Value) -> Value:
    """The vector that has each value at its place in an order of all places."""
    return scatter_elements(full(value=0, dtype=dt.i64, shape=shape_of(order)), order, values, axis=0)


def non_max_suppression(
    boxes: Value,
    scores: Value,
    most: Sym,
    overlap: Value,
    threshold: Value,
    number: Sym,
    center_point_box: bool,
) -> Value:
    """Rows (batch, class, box) of the boxes that are kept, at most so many of a class, the best first."""
    (_, size, _), classes = shape_of(boxes), shape_of(scores)[1]
    limit = minimum(maximum(most, 0), size)
    kept, counts = ps.kept_boxes(boxes, scores, overlap, threshold, limit=limit, centred=center_point_box)
    ends, total = _ends(counts, number)
    chosen, rows = ps.joined_rows(kept, ends, count=total)
    kinds = sym_tensor(values=(classes,), scalar=True)
    return concat(*[unsqueeze(v, axes=(1,)) for v in (ew.div(rows, kinds), ew.mod(rows, kinds), chosen)], axis=1)
