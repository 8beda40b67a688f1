"""Orders and running totals."""

from __future__ import annotations

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops.scan import cumprod, cumsum
from tilewright.ops.sort import topk


@adapter("TopK")
def topk_(node: Node) -> tuple[Value, ...]:
    k = sym(node.attr("k")) if node.has("k") else node.one_symbol(1)
    axis = node.axis()
    size = node.shape(0)[axis]
    if k.is_const and (k.value < 0 or (size.is_const and k.value > size.value)):
        raise ModelError(f"TopK of {k} elements along an axis of {size}")
    return topk(node.input(0), k=k, axis=axis, largest=bool(node.attr("largest", 1)))


@adapter("CumSum", "CumProd")
def running_total(node: Node) -> Value:
    axes = node.ints(1)
    if len(axes) != 1:
        raise ModelError(f"{node.op} goes along one axis, not {len(axes)}")
    operator = cumsum if node.op == "CumSum" else cumprod
    axis = node.checked_axis(axes[0])
    return operator(node.input(0), axis=axis, exclusive=node.flag("exclusive"), reverse=node.flag("reverse"))
