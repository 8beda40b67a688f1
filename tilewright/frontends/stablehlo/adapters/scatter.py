"""Scatters: updates whose places are computed; those that lie outside are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tilewright.frontends.stablehlo.adapters.elementwise import BINARY
from tilewright.frontends.stablehlo.adapters.gather import AxisRoles, index_parts
from tilewright.frontends.stablehlo.adapters.reduce import combiner
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import index
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import concat, expand, reshape, shape_of, transpose

_REDUCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "stablehlo.add": "add", "stablehlo.multiply": "mul", "stablehlo.maximum": "max",
        "stablehlo.minimum": "min", "stablehlo.or": "max", "stablehlo.and": "min",
    }
)  # fmt: skip


def _reduction(block: ir.Block, is_bool: bool) -> str | None:
    *_, end = block.operations
    if end.operation.operands[0] == block.arguments[1]:
        return "none"
    name = combiner(block, 0, 1)
    if name in ("stablehlo.or", "stablehlo.and") and not is_bool:
        return None
    return None if name is None else _REDUCTIONS[name]


@adapter("scatter")
def _scatter(node: ProgramOp) -> Sequence[Held]:
    if len(node.operands) != 3:
        raise UnsupportedError("a scatter of several tensors at once is not supported")
    told = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    numbers = AxisRoles(
        tuple(told.update_window_dims), tuple(told.inserted_window_dims), tuple(told.input_batching_dims),
        tuple(told.scatter_indices_batching_dims), tuple(told.scattered_dims_to_operand_dims), told.index_vector_dim,
    )  # fmt: skip
    how = _reduction(node.region(0), str(node.result_type.dtype) == "bool")
    held, updates = node.held(0), node.held(2)
    if isinstance(held, ComplexPair) and isinstance(updates, ComplexPair):
        if how not in ("none", "add"):
            raise UnsupportedError("it is not supported for complex numbers")
        parts = [
            scattered(a, node.x(1), b, numbers, how)
            for a, b in ((held.real, updates.real), (held.imaginary, updates.imaginary))
        ]
        return [ComplexPair(*parts)]
    if how is None:
        if not _places_each_once(node):
            raise UnsupportedError(
                "a scatter whose body is not one of add, multiply, minimum, maximum is not supported",
                hint="tell that its places differ (unique_indices=True)",
            )
        return [_with_body(node, numbers)]
    return [scattered(node.x(0), node.x(1), node.x(2), numbers, how)]


def _places_each_once(node: ProgramOp) -> bool:
    return node.flag("unique_indices")


def _with_body(node: ProgramOp, numbers: AxisRoles) -> Value:
    """What the body makes of old elements and updates, which are spread over a tensor of their own, where there are
    any."""
    x, updates = node.x(0), node.x(2)
    zeros = ew.sub(x, x) if str(node.result_type.dtype) != "bool" else ew.xor(x, x)
    spread = scattered(zeros, node.x(1), updates, numbers, "none")
    ones = ew.eq(updates, updates) if str(node.result_type.dtype) == "bool" else ew.or_(
        ew.eq(updates, updates), ew.ne(updates, updates)
    )
    never = ew.xor(ew.eq(zeros, zeros), ew.eq(zeros, zeros))
    is_put = scattered(never, node.x(1), ones, numbers, "none")
    (made,) = node.written(node.region(0), [x, spread])
    assert isinstance(made, Value)
    return ew.select(is_put, made, x)


def scattered(x: Value, indices: Value, updates: Value, numbers: AxisRoles, reduction: str) -> Value:
    """Axes of x at which places are computed come first; index vectors are for these, and for those of the slices'
    axes along which updates have a part alone."""
    shape = shape_of(x)
    places, batch = index_parts(indices, numbers)
    gone = {*numbers.dropped, *numbers.batching}
    kept = [k for k in range(len(shape)) if k not in gone]
    windows = dict(zip(kept, numbers.windows, strict=True))  # axes of x, and those of the updates along them
    sizes = {axis: shape_of(updates)[k] for axis, k in windows.items()}
    chosen = [k for k in range(len(shape)) if k in places or k in gone or sizes[k] != shape[k]]
    grid = [k for k in chosen if k in windows]
    full = [k for k in range(len(shape)) if k not in chosen]
    outer = [k for k in range(len(shape_of(updates))) if k not in numbers.windows]
    order = (*outer, *(windows[k] for k in grid), *(windows[k] for k in full))
    moved = updates if order == tuple(range(len(order))) else transpose(updates, perm=order)
    counts = (*batch, *(sizes[k] for k in grid))
    # a slice is put as a whole, or not at all: places are those of its first element until it is known to lie inside
    inside = None
    for axis in numbers.mapped:
        size = sizes.get(axis, sym(1))
        if size != 1 and size != shape[axis]:
            last = dim_value(shape[axis] - size)
            fits = ew.and_(ew.le(dim_value(0), places[axis]), ew.le(places[axis], last))
            inside = fits if inside is None else ew.and_(inside, fits)
        elif size == shape[axis] and size != 1:
            fits = ew.eq(places[axis], dim_value(0))
            inside = fits if inside is None else ew.and_(inside, fits)
    columns = []
    for axis in chosen:
        place = places.get(axis)
        column = dim_value(0) if place is None else _wide(place, batch, len(grid))
        if axis in windows and sizes[axis] != 1:
            rank = len(counts)
            position = len(batch) + grid.index(axis)
            own = iota(shape=tuple(sizes[axis] if k == position else sym(1) for k in range(rank)), axis=position)
            column = ew.add(column, own)
        if inside is not None:
            nowhere = dim_value(shape[axis])
            column = ew.select(_wide(inside, batch, len(grid)), column, nowhere)
        columns.append(reshape(expand(column, shape=counts), shape=(*counts, 1)))
    if not columns:
        return BINARY[{"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}[reduction]](
            x, reshape(moved, shape=shape)
        ) if reduction != "none" else reshape(moved, shape=shape)
    vectors = concat(*columns, axis=len(counts)) if len(columns) > 1 else columns[0]
    front = (*chosen, *full)
    turned = x if front == tuple(range(len(shape))) else transpose(x, perm=front)
    rest = tuple(shape[k] for k in full)
    rows = product(counts)
    found = index.scatter_nd(
        turned, reshape(vectors, shape=(rows, len(columns))), reshape(moved, shape=(rows, *rest)),
        reduction=reduction, drop=True,
    )  # fmt: skip
    back = tuple(front.index(k) for k in range(len(front)))
    return found if front == back == tuple(range(len(front))) else transpose(found, perm=back)


def _wide(place: Value, batch: Sequence[object], more: int) -> Value:
    return reshape(place, shape=(*batch, *[1] * more))
