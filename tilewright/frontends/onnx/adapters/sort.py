"""Orders and running totals."""

from __future__ import annotations

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.reduce import position_of, reduce_max
from tilewright.ops.scan import cumprod, cumsum
from tilewright.ops.sort import topk
from tilewright.ops.source import iota
from tilewright.ops.view import reshape, shape_of


@adapter("TopK")
def topk_attribute(node: Node) -> tuple[Value, ...]:
    return _topk(node, sym(node.attr("k")))


@adapter("TopK", since=10)
def topk_input(node: Node) -> tuple[Value, ...]:
    count = node.symbols(1)
    if len(count) != 1:
        raise ModelError(f"k of TopK must be one number, not {len(count)}")
    return _topk(node, count[0])


def _topk(node: Node, k: Sym) -> tuple[Value, ...]:
    axis = node.axis(default=-1)
    size = node.shape(0)[axis]
    if k.is_const and (k.value < 0 or (size.is_const and k.value > size.value)):
        raise ModelError(f"TopK of {k} elements along an axis of {size}")
    return topk(node.input(0), k=k, axis=axis, largest=bool(node.attr("largest", 1)))


@adapter("CumSum", since=11)
@adapter("CumProd", since=26)
def running_total(node: Node) -> Value:
    axes = node.ints(1)
    if len(axes) != 1:
        raise ModelError(f"{node.op} goes along one axis, not {len(axes)}")
    operator = cumsum if node.op == "CumSum" else cumprod
    return operator(
        node.input(0),
        axis=node.checked_axis(axes[0]),
        exclusive=bool(node.attr("exclusive", 0)),
        reverse=bool(node.attr("reverse", 0)),
    )


@adapter("Hardmax")
def hardmax_flat(node: Node) -> Value:
    from_axis = node.attr("axis", 1)
    return _hardmax(node, from_axis, flat=True)


@adapter("Hardmax", since=13)
def hardmax(node: Node) -> Value:
    return _hardmax(node, node.attr("axis", -1), flat=False)


def _hardmax(node: Node, axis: int, flat: bool) -> Value:
    """1 at the first greatest element along the axis, 0 elsewhere."""
    x = flattened(node, axis) if flat else node.input(0)
    a = 1 if flat else node.checked_axis(axis)
    along = tuple(d if k == a else sym(1) for k, d in enumerate(shape_of(x)))
    found = ew.eq(iota(shape=along, axis=a), position_of(reduce_max)(x, axis=a, keepdims=True))
    result = ew.cast(found, dtype=node.dtype(0))
    return reshape(result, shape=node.shape(0)) if flat else result


def flattened(node: Node, axis: int) -> Value:
    """Operand 0 as a matrix, the axes from `axis` on as its columns (what Softmax meant before opset 13)."""
    shape = node.shape(0)
    at = node.checked_axis(axis)
    return reshape(node.input(0), shape=(product(shape[:at]), product(shape[at:])))
