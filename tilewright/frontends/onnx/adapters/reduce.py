"""Reductions: axes as attribute or input, and what an empty list of axes means."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import Operator

_BY_INPUT_SINCE = 18


def _register(name: str, operator: Operator, of_one: Callable[[Value], Value], by_input_since: int) -> None:
    """Adapters of a reduction; `of_one` is what it makes of each element when nothing is reduced."""

    def reduced(node: Node, axes: tuple[int, ...]) -> Value:
        if not axes and node.attr("noop_with_empty_axes", 0):
            return of_one(node.input(0))
        wanted = node.checked_axes(axes) if axes else tuple(range(node.rank(0)))
        if not wanted:
            return of_one(node.input(0))
        return operator(node.input(0), axes=tuple(sorted(wanted)), keepdims=bool(node.attr("keepdims", 1)))

    @adapter(name)
    def by_attribute(node: Node) -> Value:
        return reduced(node, node.attr("axes", ()))

    @adapter(name, since=by_input_since)
    def by_input(node: Node) -> Value:
        return reduced(node, () if node.optional(1) is None else node.ints(1))


_register("ReduceSum", rd.reduce_sum, lambda x: x, 13)
_register("ReduceProd", rd.reduce_prod, lambda x: x, _BY_INPUT_SINCE)
_register("ReduceMin", rd.reduce_min, lambda x: x, _BY_INPUT_SINCE)
_register("ReduceMax", rd.reduce_max, lambda x: x, _BY_INPUT_SINCE)
_register("ReduceMean", rd.reduce_mean, lambda x: x, _BY_INPUT_SINCE)
_register("ReduceL1", rd.reduce_l1, lambda x: ew.abs_(x), _BY_INPUT_SINCE)
_register("ReduceL2", rd.reduce_l2, lambda x: ew.abs_(x), _BY_INPUT_SINCE)
_register("ReduceSumSquare", rd.reduce_sum_square, lambda x: ew.mul(x, x), _BY_INPUT_SINCE)
_register("ReduceLogSum", rd.reduce_log_sum, lambda x: ew.log(x), _BY_INPUT_SINCE)
_register("ReduceLogSumExp", rd.reduce_logsumexp, lambda x: x, _BY_INPUT_SINCE)


@adapter("ArgMax", "ArgMin")
def arg_extremum(node: Node) -> Value:
    operator = rd.argmax if node.op == "ArgMax" else rd.argmin
    return operator(
        node.input(0),
        axis=node.axis(default=0),
        keepdims=bool(node.attr("keepdims", 1)),
        last=bool(node.attr("select_last_index", 0)),
    )
