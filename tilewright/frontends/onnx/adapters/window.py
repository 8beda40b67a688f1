"""Windows that slide: kernel, strides, pads and dilations of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.node import Node
from tilewright.ir import sym as s
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.composites.windows import WindowAttributes, same_pads

MAX_EXTENT = 2**31 - 1


def window_of(
    node: Node, kernel: Sequence[Sym], space: Sequence[Sym] | None = None, *, transposed: bool = False
) -> WindowAttributes:
    """The window that the attributes of a convolution or pooling describe; auto_pad is worked out for the spatial dims
    `space`, by default those of operand 0 behind its channels."""
    space = node.shape(0)[2:] if space is None else space
    n = len(space)
    if n < 1 or len(kernel) != n:
        raise ModelError(
            f"{node.op} of {node.type(0)}: the kernel has {len(kernel)} axes for {n} spatial axes"
        )
    declared = node.attr("kernel_shape", None)
    if declared is not None:
        wrong = f"kernel_shape {list(declared)} does not fit a kernel of {list(map(str, kernel))}"
        fits = [s.eq(k, d) for k, d in zip(kernel, declared, strict=False)]
        node.demand(s.logical_and(len(declared) == n, *fits), wrong)
    possible = (s.logical_and(s.ge(k, 1), s.le(k, MAX_EXTENT)) for k in kernel)
    node.demand(s.logical_and(*possible), f"a kernel of {list(map(str, kernel))} is not possible")
    strides = _positive(node, "strides", n)
    dilations = _positive(node, "dilations", n)
    mode = node.attr("auto_pad", "NOTSET")  # MaxUnpool has none
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"{node.op} has no auto_pad '{mode}'")
    if mode.startswith("SAME") and not transposed:
        axes = zip(space, kernel, strides, dilations, strict=True)
        begin, end = zip(*[same_pads(*axis, mode == "SAME_UPPER") for axis in axes], strict=True)
        return WindowAttributes(tuple(kernel), strides, begin, end, dilations)
    pads = node.attr("pads", (0,) * 2 * n) if mode == "NOTSET" else (0,) * 2 * n
    if len(pads) != 2 * n or any(not 0 <= p <= MAX_EXTENT for p in pads):
        raise ModelError(f"{node.op}: pads {list(pads)} do not fit {n} spatial axes")
    return WindowAttributes(tuple(kernel), strides, tuple(map(sym, pads[:n])), tuple(map(sym, pads[n:])), dilations)


def _positive(node: Node, name: str, n: int) -> tuple[int, ...]:
    values: tuple[int, ...] = node.attr(name, (1,) * n)
    if len(values) != n or any(not 1 <= v <= MAX_EXTENT for v in values):
        raise ModelError(f"{node.op}: {name} {list(values)} does not fit {n} spatial axes")
    return values
