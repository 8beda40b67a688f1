"""Facts about a convolution of the graph that several layouts ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import defining
from tilewright.ir.sym import Sym, sym
from tilewright.ops.traits.derive import product_of
from tilewright.ops.view import pad
from tilewright.ops.window import Window


class ConvWindow(Window):
    """The window of a convolution, with every default written out."""

    def __init__(self, op: Op) -> None:
        data, filters = (shape_of(v) for v in op.operands)
        attrs = (op.attrs[name] for name in ("strides", "pads_begin", "pads_end", "dilations"))
        super().__init__(data[2:], filters[2:], *attrs)

    @property
    def is_single(self) -> bool:
        """Whether each result position reads one position only."""
        return all(k == 1 for k in self.kernel) and all(p == 0 for p in (*self.before, *self.after))

    @property
    def is_pointwise(self) -> bool:
        """Whether each result position reads its own position only."""
        return self.is_single and all(s == 1 for s in self.strides)

    @property
    def attrs(self) -> dict[str, Any]:
        return {"strides": self.strides, "dilations": self.dilations}

    def padded(self, x: Value, trailing: int) -> Value:
        """x with its padding around it, so that the kernel's inner loops need no conditions."""
        return pad_space(x, self.before, self.after, trailing)


def pad_space(x: Value, before: Sequence[Sym], after: Sequence[Sym], trailing: int = 0) -> Value:
    """x with zeros around its spatial axes, which `trailing` others follow."""
    if all(p == 0 for p in (*before, *after)):
        return x
    front, behind = (sym(0),) * 2, (sym(0),) * trailing
    return pad(x, before=(*front, *before, *behind), after=(*front, *after, *behind))


def has_known_filters(conv: Op) -> bool:
    """Whether a convolution is in f32, or of narrow numbers in a wider dtype, and its filters are known when
    compiling."""
    is_served = dtype_of(conv.result) == dt.f32 or conv.attrs.get("sums") is not None
    return is_served and defining(conv.operands[1], "constant") is not None


def is_of_unit(op: Op, units: frozenset[DType]) -> bool:
    """Whether it is a convolution of such 16-bit floats, with sums in float32: where units of the machine multiply
    these, it is a product of matrices, and stays as it is."""
    product = product_of(op) if op.attrs.get("sums") is not None else None
    return product is not None and product.slides and dtype_of(op.operands[product.data]) in units
