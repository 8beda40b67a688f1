"""Slices, pads, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.axes import pick, require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import at_most_one, checked_shape, slice_bounds
from tilewright.ops.define import constant
from tilewright.ops.index import gather, triangle
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, expand, pad, reshape, shape_of, slice_, split


@adapter("Concat")
def concat_(node: Node) -> Value:
    """Before opset 4 the axis was 1 where it was not given."""
    axis = node.axis(node.attr("axis", 1))
    return concat(*node.operands, axis=axis) if len(node.inputs) > 1 else node.input(0)


@adapter("Slice")
def slice_along(node: Node) -> Value:
    """x[start:end:step] along each of `axes`."""
    _give_lengths(node)
    starts, ends = node.listed_symbols("starts", 1) or (), node.listed_symbols("ends", 2) or ()
    axes, steps = node.axes("axes", 3), node.listed_symbols("steps", 4)
    axes = tuple(map(sym, range(len(starts)))) if axes is None else axes
    steps = (sym(1),) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(
            f"Slice has {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        )
    x = node.input(0)
    first, count, stride = [sym(0)] * node.rank(0), list(node.shape(0)), [1] * node.rank(0)
    for k, size in enumerate(node.shape(0)):
        begin, end, step = (pick(v, axes, k, d) for v, d in ((starts, sym(0)), (ends, size), (steps, sym(1))))
        require(node.translation, s.ne(step, 0), "Slice has a step of 0")
        if step.is_const:
            first[k], count[k] = slice_bounds(begin, end, step.value, size)
            stride[k] = step.value
            continue
        up, down = slice_bounds(begin, end, 1, size), slice_bounds(begin, end, -1, size)
        length = s.select(s.lt(step, 0), s.ceildiv(down[1], s.maximum(-step, 1)), s.ceildiv(up[1], s.maximum(step, 1)))
        start = s.select(s.lt(step, 0), down[0], up[0])
        x = gather(x, _progression(start, step, length), axis=k, in_range=True)
        count[k] = length
    unchanged = zip(count, shape_of(x), first, stride, strict=True)
    if all(c == d and f == 0 and k == 1 for c, d, f, k in unchanged):
        return x
    return slice_(x, starts=tuple(first), sizes=tuple(count), steps=tuple(stride))


def _give_lengths(node: Node) -> None:
    """Give bounds whose number only a call tells one that is known: that of the axes or steps, one where there cannot
    be more, else as many as the tensor has axes, the last of which change nothing."""
    operands = [k for k in range(1, len(node.inputs)) if node.optional(k) is not None and node.rank(k) == 1]
    lengths = [node.shape(k)[0] for k in operands]
    unknown = [k for k, d in zip(operands, lengths, strict=True) if not d.is_const]
    known = {d.value for d in lengths if d.is_const}
    for d in lengths[1:] if unknown else ():
        require(node.translation, s.eq(d, lengths[0]), f"{node.op} has {lengths[0]} and {d} bounds")
    rank, single = node.rank(0), any(map(at_most_one, lengths))
    inputs = list(node.inputs)
    for k in unknown:
        if known or single or rank == 1:
            inputs[k] = reshape(node.input(k), shape=(min(known, default=1),))
        elif 3 not in unknown:
            inputs[k] = _filled_up(node, k, rank, {2: _largest(node, k), 4: 1}.get(k, 0))
    node.inputs = tuple(inputs)


def _largest(node: Node, k: int) -> int:
    return int(np.iinfo(node.dtype(k).storage).max)


def _filled_up(node: Node, k: int, length: int, filler: int) -> Value:
    """The elements of operand `k`, of which there are at most so many, and others behind them."""
    x = node.input(k)
    message = f"{node.op}: input {k}, {x.type}, has more elements than there are axes"
    require(node.translation, s.le(node.shape(k)[0], length), message)
    longer = concat(x, full(value=filler, dtype=node.dtype(k), shape=(length,)), axis=0)
    return slice_(longer, starts=(0,), sizes=(length,), steps=(1,))


def _progression(start: Sym, step: Sym, length: Sym) -> Value:
    """start, start + step, ..."""
    first, by = (sym_tensor(values=(d,), scalar=True) for d in (start, step))
    return ew.add(ew.mul(iota(shape=(length,), axis=0), by), first)


@adapter("Split")
def split_(node: Node) -> tuple[Value, ...]:
    axis = node.axis(node.attr("axis", 0))
    if node.optional(1) is not None and node.dtype(1).is_float:  # in opset 1 sizes are of the type of the data
        node.inputs = (node.input(0), ew.cast(node.input(1), dtype=dt.i64))
    size, sizes, count = node.shape(0)[axis], node.listed_symbols("split", 1), len(node.output_names)
    if sizes is None:
        count = node.attr("num_outputs", count)
        if not 1 <= count <= len(node.output_names):
            raise ModelError(f"Split into {count} parts with {len(node.output_names)} outputs")
        chunk = s.ceildiv(size, count)
        sizes = (chunk,) * (count - 1) + (size - chunk * (count - 1),)
    if any(d.is_const and d.value < 0 for d in sizes) or len(sizes) != count:
        raise ModelError(f"Split of {node.type(0)} into [{', '.join(map(str, sizes))}]")
    for d in sizes:
        require(node.translation, s.le(0, d), "Split has a negative size")
    total = sum(sizes, sym(0))
    require(node.translation, s.eq(total, size), f"the sizes of Split do not add up to that of axis {axis}")
    return tuple(split(node.input(0), sizes=sizes, axis=axis))


@adapter("Pad")
def padded(node: Node) -> Value:
    """Operand 0 with amounts (all the begins, then all the ends) added along axes; negative ones crop."""
    amounts = node.listed_symbols("pads" if node.version >= 2 else "paddings", 1) or ()
    axes = node.axes("axes", 3)
    axes = tuple(map(sym, range(node.rank(0)))) if axes is None else axes
    if len(amounts) != 2 * len(axes):
        raise ModelError(f"Pad has {len(amounts)} amounts for {len(axes)} axes")
    filler, computed = node.attr("value", 0), None
    if node.optional(2) is not None and node.type(2).size != 0:
        value, known = node.scalar(2), node.constant_or_none(2)
        filler, computed = (0, value) if known is None else (known.item(), None)
    mode = node.one_of("mode", "constant", "reflect", "edge", "wrap", default="constant")
    rank, half = node.rank(0), len(axes)
    before = [pick(amounts[:half], axes, k, sym(0)) for k in range(rank)]
    after = [pick(amounts[half:], axes, k, sym(0)) for k in range(rank)]
    x = _cropped(node.input(0), before, after)
    before, after = ([_not_below_zero(d) for d in side] for side in (before, after))
    if all(d == 0 for d in (*before, *after)):
        return x
    for d in (*before, *after):
        if any(v.bounds == (None, None) for v in d.vars):  # so that sums of sizes are integers of 64 bits
            node.translation.require(s.le(d, 1 << 60), "Pad by more elements than memory can hold")
    shape = tuple(d + b + a for d, b, a in zip(shape_of(x), before, after, strict=True))
    checked_shape(shape, "Pad")
    number = filler if node.dtype(0).is_float else int(filler)
    if computed is None or mode != "constant":
        return pad(x, before=tuple(before), after=tuple(after), mode=mode, value=number)
    inside = expand(constant(np.array(True), "inside"), shape=shape_of(x))
    sides = {"before": tuple(before), "after": tuple(after)}
    return ew.select(pad(inside, **sides, value=0), pad(x, **sides, value=number), computed)


def _not_below_zero(d: Sym) -> Sym:
    return s.maximum(d, 0) if d.is_const else d


def _cropped(x: Value, before: Sequence[Sym], after: Sequence[Sym]) -> Value:
    """x without what constant negative amounts take away."""
    starts = [sym(max(-b.value, 0)) if b.is_const else sym(0) for b in before]
    ends = [sym(max(-a.value, 0)) if a.is_const else sym(0) for a in after]
    if all(d == 0 for d in (*starts, *ends)):
        return x
    sizes = tuple(d - b - e for d, b, e in zip(shape_of(x), starts, ends, strict=True))
    checked_shape(sizes, "Pad")
    return slice_(x, starts=tuple(starts), sizes=sizes, steps=(1,) * len(starts))


@adapter("Trilu", since=14)
def trilu(node: Node) -> Value:
    shift = sym(0) if node.optional(1) is None else node.one_symbol(1)
    return triangle(node.input(0), diagonal=shift, upper=node.flag("upper", 1))
