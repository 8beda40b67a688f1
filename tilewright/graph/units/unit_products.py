"""Convolutions as products of matrices, for machines whose units multiply nothing else.

    conv(x, w)    becomes    filters [o, taps * c] @ windows [n, taps * c, positions]

The windows of a kernel of one position are x itself; others are brought together, one slice of x for each tap. With
`numerics="fast"` operands of float32 products are rounded to float16, and added up in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as positions
from typing import ClassVar

from tilewright.graph.layout.conv_window import ConvWindow, pad_space
from tilewright.graph.match import dtype_of, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.units.unit_windows import WINDOW_RULES, Planes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, rewrite
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.contract import matmul, matmul_widening
from tilewright.ops.elementwise import cast
from tilewright.ops.view import concat, reshape, slice_, transpose
from tilewright.passes import PassContext


@dataclass(frozen=True)
class UnitProducts:
    """Write convolutions as products of matrices, and round what is multiplied where users allow it; pools and
    depthwise convolutions as elementwise work."""

    name: ClassVar[str] = "unit-products"

    def run(self, module: Module, ctx: PassContext) -> None:
        stages = [
            [Rule("rounded_products", ("conv", "matmul"), rounded_product)] if ctx.fast else [],
            [Rule("convs_as_products", ("conv",), conv_as_product), *WINDOW_RULES],
        ]
        for rules in stages:
            if rules and rewrite(module.main, rules, module, ctx.remarks, stage=self.name, within=ctx):
                drop_dead(module)


def rounded_product(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A product of float32 with operands in float16, and sums in float32."""
    if op.attrs.get("sums") is not None or any(dtype_of(v) is not dt.f32 for v in (*op.operands, *op.results)):
        return None
    left, right = (cast(v, dtype=dt.f16) for v in op.operands)
    if op.name == "conv":
        if op.attrs["groups"] != 1:
            return None
        return _product_of(op, left, right, sums=True)
    if op.attrs["transpose_a"]:
        return None
    return matmul_widening(left, right, sums=dt.f32, transpose_b=op.attrs["transpose_b"])


def conv_as_product(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A convolution without groups, of known sizes, as a product of its filters with the windows of the data."""
    if op.attrs["groups"] != 1:
        return None
    return _product_of(op, *op.operands, sums=op.attrs.get("sums") is not None)


def _product_of(op: Op, x: Value, w: Value, *, sums: bool) -> Replacement:
    shapes = (shape_of(x), shape_of(w), shape_of(op.result))
    if not all(d.is_const and d.value > 0 for s in shapes for d in s):
        return None
    window, (n, o, *space) = ConvWindow(op), shapes[2]
    columns = _windows(x, window, space)
    rank = len(window.kernel)
    filters = transpose(w, perm=(0, *range(2, rank + 2), 1))
    filters = reshape(filters, shape=(o, shape_of(columns)[1]))
    sums_in = dtype_of(op.result)
    found = matmul_widening(filters, columns, sums=sums_in) if sums else matmul(filters, columns)
    return reshape(found, shape=(n, o, *space))


def _windows(x: Value, window: ConvWindow, space: Sequence[Sym]) -> Value:
    """What each position of the result reads, [n, taps * c, positions]."""
    n, c, *_ = shape_of(x)
    count = product(space)
    if window.is_pointwise:
        return reshape(x, shape=(n, c, count))
    taps = [reshape(part, shape=(n, c, count)) for _, part in _taps(x, window, space)]
    return concat(*taps, axis=1) if len(taps) > 1 else taps[0]


def _taps(x: Value, window: ConvWindow, space: Sequence[Sym]) -> Iterator[tuple[tuple[int, ...], Value]]:
    """The taps of a kernel, each with what all positions of the result read there, [n, c, *space]."""
    n, c, *_ = shape_of(x)
    taps = positions(*(range(k.value) for k in window.kernel))
    if window.strides[-1] > 1 and not window.is_single:
        planes = Planes.of_window(x, window)
        yield from ((tap, planes.lines_at(tap)) for tap in taps)
        return
    padded = pad_space(x, window.before, window.after)
    for tap in taps:
        starts = (0, 0, *(t * d for t, d in zip(tap, window.dilations, strict=True)))
        yield tap, slice_(padded, starts=starts, sizes=(n, c, *space), steps=(1, 1, *window.strides))

