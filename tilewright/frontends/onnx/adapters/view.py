"""Slices, pads, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.adapters.source import checked_shape
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.index import triangle
from tilewright.ops.view import concat, pad, shape_of, slice_, split

TO_THE_END = 10**9
"""Exporters write ends from here on (and their negatives) to mean "all that there is"."""


@adapter("Concat", since=4)
def concat_(node: Node) -> Value:
    values = [node.input(k) for k in range(len(node.inputs))]
    return concat(*values, axis=node.axis()) if len(values) > 1 else values[0]


@adapter("Slice")
def slice_attributes(node: Node) -> Value:
    starts = tuple(map(sym, node.attr("starts")))
    ends = tuple(map(sym, node.attr("ends")))
    return sliced(node, starts, ends, node.attr("axes", tuple(range(len(starts)))), (1,) * len(starts))


@adapter("Slice", since=10)
def slice_inputs(node: Node) -> Value:
    starts, ends = node.symbols(1), node.symbols(2)
    axes = tuple(range(len(starts))) if node.optional(3) is None else node.ints(3)
    steps = (1,) * len(starts) if node.optional(4) is None else node.ints(4)
    return sliced(node, starts, ends, axes, steps)


def sliced(
    node: Node, starts: Sequence[Sym], ends: Sequence[Sym], axes: Sequence[int], steps: Sequence[int]
) -> Value:
    """x[start:end:step] along each of `axes`."""
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


def slice_bounds(start: Sym, end: Sym, step: int, size: Sym) -> tuple[Sym, Sym]:
    """First position and number of elements of start:end:step in an axis of `size` elements. As the standard has it, a
    start below the first element is that element, also where the step is negative; in NumPy nothing is left then."""
    low, high = (sym(0), size) if step > 0 else (sym(-1), size - 1)
    start = _clamped(_from_front(start, size), s.minimum(0, high), high)  # there may be no first element
    end = _clamped(_from_front(end, size), low, high)
    distance = end - start if step > 0 else start - end
    return start, s.maximum(s.ceildiv(distance, abs(step)), 0)


def _from_front(position: Sym, size: Sym) -> Sym:
    lowest, highest = position.bounds
    if lowest is not None and lowest >= 0:
        return position
    if highest is not None and highest < 0:
        return position if position.is_const and position.value <= -TO_THE_END else position + size
    return s.select(s.lt(position, 0), position + size, position)


def _clamped(position: Sym, low: Sym, high: Sym) -> Sym:
    if position.is_const and position.value >= TO_THE_END:
        return high
    if position.is_const and position.value <= -TO_THE_END:
        return low
    return s.minimum(s.maximum(position, low), high)


@adapter("Split", since=2)
def split_attribute(node: Node) -> tuple[Value, ...]:
    sizes = node.attr("split", None)
    return _split(node, None if sizes is None else tuple(map(sym, sizes)))


@adapter("Split", since=13)
def split_input(node: Node) -> tuple[Value, ...]:
    return _split(node, None if node.optional(1) is None else node.symbols(1))


def _split(node: Node, sizes: Sequence[Sym] | None) -> tuple[Value, ...]:
    axis = node.axis(default=0)
    size = node.shape(0)[axis]
    count = len(node.output_names)
    if sizes is None:
        count = node.attr("num_outputs", count)
        if not 1 <= count <= len(node.output_names):
            raise ModelError(f"Split into {count} parts with {len(node.output_names)} outputs")
        chunk = s.ceildiv(size, count)
        sizes = [chunk] * (count - 1) + [size - chunk * (count - 1)]
    if any(d.is_const and d.value < 0 for d in sizes) or len(sizes) != count:
        raise ModelError(f"Split of {node.type(0)} into [{', '.join(map(str, sizes))}]")
    parts = split(node.input(0), sizes=tuple(sizes), axis=axis)
    return tuple(parts)


@adapter("Pad", since=2)
def pad_attributes(node: Node) -> Value:
    return padded(
        node, tuple(map(sym, node.attr("pads"))), node.attr("value", 0.0), tuple(range(node.rank(0)))
    )


@adapter("Pad", since=11)
def pad_inputs(node: Node) -> Value:
    axes = tuple(range(node.rank(0))) if node.optional(3) is None else node.checked_axes(node.ints(3))
    filler = node.constant(2).reshape(-1) if node.optional(2) is not None else None
    if filler is not None and filler.size > 1:
        raise ModelError(f"the value of Pad must be one number, not {filler.size}")
    value = filler[0].item() if filler is not None and filler.size else 0
    return padded(node, node.symbols(1), value, axes)


def padded(node: Node, amounts: Sequence[Sym], value: float, axes: Sequence[int]) -> Value:
    """Operand 0 with `amounts` (all the begins, then all the ends) added along `axes`; negative ones crop."""
    if len(amounts) != 2 * len(axes):
        raise ModelError(f"Pad has {len(amounts)} amounts for {len(axes)} axes")
    mode = node.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ModelError(f"Pad has no mode '{mode}'")
    before, after = [sym(0)] * node.rank(0), [sym(0)] * node.rank(0)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = amounts[k], amounts[k + len(axes)]
    x = _cropped(node.input(0), before, after)
    before, after = ([_not_below_zero(d) for d in side] for side in (before, after))
    if all(d == 0 for d in (*before, *after)):
        return x
    shape = tuple(d + b + a for d, b, a in zip(shape_of(x), before, after, strict=True))
    checked_shape(shape, "Pad")
    number = value if node.dtype(0).is_float else int(value)
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
    shift = sym(0)
    if node.optional(1) is not None:
        if node.type(1).size != 1:
            raise ModelError(f"Trilu: k must be one number, it is {node.type(1)}")
        (shift,) = node.symbols(1)
    return triangle(node.input(0), diagonal=shift, upper=bool(node.attr("upper", 1)))
