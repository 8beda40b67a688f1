"""Gathers of slices at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir.dialects import stablehlo

from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import Held, each
from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import index
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, transpose


@dataclass(frozen=True)
class AxisRoles:
    """Which axis is what: of gathers, and of scatters, whose updates are what gathers give."""

    windows: tuple[int, ...]
    """Axes of the result along slices, in the order of the operand's axes."""
    dropped: tuple[int, ...]
    """Axes of the operand of which slices have one element, and the result none."""
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    """Axes of the operand and of the indices that go in step."""
    mapped: tuple[int, ...]
    """The axis of the operand that each element of an index vector is for."""
    vector: int
    """The axis of index vectors; behind the last one where these are numbers."""


def index_parts(indices: Value, numbers: AxisRoles) -> tuple[dict[int, Value], tuple[Sym, ...]]:
    """For each axis of the operand at which places are computed these places (i64), and the shape that they have."""
    if type_of(indices).dtype != dt.i64:
        indices = ew.cast(indices, dtype=dt.i64)
    shape = shape_of(indices)
    if not 0 <= numbers.vector <= len(shape):
        raise ModelError(f"index vectors along axis {numbers.vector} of {len(shape)}")
    batch = tuple(d for k, d in enumerate(shape) if k != numbers.vector)
    found = {}
    for n, axis in enumerate(numbers.mapped):
        found[axis] = indices
        if numbers.vector < len(shape):
            starts = tuple(n if k == numbers.vector else 0 for k in range(len(shape)))
            sizes = tuple(sym(1) if k == numbers.vector else d for k, d in enumerate(shape))
            one = indices if shape[numbers.vector] == 1 else slice_(indices, starts=starts, sizes=sizes)
            found[axis] = reshape(one, shape=batch)
    for axis, k in zip(numbers.batching, numbers.index_batching, strict=True):
        place = k - (k > numbers.vector)
        found[axis] = expand(_along(batch[place], place, len(batch)), shape=batch)
    return found, batch


def _along(size: Sym, axis: int, rank: int) -> Value:
    """0, 1, ... along one axis of `rank`."""
    return iota(shape=tuple(size if k == axis else sym(1) for k in range(rank)), axis=axis)


@adapter("gather")
def _gather(node: ProgramOp) -> Held:
    return _gathered(node, tuple(sym(n) for n in node.integers("slice_sizes")))


@adapter("dynamic_gather")
def _dynamic_gather(node: ProgramOp) -> Held:
    return _gathered(node, node.symbols(2))


def _gathered(node: ProgramOp, sizes: tuple[Sym, ...]) -> Held:
    told = stablehlo.GatherDimensionNumbers(node.attribute("dimension_numbers"))
    numbers = AxisRoles(
        tuple(told.offset_dims), tuple(told.collapsed_slice_dims), tuple(told.operand_batching_dims),
        tuple(told.start_indices_batching_dims), tuple(told.start_index_map), told.index_vector_dim,
    )  # fmt: skip
    return each(node.held(0), lambda x: gathered(node.translation, x, node.x(1), sizes, numbers))


def gathered(translation: Translation, x: Value, indices: Value, sizes: Sequence[Sym], numbers: AxisRoles) -> Value:
    shape = shape_of(x)
    places, batch = index_parts(indices, numbers)
    for axis in numbers.mapped:  # slices are moved to lie inside
        last, zero = (dim_value(n) for n in (shape[axis] - sizes[axis], sym(0)))
        places[axis] = ew.max_(ew.min_(places[axis], last), zero)
    places = {axis: v for axis, v in places.items() if sizes[axis] != shape[axis] or axis in numbers.batching}
    gone = {*numbers.dropped, *numbers.batching}
    kept = [k for k in range(len(shape)) if k not in gone]
    chosen = sorted(places)
    windows = [k for k in chosen if k in kept]  # axes of which slices have a part: their places vary in the slice
    grid = tuple(sizes[k] for k in windows)
    full = [k for k in range(len(shape)) if k not in places and k in kept]
    # axes that are taken whole, or have one element and no place
    ones = [k for k in range(len(shape)) if k not in places and k not in kept]
    x = transpose(x, perm=tuple([*chosen, *ones, *full])) if [*chosen, *ones, *full] != sorted(range(len(shape))) else x
    rest = tuple(shape[k] for k in full)
    x = reshape(x, shape=(*(shape[k] for k in chosen), *rest)) if ones else x
    if chosen:
        vectors = []
        for k in chosen:
            place = reshape(places[k], shape=(*batch, *[1] * len(grid)))
            if k in windows:
                place = ew.add(place, _along(sizes[k], len(batch) + windows.index(k), len(batch) + len(grid)))
            vectors.append(place)
        x = _taken(x, vectors, (*batch, *grid))
    else:
        x = expand(reshape(x, shape=(*[1] * len(batch), *rest)), shape=(*batch, *rest))
    # now [*batch, *windows, *full]: each to its place in the result
    rank = len(batch) + len(kept)
    order = [0] * rank
    outer = [k for k in range(rank) if k not in numbers.windows]
    for n, k in enumerate(outer):
        order[k] = n
    inner = [*windows, *full]
    for axis, k in zip(kept, numbers.windows, strict=True):
        order[k] = len(batch) + inner.index(axis)
    return x if order == list(range(rank)) else transpose(x, perm=tuple(order))


def _taken(x: Value, places: Sequence[Value], shape: tuple[Sym, ...]) -> Value:
    """Slices of x at places along its first axes, of which the result has `shape` instead."""
    wide = [expand(p, shape=shape) if shape_of(p) != shape else p for p in places]
    if len(wide) == 1:
        return index.gather(x, wide[0], axis=0)
    columns = [reshape(p, shape=(*shape, 1)) for p in wide]
    return index.gather_nd(x, concat(*columns, axis=len(shape)))


@adapter("torch_index_select")
def _index_select(node: ProgramOp) -> Held:
    axis, batch = node.integer("dim"), node.integer("batch_dims")
    if batch:
        raise ModelError("torch_index_select with batch_dims is not supported")
    return index.gather(node.x(0), node.x(1), axis=axis)
