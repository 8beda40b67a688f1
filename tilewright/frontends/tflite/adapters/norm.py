"""Reductions and normalisations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilewright.frontends.tflite.adapters.window import channels_first, channels_last
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import binds, tflite
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops import norm, reduce
from tilewright.ops.scan import cumsum
from tilewright.ops.view import shape_of

REDUCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "SUM": reduce.reduce_sum, "MEAN": reduce.mean_or_zero, "REDUCE_PROD": reduce.reduce_prod,
        "REDUCE_MAX": reduce.reduce_max, "REDUCE_MIN": reduce.reduce_min, "REDUCE_ANY": reduce.reduce_or,
        "REDUCE_ALL": reduce.reduce_and,
    }
)  # fmt: skip


@tflite("SUM", "MEAN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
def reduction(node: OperatorNode) -> Value:
    axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.ints(1)))
    if not axes:
        return node.input(0)
    return REDUCTIONS[node.op](node.input(0), axes=tuple(sorted(axes)), keepdims=node.flag("keep_dims"))


tflite("REDUCE_MAX", "REDUCE_MIN", moves=True)(reduction)


@tflite("ARG_MAX", "ARG_MIN")
def arg_extreme(node: OperatorNode) -> Value:
    (axis,) = node.ints(1)
    operator = reduce.argmax if node.op == "ARG_MAX" else reduce.argmin
    found = operator(node.raw(0), axis=node.axis(axis, node.rank(0)), keepdims=False)
    return ew.cast(found, dtype=node.result_dtype())


@tflite("SOFTMAX")
def softmax(node: OperatorNode) -> Value:
    x, beta = node.input(0), float(node.options["beta"])
    return norm.softmax(x if beta == 1 else ew.mul(x, beta), axis=-1)


_LEAST_NORM = 1e-6
"""What TFLite divides by where the norm is less."""

binds({"LOG_SOFTMAX": lambda x: norm.log_softmax(x, axis=-1)})


@tflite("L2_NORMALIZATION")
def l2_normalization(node: OperatorNode) -> Value:
    x = node.input(0)
    size = ew.sqrt(reduce.reduce_sum(ew.mul(x, x), axes=(len(shape_of(x)) - 1,), keepdims=True))
    return node.activated(ew.div(x, ew.max_(size, _LEAST_NORM)))


@tflite("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(node: OperatorNode) -> Value:
    node.require_rank(0, 4)
    size = 2 * node.integer("radius", 0) + 1
    alpha, beta, bias = (float(node.options[name]) for name in ("alpha", "beta", "bias"))
    x = channels_first(node.input(0))
    return channels_last(norm.local_response_norm(x, size=size, alpha=alpha * size, beta=beta, bias=bias))


@tflite("CUMSUM")
def running_sum(node: OperatorNode) -> Value:
    (axis,) = node.ints(1)
    flags = {"exclusive": node.flag("exclusive"), "reverse": node.flag("reverse")}
    return cumsum(node.input(0), axis=node.axis(axis, node.rank(0)), **flags)
