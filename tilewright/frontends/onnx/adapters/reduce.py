"""Reductions: axes as attribute or input, and what an empty list of axes means."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import Operator

_REDUCTIONS: dict[str, tuple[Operator, Callable[[Value], Value]]] = {
    "ReduceSum": (rd.reduce_sum, lambda x: x),
    "ReduceProd": (rd.reduce_prod, lambda x: x),
    "ReduceMin": (rd.reduce_min, lambda x: x),
    "ReduceMax": (rd.reduce_max, lambda x: x),
    "ReduceMean": (rd.reduce_mean, lambda x: x),
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
    axes = node.listed("axes", 1) or ()
    if (node.rank(0) == 0 and not node.checked_axes(axes)) or (
        not axes and node.attr("noop_with_empty_axes", 0)
    ):
        return of_one(node.input(0))
    wanted = sorted(node.checked_axes(axes)) if axes else range(node.rank(0))
    return operator(node.input(0), axes=tuple(wanted), keepdims=node.flag("keepdims"))


@adapter("ArgMax", "ArgMin")
def arg_extremum(node: Node) -> Value:
    last = bool(node.attr("select_last_index", 0))
    operator = rd.argmax if node.op == "ArgMax" else rd.argmin
    return operator(node.input(0), axis=node.axis(), keepdims=node.flag("keepdims"), last=last)
