"""Rules of canonicalisation about convolutions: padding that stands apart, elements of filters that meet nothing but
padding, and convolutions that are products of two numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.cost.conv.windows import LONGEST_FILTER
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv
from tilewright.ops.quant import conv_integer, dequantize_linear
from tilewright.ops.view import reshape, slice_


@rule("conv")
def padding_into_conv(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """conv(pad(x)) -> conv(x) with these zeros as its own padding."""
    inner = defining(op.operands[0], "pad")
    if inner is None or inner.attrs["mode"] != "constant" or inner.attrs["value"]:
        return None
    before, after = ([sym(p) for p in inner.attrs[name]] for name in ("before", "after"))
    if any(p != 0 for p in (*before[:2], *after[:2])):
        return NoMatch("the padding adds images or channels")
    if not all(p.is_const and p.value >= 0 for p in (*before, *after)):
        return NoMatch("the padding is not known, or takes elements away")
    attrs = dict(op.attrs)
    for name, more in (("pads_begin", before[2:]), ("pads_end", after[2:])):
        own = tuple(map(sym, attrs[name])) or (sym(0),) * len(more)
        attrs[name] = tuple(p + m for p, m in zip(own, more, strict=True))
    return conv(inner.operands[0], op.operands[1], **attrs)


@rule("conv")
def conv_of_single_elements(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A convolution whose filters have one element, and read one channel each, multiplies each channel by a number."""
    x, w = op.operands
    filters, *rest = shape_of(w)
    groups = op.attrs["groups"]
    if groups < 2 or filters != groups or any(d != 1 for d in rest) or op.attrs["sums"] is not None:
        return None
    if not dtype_of(x).is_float or any(s != 1 for s in op.attrs["strides"]):
        return None
    pads: list[Sym] = [sym(p) for name in ("pads_begin", "pads_end") for p in op.attrs[name]]
    if any(p != 0 for p in pads):
        return None
    if any(defining(v, "dequantize_linear") is not None for v in (x, w)):
        return NoMatch("its operands are quantised: products of integers are exact")
    return ew.mul(x, reshape(w, shape=(filters, *[sym(1)] * (len(rest) - 1))))


@rule("conv")
def filters_within_the_image(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Elements of the filters that meet padding at every position of the result are left out: rows of filters on
    images of few rows, and dilated filters that reach beyond the image."""
    x, w = op.operands
    found = _within_the_image(op)
    return None if found is None else conv(x, _elements(w, found.kept), **{**op.attrs, **found.pads})


@rule("conv_integer")
def integer_filters_within_the_image(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The same for integers, where padding stands for 0, too."""
    x, w, *zeros = op.operands
    found = _within_the_image(op)
    return (
        None
        if found is None
        else conv_integer(x, _elements(w, found.kept), *zeros, **{**op.attrs, **found.pads})
    )


@dataclass(frozen=True)
class _Within:
    """The elements of the filters along each spatial axis that are kept, and the padding that they need."""

    kept: tuple[tuple[Sym, Sym], ...]
    """The first one, and how many."""
    pads: Mapping[str, tuple[Sym, ...]]


def _within_the_image(op: Op) -> _Within | None:
    """None where all elements are needed."""
    x, w = op.operands[:2]
    if all(p == 0 for name in ("pads_begin", "pads_end") for p in op.attrs[name]):
        return None
    sizes, kernel = shape_of(x)[2:], shape_of(w)[2:]
    before, after = (
        [sym(p) for p in op.attrs[name]] or [sym(0)] * len(sizes) for name in ("pads_begin", "pads_end")
    )
    strides, dilations = (op.attrs[name] or (1,) * len(sizes) for name in ("strides", "dilations"))
    ranges = [_needed(*row) for row in zip(sizes, kernel, before, after, strides, dilations, strict=True)]
    if all(needed is None for needed in ranges):
        return None
    whole = [needed or (sym(0), k) for needed, k in zip(ranges, kernel, strict=True)]
    rows = list(zip(whole, kernel, dilations, before, after, strict=True))
    pads_begin = tuple(pad - begin * step for (begin, _), _, step, pad, _ in rows)
    pads_end = tuple(pad - (k - end) * step for (_, end), k, step, _, pad in rows)
    return _Within(
        tuple((begin, end - begin) for begin, end in whole), {"pads_begin": pads_begin, "pads_end": pads_end}
    )


def _needed(
    size: Sym, kernel: Sym, before: Sym, after: Sym, stride: int, step: int
) -> tuple[Sym, Sym] | None:
    """From the first element of the filters along an axis that meets the image to behind the last one, or more, so that
    no padding becomes negative; None where this is all of them, or not known."""
    if not (size.is_const and kernel.is_const and before.is_const and after.is_const):
        return None
    n, elements, begin, end = size.value, kernel.value, before.value, after.value
    if begin < 0 or end < 0 or (begin < step and end < step) or elements > LONGEST_FILTER:
        return None
    count = (n + begin + end - (elements - 1) * step - 1) // stride + 1

    def meets(k: int) -> bool:
        first = max(-((k * step - begin) // stride), 0)  # the first position that is not before the image
        return first < count and first * stride + k * step - begin < n

    met = [k for k in range(elements) if meets(k)]
    if not met:
        return None
    found = min(met[0], begin // step), max(met[-1] + 1, elements - end // step)
    return None if found == (0, elements) else (sym(found[0]), sym(found[1]))


def _elements(w: Value, kept: Sequence[tuple[Sym, Sym]]) -> Value:
    """Filters of these elements; of quantised ones those of the integers, where their scale is none of elements."""
    inner = defining(w, "dequantize_linear")
    if inner is not None and all(d == 1 for v in inner.operands[1:] for d in shape_of(v)[-len(kept) :]):
        q, scale, zero = inner.operands
        return dequantize_linear(_elements(q, kept), scale, zero, **inner.attrs)
    whole = shape_of(w)[:2]
    starts = (sym(0), sym(0), *(begin for begin, _ in kept))
    return slice_(w, starts=starts, sizes=(*whole, *(count for _, count in kept)))


CONVOLUTION_RULES = (
    padding_into_conv, conv_of_single_elements, filters_within_the_image, integer_filters_within_the_image,
)  # fmt: skip
