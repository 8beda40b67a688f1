"""The window of a convolution with every default written out."""

from __future__ import annotations

from typing import Any

from tilewright.graph.match import shape_of, type_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ops.view import pad


class Window:
    """The attributes of a convolution with every default written out."""

    def __init__(self, op: Op) -> None:
        space = type_of(op.operands[0]).rank - 2
        self.strides = tuple(op.attrs["strides"]) or (1,) * space
        self.dilations = tuple(op.attrs["dilations"]) or (1,) * space
        self.before = tuple(map(sym, op.attrs["pads_begin"])) or (sym(0),) * space
        self.after = tuple(map(sym, op.attrs["pads_end"])) or (sym(0),) * space
        self.kernel = shape_of(op.operands[1])[2:]

    @property
    def is_padded(self) -> bool:
        return any(p != 0 for p in (*self.before, *self.after))

    @property
    def is_single(self) -> bool:
        """Whether each result position reads one position only."""
        return all(k == 1 for k in self.kernel) and not self.is_padded

    @property
    def is_pointwise(self) -> bool:
        """Whether each result position reads its own position only."""
        return self.is_single and all(s == 1 for s in self.strides)

    @property
    def attrs(self) -> dict[str, Any]:
        return {"strides": self.strides, "dilations": self.dilations}

    def padded(self, x: Value, trailing: int) -> Value:
        """x with its padding around it, so that the kernel's inner loops need no conditions."""
        if not self.is_padded:
            return x
        nothing, behind = (sym(0),) * 2, (sym(0),) * trailing
        return pad(x, before=(*nothing, *self.before, *behind), after=(*nothing, *self.after, *behind))
