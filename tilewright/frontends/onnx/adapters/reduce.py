"""Reductions, orders and running totals along axes."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.axes import along, reduced
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.scan import cumprod, cumsum
from tilewright.ops.sort import topk

_REDUCTIONS: dict[str, tuple[Callable[..., Value], Callable[[Value], Value]]] = {
    "ReduceSum": (rd.reduce_sum, lambda x: x),
    "ReduceProd": (rd.reduce_prod, lambda x: x),
    "ReduceMin": (rd.reduce_min, lambda x: x),
    "ReduceMax": (rd.reduce_max, lambda x: x),
    "ReduceMean": (rd.mean_or_zero, lambda x: x),
    "ReduceL1": (rd.reduce_l1, ew.abs_),
    "ReduceL2": (rd.reduce_l2, ew.abs_),
    "ReduceSumSquare": (rd.reduce_sum_square, lambda x: ew.mul(x, x)),
    "ReduceLogSum": (rd.reduce_log_sum, ew.log),
    "ReduceLogSumExp": (rd.reduce_logsumexp, lambda x: x),
}
"""The operator, and what it makes of each element when nothing is reduced."""


@adapter(*_REDUCTIONS)
def reduction(node: Node) -> Value:
    operator, of_one = _REDUCTIONS[node.op]
    axes = node.axes("axes", 1) or ()
    if (node.rank(0) == 0 and not axes) or (not axes and node.attr("noop_with_empty_axes", 0)):
        return of_one(node.input(0))
    if not all(a.is_const for a in axes):
        return reduced(operator, node.input(0), axes, node.flag("keepdims"))
    wanted = sorted(a.value for a in axes) if axes else range(node.rank(0))
    return operator(node.input(0), axes=tuple(wanted), keepdims=node.flag("keepdims"))


@adapter("ArgMax", "ArgMin")
def arg_extremum(node: Node) -> Value:
    last = node.flag("select_last_index", 0)
    operator = rd.argmax if node.op == "ArgMax" else rd.argmin
    return operator(node.input(0), axis=node.axis_attr(), keepdims=node.flag("keepdims"), last=last)


@adapter("TopK")
def topk_(node: Node) -> tuple[Value, ...]:
    k = sym(node.attr("k")) if node.has("k") else node.one_symbol(1)
    axis = node.axis_attr()
    size = node.shape(0)[axis]
    if k.is_const and (k.value < 0 or (size.is_const and k.value > size.value)):
        raise ModelError(f"TopK of {k} elements along an axis of {size}")
    return topk(node.input(0), k=k, axis=axis, largest=node.flag("largest", 1))


@adapter("CumSum", "CumProd")
def running_total(node: Node) -> Value:
    node.scalar(1)
    (axis,) = node.axes("axis", 1) or ()
    operator = cumsum if node.op == "CumSum" else cumprod
    how = {"exclusive": node.flag("exclusive"), "reverse": node.flag("reverse")}
    if axis.is_const:
        return operator(node.input(0), axis=axis.value, **how)
    return along(node.input(0), axis, lambda x: operator(x, axis=1, **how))
