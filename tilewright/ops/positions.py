"""Positions that data choose, as many as they say: in two steps, of which the first counts them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, lt, maximum, minimum, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, require_equal_dim
from tilewright.ops.sort import unflattened
from tilewright.ops.sorting import Cell, SortEntries, entry_of, heapify, key_of, levels, sift
from tilewright.ops.traits.facts import FIRST, Traits


def _begin(t: ScalarBuilder, ends: Array, row: Sym, count: Sym) -> Sym:
    """Where those of `count` results that are of a row begin: where those of the row before end."""
    before = ends.load((maximum(row - 1, 0),))
    limited = t.apply("max", t.apply("min", before, t.index(count)), 0)
    return t.bind(t.select(t.index(lt(0, row), dt.bool_), limited, 0), "begin")


def _check_ends(ends: TensorType, rows: Sym) -> None:
    if ends.dtype is not dt.i64 or ends.rank != 1:
        raise ValueError(f"the ends of {rows} rows are i64[{rows}], not {ends}")
    require_equal_dim(ends.shape[0], rows, "the number of rows and of their ends")


def _positions_types(x: TensorType, ends: TensorType, *, count: Dim) -> tuple[TensorType, ...]:
    if not x.rank:
        raise ValueError("a scalar has no axis whose positions could be told")
    _check_ends(ends, product(x.shape[:-1]))
    return (TensorType(dt.i64, (sym(x.rank), sym(count))),)


@irregular(_positions_types)
def positions(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, count: Dim) -> None:
    """The indices of the `count` elements of x that are not zero, a row for each axis: i64[rank, count].

    `ends` says how many there are up to the end of each row along the last axis.
    """
    (x, ends), (out,) = inputs, outputs
    outer = x.shape[:-1]
    with t.loop(product(outer), "row", "parallel") as row:
        index = unflattened(row, outer) if outer else ()
        at = Cell(t, _begin(t, ends, row, sym(count)))
        with t.loop(x.shape[-1], "j") as j:
            place = at.index("at")
            with t.when(x[(*index, j)].ne(0), lt(place, sym(count))):
                for axis, i in enumerate((*index, j)):
                    out.store((axis, place), t.index(i))
                at.add(t.const(1, dt.i64))


def _joined_types(values: TensorType, ends: TensorType, *, count: Dim) -> tuple[TensorType, ...]:
    if values.rank != 2:
        raise ValueError(f"rows are a matrix, not {values}")
    _check_ends(ends, values.shape[0])
    return TensorType(values.dtype, (sym(count),)), TensorType(dt.i64, (sym(count),))


@irregular(_joined_types)
def joined_rows(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, count: Dim) -> None:
    """The first elements of rows of different lengths, one row after the other, and the row of each: `ends` says where
    the rows end in the results, which have `count` elements."""
    (values, ends), (out, rows) = inputs, outputs
    with t.loop(values.shape[0], "row", "parallel") as row:
        begin = _begin(t, ends, row, sym(count))
        with t.loop(values.shape[1], "j") as j:
            inside = t.index(begin + j) < ends[row]
            with t.when(inside, lt(begin + j, sym(count))):
                out.store((begin + j,), values[row, j])
                rows.store((begin + j,), t.index(row))


joined_rows.declares(Traits(moves=FIRST, chooses=FIRST, continuous=FIRST, is_exact=True))


def _kept_types(
    boxes: TensorType,
    scores: TensorType,
    overlap: TensorType,
    threshold: TensorType,
    *,
    limit: Dim,
    centred: bool = False,
) -> tuple[TensorType, ...]:
    if boxes.rank != 3 or scores.rank != 3:
        raise ValueError(f"boxes are [batch, n, 4] and scores [batch, classes, n], not {boxes} and {scores}")
    require_equal_dim(boxes.shape[2], sym(4), "the numbers of a box and 4")
    require_equal_dim(boxes.shape[0], scores.shape[0], "the batches of boxes and of scores")
    require_equal_dim(boxes.shape[1], scores.shape[2], "the numbers of boxes and of scores")
    if overlap.shape != () or threshold.shape != ():
        raise ValueError(f"the overlap and the threshold are scalars, not {overlap} and {threshold}")
    rows = scores.shape[0] * scores.shape[1]
    return TensorType(dt.i64, (rows, sym(limit))), TensorType(dt.i64, (rows,))


@irregular(_kept_types)
def kept_boxes(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, limit: Dim, centred: bool = False
) -> None:
    """For each batch entry and class the boxes with scores above a threshold, the best first, without those whose
    intersection with a better one is more than a share `overlap` of their union; `limit` of them at most, and how many
    there are.

    Boxes are [batch, n, 4]: y and x of a corner and of the opposite one, or with `centred` x and y of the centre, width
    and height. Of equal scores the first box counts as the better one.
    """
    (given, scores, overlap, threshold), (kept, counts) = inputs, outputs
    classes, size, most = scores.shape[1], scores.shape[2], sym(limit)
    if classes == 0:
        return  # there are no rows, and none can be told by its class
    with t.loop(scores.shape[0] * classes, "row", "parallel") as row:
        batch, kind = row // classes, row % classes
        candidates = SortEntries.allocated(t, scores.dtype, size)
        found = Cell(t, 0)
        with t.loop(size, "j") as j:
            score = scores[batch, kind, j]
            candidates.store(found.index("found"), entry_of(t, key_of(t, score, True), t.index(j)).reversed)
            found.add((score > threshold[()]).cast(dt.i64))
        some = minimum(found.index("some"), size)
        depth = levels(t, some)
        heapify(t, candidates, some, depth)
        boxes = t.alloc(given.dtype, (5, most))
        count, met = Cell(t, 0), t.alloc(dt.i32, (1,), "reg")
        with t.loop(some, "rank") as rank:
            present = count.index("count")
            with t.when(lt(present, most)):
                best, last = candidates[sym(0)].reversed, some - 1 - rank
                sift(t, candidates, 0, candidates[last], last, depth)
                position = best.position
                place = t.bind(position, "position")
                low_y, low_x, high_y, high_x = _corners(t, [given[batch, place, k] for k in range(4)], centred)
                area = (high_y - low_y) * (high_x - low_x)
                met.store((0,), 0)
                with t.loop(present, "i") as i:
                    height = t.apply("min", boxes[2, i], high_y) - t.apply("max", boxes[0, i], low_y)
                    width = t.apply("min", boxes[3, i], high_x) - t.apply("max", boxes[1, i], low_x)
                    common = t.apply("max", height, 0.0) * t.apply("max", width, 0.0)
                    union = boxes[4, i] + area - common
                    is_same = (union > 0.0) & (common > union * overlap[()])
                    met.store((0,), t.apply("max", met[0], is_same.cast(dt.i32)))
                with t.when(met[0].eq(0)):
                    for k, value in enumerate((low_y, low_x, high_y, high_x, area)):
                        boxes.store((k, present), value)
                    kept.store((row, present), position)
                    count.add(t.const(1, dt.i64))
        counts.store((row,), count.scalar)


def _corners(t: ScalarBuilder, box: Sequence[Scalar], centred: bool) -> list[Scalar]:
    """Low y, low x, high y and high x of a box."""
    if not centred:
        return [t.apply(name, box[k], box[k + 2]) for name in ("min", "max") for k in (0, 1)]
    (x, y), (width, height) = box[:2], (0.5 * side for side in box[2:])
    edges = [(y - height, y + height), (x - width, x + width)]
    return [t.apply(name, *pair) for name in ("min", "max") for pair in edges]
