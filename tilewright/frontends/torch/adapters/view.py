"""Shapes: views, slices, joins, pads. Results are values; a view that is written to was made functional before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.node import AtenNode, Number, whole
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import view
from tilewright.ops.composites.shapes import slice_bounds
from tilewright.ops.index import gather, scatter_elements, triangle
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import concat, pad, reshape, reverse, section, shape_of, transpose


def rank_of(x: Value) -> int:
    return len(shape_of(x))


@aten("view", "_unsafe_view", "reshape", "view_copy", "_reshape_copy")
def reshaped(node: AtenNode, self: Value, size: Sequence[Number] = (), shape: Sequence[Number] = ()) -> Value:
    """One size may be -1: PyTorch may know it, where it does not follow from what is known of ours."""
    wanted = [
        sym(known) if isinstance(known, int) else whole(d)
        for d, known in zip(size or shape, node.result.shape, strict=True)
    ]
    return reshape(self, shape=_with_inferred(wanted, shape_of(self)))


def _with_inferred(wanted: Sequence[Sym], given: Sequence[Sym]) -> tuple[Sym, ...]:
    unknown = [k for k, d in enumerate(wanted) if d.is_const and d.value == -1]
    if not unknown:
        return tuple(wanted)
    others = product(d for k, d in enumerate(wanted) if k != unknown[0])
    found = list(wanted)
    found[unknown[0]] = product(given) // others
    return tuple(found)


@aten("reshape_as", "view_as")
def reshaped_as(node: AtenNode, self: Value, other: Value) -> Value:
    return reshape(self, shape=shape_of(other))


@aten("meshgrid")
def meshgrid(node: AtenNode, tensors: Sequence[Value], indexing: str = "ij") -> tuple[Value, ...]:
    """Each line along an axis of its own, in the order of the operands; with "xy" the first two change places."""
    lines = [reshape(x, shape=(product(shape_of(x)),)) for x in tensors]
    axes = list(range(len(lines)))
    if indexing == "xy" and len(lines) > 1:
        axes[:2] = 1, 0
    shape = tuple(shape_of(lines[axis])[0] for axis in axes)
    one = sym(1)
    along = [tuple(d if axes[a] == k else one for a, d in enumerate(shape)) for k in range(len(lines))]
    return tuple(view.expand(reshape(x, shape=own), shape=shape) for x, own in zip(lines, along, strict=True))


@aten("flatten", "unflatten")
def flatten(node: AtenNode, self: Value, **how: Any) -> Value:
    return reshape(self, shape=node.shape)


@aten("permute", "permute_copy")
def permute(node: AtenNode, self: Value, dims: Sequence[int]) -> Value:
    return transpose(self, perm=tuple(node.axis(int(d), rank_of(self)) for d in dims))


@aten("transpose", "transpose_copy", "swapaxes", "swapdims")
def swapped(node: AtenNode, self: Value, **axes: int) -> Value:
    rank = rank_of(self)
    a, b = (node.axis(int(v), rank) for v in axes.values())
    order = list(range(rank))
    if rank:
        order[a], order[b] = order[b], order[a]
    return transpose(self, perm=tuple(order))


@aten("t", "numpy_T", "mT", "t_copy")
def transposed(node: AtenNode, self: Value) -> Value:
    order = list(range(rank_of(self)))
    if node.op.startswith("aten.mT"):
        order[-2], order[-1] = order[-1], order[-2]
    else:
        order.reverse()
    return transpose(self, perm=tuple(order)) if order else self


@aten("movedim", "moveaxis")
def movedim(
    node: AtenNode, self: Value, source: Sequence[int] | int, destination: Sequence[int] | int
) -> Value:
    rank = rank_of(self)
    listed = [(v,) if isinstance(v, int) else v for v in (source, destination)]
    moved, to = ([node.axis(int(a), rank) for a in axes] for axes in listed)
    order = [a for a in range(rank) if a not in moved]
    for place, axis in sorted(zip(to, moved, strict=True)):
        order.insert(place, axis)
    return transpose(self, perm=tuple(order))


@aten("expand", "expand_copy", "broadcast_to", "expand_as")
def expanded(
    node: AtenNode, self: Value, size: Sequence[Number] = (), implicit: bool = False, other: Any = None
) -> Value:
    if other is not None:
        return view.expand(self, shape=shape_of(other))
    given = shape_of(self)
    wanted = [whole(d) for d in size]
    lead = len(wanted) - len(given)
    for k in range(lead, len(wanted)):
        if wanted[k].is_const and wanted[k].value == -1:
            wanted[k] = given[k - lead]
    return view.expand(self, shape=tuple(wanted))


@aten("unsqueeze", "unsqueeze_copy")
def unsqueeze(node: AtenNode, self: Value, dim: int) -> Value:
    rank = rank_of(self) + 1
    return view.unsqueeze(self, axes=(node.axis(dim, rank),))


@aten("squeeze", "squeeze_copy")
def squeeze(node: AtenNode, self: Value, dim: Sequence[int] | int | None = None) -> Value:
    """Axes of another size than 1 stay."""
    shape = shape_of(self)
    axes = node.axes(dim, len(shape), empty_is_all=dim is None)
    gone = [a for a in axes if shape[a].is_const and shape[a].value == 1]
    return view.squeeze(self, axes=tuple(gone)) if gone else self


@aten("slice", "slice_copy")
def sliced(
    node: AtenNode,
    self: Value,
    dim: int = 0,
    start: Number | None = None,
    end: Number | None = None,
    step: Number = 1,
) -> Value:
    axis, by = node.axis(dim, rank_of(self)), int(whole(step).value)
    shape = shape_of(self)
    first = whole(0 if start is None else start)
    last = shape[axis] if end is None else whole(end)
    begin, count = slice_bounds(first, last, by, shape[axis])
    return _cut(self, axis, begin, count, by)


def _cut(x: Value, axis: int, begin: Sym, count: Sym, step: int = 1) -> Value:
    is_whole = begin == 0 and step == 1 and count == shape_of(x)[axis]
    return x if is_whole else section(x, axis, begin, count, step)


@aten("select", "select_copy")
def select(node: AtenNode, self: Value, dim: int, index: Number) -> Value:
    axis = node.axis(dim, rank_of(self))
    place = whole(index)
    if place.is_const:
        place = place if place.value >= 0 else place + shape_of(self)[axis]
    elif not _surely_positive(place):
        place = s.select(s.lt(place, 0), place + shape_of(self)[axis], place)
    return view.squeeze(_cut(self, axis, place, sym(1)), axes=(axis,))


def _surely_positive(d: Sym) -> bool:
    low = d.bounds[0]
    return low is not None and low >= 0


@aten("narrow", "narrow_copy")
def narrow(node: AtenNode, self: Value, dim: int, start: Number, length: Number) -> Value:
    axis = node.axis(dim, rank_of(self))
    begin = whole(start)
    if begin.is_const and begin.value < 0:
        begin = begin + shape_of(self)[axis]
    return _cut(self, axis, begin, whole(length))


@aten(
    "split", "split_with_sizes", "split_copy", "split_with_sizes_copy", "chunk", "tensor_split", "unsafe_split",
    "unsafe_split_with_sizes", "unsafe_chunk", "hsplit", "vsplit", "dsplit",
)  # fmt: skip
def split(node: AtenNode, self: Value, dim: int = 0, **how: Any) -> tuple[Value, ...]:
    """The sizes are those that PyTorch gives."""
    axis = node.axis(dim, rank_of(self))
    op = node.op.split(".")[1]
    axis = {"hsplit": min(1, rank_of(self) - 1), "vsplit": 0, "dsplit": 2}.get(op, axis)
    sizes = tuple(node.size(part.shape[axis]) for part in node.result)
    return tuple(view.split(self, sizes=sizes, axis=axis)) if len(sizes) > 1 else (self,)


@aten("unbind", "unbind_copy")
def unbind(node: AtenNode, self: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = node.axis(dim, rank_of(self))
    return tuple(
        view.squeeze(_cut(self, axis, sym(k), sym(1)), axes=(axis,)) for k in range(len(node.result))
    )


@aten("cat", "concat", "concatenate")
def cat(node: AtenNode, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Empty vectors, whatever the rank of the others, add nothing."""
    rank = len(node.shape)
    given = [x for x in tensors if rank_of(x) == rank and not _is_empty_vector(x, rank)]
    values = [node.value(x, node.dtype) for x in given or tensors]
    return concat(*values, axis=node.axis(dim, rank)) if len(values) > 1 else values[0]


def _is_empty_vector(x: Value, rank: int) -> bool:
    shape = shape_of(x)
    return rank > 1 and len(shape) == 1 and shape[0].is_const and shape[0].value == 0


@aten("stack")
def stack(node: AtenNode, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = node.axis(dim, rank_of(tensors[0]) + 1)
    rows = [view.unsqueeze(node.value(x, node.dtype), axes=(axis,)) for x in tensors]
    return concat(*rows, axis=axis) if len(rows) > 1 else rows[0]


@aten("flip")
def flip(node: AtenNode, self: Value, dims: Sequence[int]) -> Value:
    axes = node.axes(dims, rank_of(self), empty_is_all=False)
    return reverse(self, axes=axes) if axes else self


@aten("repeat", "tile")
def repeat(node: AtenNode, self: Value, repeats: Sequence[Number] = (), dims: Sequence[Number] = ()) -> Value:
    counts = [whole(d) for d in (repeats or dims)]
    rank = rank_of(self)
    counts = [sym(1)] * (rank - len(counts)) + counts
    x = reshape(self, shape=(*[1] * (len(counts) - rank), *shape_of(self)))
    if all(c == 1 for c in counts):
        return x
    return view.tile(x, repeats=tuple(counts))


_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "constant": "constant"}


@aten("pad", "constant_pad_nd")
def pad_(
    node: AtenNode, self: Value, pad: Sequence[Number], mode: str = "constant", value: Number | None = None
) -> Value:
    return padded(node, self, pad, _MODES[mode], 0 if value is None else value)


_PADS = {
    "reflection_pad1d": "reflect", "reflection_pad2d": "reflect", "reflection_pad3d": "reflect",
    "replication_pad1d": "edge", "replication_pad2d": "edge", "replication_pad3d": "edge", "_pad_circular": "wrap",
}  # fmt: skip


@aten(*_PADS)
def pad_by_repeating(node: AtenNode, self: Value, **amounts: Sequence[Number]) -> Value:
    (listed,) = amounts.values()
    return padded(node, self, listed, _PADS[node.op.split(".")[1]], 0)


def padded(node: AtenNode, x: Value, amounts: Sequence[Number], mode: str, value: Number) -> Value:
    """Amounts are pairs, of the last axis first; negative ones crop."""
    rank, listed = rank_of(x), [whole(a) for a in amounts]
    if mode == "edge" and any(a.is_const and a.value < 0 for a in listed):
        return _clamped(x, listed)
    before, after = [sym(0)] * rank, [sym(0)] * rank
    for k in range(len(listed) // 2):
        before[rank - 1 - k], after[rank - 1 - k] = listed[2 * k], listed[2 * k + 1]
    for axis in range(rank):
        crop = [sym(max(-p.value, 0)) if p.is_const else sym(0) for p in (before[axis], after[axis])]
        x = _cut(x, axis, crop[0], shape_of(x)[axis] - crop[0] - crop[1])
        before[axis], after[axis] = before[axis] + crop[0], after[axis] + crop[1]
    if all(d == 0 for d in (*before, *after)):
        return x
    if isinstance(value, Sym):
        raise node.refuse("padding with a number that is computed from sizes")
    if any(d.is_const and d.value == 0 for d in node.shape):
        return full(value=0, dtype=type_of(x).dtype, shape=node.shape)
    dtype = type_of(x).dtype
    filler = value if dtype.is_float else bool(value) if dtype is dt.bool_ else int(value)
    return pad(x, before=tuple(before), after=tuple(after), mode=mode, value=filler)


def _clamped(x: Value, amounts: Sequence[Sym]) -> Value:
    """x padded with its outermost elements; what negative amounts crop may be among these."""
    for k in range(len(amounts) // 2):
        axis = rank_of(x) - 1 - k
        size = shape_of(x)[axis]
        places = iota(shape=(size + amounts[2 * k] + amounts[2 * k + 1],), axis=0)
        at = ew.min_(ew.max_(ew.sub(places, dim_value(amounts[2 * k])), dim_value(0)), dim_value(size - 1))
        x = gather(x, at, axis=axis)
    return x


@aten("tril", "triu")
def triangular(node: AtenNode, self: Value, diagonal: Number = 0) -> Value:
    return triangle(self, diagonal=whole(diagonal), upper=node.op.startswith("aten.triu"))


@aten("diagonal", "diagonal_copy")
def diagonal(node: AtenNode, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Elements of which the two axes' positions differ by `offset`, as the last axis."""
    rank = rank_of(self)
    a, b = node.axis(dim1, rank), node.axis(dim2, rank)
    order = [k for k in range(rank) if k not in (a, b)]
    x = transpose(self, perm=(*order, a, b))
    *outer, rows, columns = shape_of(x)
    flat = reshape(x, shape=(*outer, rows * columns))
    count = node.shape[-1]
    start = sym(offset) if offset >= 0 else -offset * columns
    positions = ew.add(ew.mul(iota(shape=(count,), axis=0), dim_value(columns + 1)), dim_value(start))
    return gather(flat, positions, axis=len(outer))


@aten("roll")
def roll(node: AtenNode, self: Value, shifts: Sequence[Number], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = _rolled(reshape(self, shape=(product(shape_of(self)),)), 0, whole(shifts[0]))
        return reshape(flat, shape=shape_of(self))
    x = self
    for amount, axis in zip(shifts, dims, strict=True):
        x = _rolled(x, node.axis(int(axis), rank_of(self)), whole(amount))
    return x


def _rolled(x: Value, axis: int, amount: Sym) -> Value:
    size = shape_of(x)[axis]
    if size.is_const and size.value == 0:
        return x
    at = amount % size
    if at == 0:
        return x
    return concat(_cut(x, axis, size - at, at), _cut(x, axis, sym(0), size - at), axis=axis)


@aten("sym_size", "sym_numel", "numel", "dim")
def size_of(node: AtenNode, self: Value, dim: int | None = None) -> Sym:
    """Sizes that were not followed by their expressions."""
    if node.op.startswith("aten.sym_size") and dim is not None:
        return shape_of(self)[node.axis(dim, rank_of(self))]
    return product(shape_of(self))


@aten("sym_stride", "sym_storage_offset")
def layout_of(node: AtenNode, self: Value, dim: int | None = None) -> Sym:
    """Refused where it is no expression of sizes: what is asked for is not known of an array that a call gives."""
    raise UnsupportedError(
        "the number depends on how an input lay in memory when the program was exported",
        hint="export it with inputs that are whole tensors (x.contiguous()), or compute with sizes",
    )


@aten("unfold", "unfold_copy")
def unfold(node: AtenNode, self: Value, dimension: int, size: Number, step: Number) -> Value:
    """Windows of `size` elements, `step` apart, as a last axis."""
    if not shape_of(self):
        return reshape(self, shape=node.shape)
    axis, rank, width = node.axis(dimension, rank_of(self)), rank_of(self), whole(size)
    count = node.shape[axis]
    starts = ew.mul(iota(shape=(count, 1), axis=0), dim_value(whole(step)))
    found = gather(self, ew.add(starts, iota(shape=(1, width), axis=1)), axis=axis)
    order = (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1)
    return transpose(found, perm=order)


@aten("as_strided", "as_strided_copy")
def as_strided(
    node: AtenNode,
    self: Value,
    size: Sequence[Number],
    stride: Sequence[Number],
    storage_offset: Number | None = None,
) -> Value:
    """Elements at positions of PyTorch's memory, as it lays out the operand."""
    flat, at = _in_memory(node, self), _addresses(node, size, stride, storage_offset)
    return gather(flat, at, axis=0)


@aten("as_strided_scatter", "prims::as_strided_scatter")
def as_strided_scatter(
    node: AtenNode,
    self: Value,
    src: Value,
    size: Sequence[Number],
    stride: Sequence[Number],
    storage_offset: Number | None = None,
) -> Value:
    """The operand with `src` at these positions of its memory."""
    flat, at = _in_memory(node, self), _addresses(node, size, stride, storage_offset)
    count = product(shape_of(at))
    places, elements = reshape(at, shape=(count,)), reshape(node.value(src, node.dtype), shape=(count,))
    found = scatter_elements(flat, places, elements, axis=0, reduction="none")
    order = _memory_order(node)
    apart = reshape(found, shape=tuple(shape_of(self)[k] for k in order))
    return transpose(apart, perm=tuple(order.index(k) for k in range(len(order)))) if order else apart


def _memory_order(node: AtenNode) -> list[int]:
    """The axes of the first operand from the outermost one in memory on; it must have no gaps."""
    given = node.operands[0]
    order = sorted(range(given.dim()), key=lambda k: (-given.stride(k), -given.shape[k], k))
    expected = 1
    for k in reversed(order):
        if given.shape[k] != 1 and given.stride(k) != expected:
            raise node.refuse("positions in the memory of a tensor with gaps", "make it .contiguous() first")
        expected = expected * given.shape[k]
    return order


def _in_memory(node: AtenNode, x: Value) -> Value:
    order = _memory_order(node)
    return reshape(transpose(x, perm=tuple(order)) if order else x, shape=(product(shape_of(x)),))


def _addresses(
    node: AtenNode, size: Sequence[Number], stride: Sequence[Number], offset: Number | None
) -> Value:
    """The positions, counted from the first element of the operand."""
    base = node.operands[0].storage_offset()
    start = sym(0) if offset is None else whole(offset) - node.size(base)
    shape = tuple(map(whole, size))
    found = view.expand(dim_value(start), shape=shape)
    for axis, step in enumerate(stride):
        ones = tuple(d if k == axis else sym(1) for k, d in enumerate(shape))
        found = ew.add(found, ew.mul(iota(shape=ones, axis=axis), dim_value(whole(step))))
    return found
