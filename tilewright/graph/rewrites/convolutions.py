"""Rules of canonicalisation about convolutions: padding that stands apart, and convolutions that are products of two
numbers."""

from __future__ import annotations

from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Builder, Op
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv
from tilewright.ops.view import reshape


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


CONVOLUTION_RULES = (padding_into_conv, conv_of_single_elements)
