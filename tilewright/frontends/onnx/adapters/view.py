"""Slices, pads, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.composites.shapes import checked_shape, slice_bounds
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.index import triangle
from tilewright.ops.view import concat, pad, shape_of, slice_, split


@adapter("Concat", since=4)
def concat_(node: Node) -> Value:
    return concat(*node.operands, axis=node.axis()) if len(node.inputs) > 1 else node.input(0)


@adapter("Slice")
def slice_along(node: Node) -> Value:
    """x[start:end:step] along each of `axes`."""
    starts, ends = node.listed_symbols("starts", 1) or (), node.listed_symbols("ends", 2) or ()
    axes, steps = node.listed("axes", 3), node.listed("steps", 4)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(
            f"Slice has {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        )
    shape = node.shape(0)
    first, count, stride = [sym(0)] * len(shape), list(shape), [1] * len(shape)
    for axis, start, end, step in zip(node.checked_axes(axes), starts, ends, steps, strict=True):
        if step == 0:
            raise ModelError("Slice has a step of 0")
        first[axis], count[axis] = slice_bounds(start, end, step, shape[axis])
        stride[axis] = step
    if all(c == d and f == 0 and k == 1 for c, d, f, k in zip(count, shape, first, stride, strict=True)):
        return node.input(0)
    return slice_(node.input(0), starts=tuple(first), sizes=tuple(count), steps=tuple(stride))


@adapter("Split")
def split_(node: Node) -> tuple[Value, ...]:
    axis = node.axis()
    size, sizes, count = node.shape(0)[axis], node.listed_symbols("split", 1), len(node.output_names)
    if sizes is None:
        count = node.attr("num_outputs", count)
        if not 1 <= count <= len(node.output_names):
            raise ModelError(f"Split into {count} parts with {len(node.output_names)} outputs")
        chunk = s.ceildiv(size, count)
        sizes = (chunk,) * (count - 1) + (size - chunk * (count - 1),)
    if any(d.is_const and d.value < 0 for d in sizes) or len(sizes) != count:
        raise ModelError(f"Split of {node.type(0)} into [{', '.join(map(str, sizes))}]")
    return tuple(split(node.input(0), sizes=sizes, axis=axis))


@adapter("Pad")
def padded(node: Node) -> Value:
    """Operand 0 with amounts (all the begins, then all the ends) added along axes; negative ones crop."""
    amounts = node.listed_symbols("pads", 1) or ()
    axes = tuple(range(node.rank(0))) if node.optional(3) is None else node.checked_axes(node.ints(3))
    if len(amounts) != 2 * len(axes):
        raise ModelError(f"Pad has {len(amounts)} amounts for {len(axes)} axes")
    filler = node.attr("value", 0)
    if node.optional(2) is not None:
        given = node.constant(2).reshape(-1)
        if given.size > 1:
            raise ModelError(f"the value of Pad must be one number, not {given.size}")
        filler = given[0].item() if given.size else 0
    mode = node.one_of("mode", "constant", "reflect", "edge", "wrap")
    before, after = [sym(0)] * node.rank(0), [sym(0)] * node.rank(0)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = amounts[k], amounts[k + len(axes)]
    x = _cropped(node.input(0), before, after)
    before, after = ([_not_below_zero(d) for d in side] for side in (before, after))
    if all(d == 0 for d in (*before, *after)):
        return x
    shape = tuple(d + b + a for d, b, a in zip(shape_of(x), before, after, strict=True))
    checked_shape(shape, "Pad")
    number = filler if node.dtype(0).is_float else int(filler)
    return pad(x, before=tuple(before), after=tuple(after), mode=mode, value=number)


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
    return triangle(node.input(0), diagonal=shift, upper=node.flag("upper"))
