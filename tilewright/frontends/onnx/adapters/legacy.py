"""Opset 6: broadcasting was asked for by attributes, and aligned at an axis."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.onnx.adapters.contract import gemm
from tilewright.frontends.onnx.adapters.elementwise import dropout
from tilewright.frontends.onnx.adapters.norm import batch_normalization
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import Adapter, adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import activation
from tilewright.ops import elementwise as ew
from tilewright.ops.view import reshape


def _aligned(node: Node) -> Value:
    """The second operand, its axes laid under those of the first from attribute `axis` on."""
    own, whole = node.shape(1), node.shape(0)
    if not node.attr("broadcast", 0):
        if len(own) != len(whole):
            raise ModelError(f"{node.op} of {node.type(0)} and {node.type(1)} without broadcast=1")
        return node.input(1)
    axis = node.attr("axis", len(whole) - len(own))
    behind = len(whole) - axis - len(own)
    if behind < 0 or axis < 0:
        raise ModelError(f"{node.op}: {node.type(1)} does not fit {node.type(0)} from axis {axis} on")
    return reshape(node.input(1), shape=(*own, *[sym(1)] * behind)) if behind else node.input(1)


def _register(name: str, operator: Callable[[Value, Value], Value]) -> None:
    def aligned(node: Node) -> Value:
        return operator(node.input(0), _aligned(node))

    adapter(name, since=6)(aligned)


def _plain(operator: Callable[[Value, Value], Value]) -> Adapter:
    return lambda node: operator(node.input(0), node.input(1))


_BINARY = {
    "Add": ew.add, "Sub": ew.sub, "Mul": ew.mul, "Div": ew.div, "And": ew.and_, "Or": ew.or_, "Xor": ew.xor,
    "Equal": ew.eq, "Less": ew.lt, "Greater": ew.gt,
}  # fmt: skip
for _name, _operator in _BINARY.items():
    _register(_name, _operator)
    adapter(_name, since=7)(_plain(_operator))
_register("Pow", ew.pow_)
adapter("Gemm", since=6)(gemm)
adapter("Dropout", since=6)(dropout)


@adapter("BatchNormalization", since=6)
def batch_normalization_6(node: Node) -> tuple[Value, ...]:
    """Statistics of the batch were asked for by is_test=0; only inference is translated."""
    return batch_normalization(node)


@adapter("PRelu", since=6)
def prelu(node: Node) -> Value:
    """A vector of slopes goes along the channels."""
    own, whole = node.shape(1), node.shape(0)
    if len(own) != 1 or own[0] == 1 or len(whole) < 3:
        return activation.prelu(node.input(0), node.input(1))
    slopes = reshape(node.input(1), shape=(own[0], *[sym(1)] * (len(whole) - 2)))
    return activation.prelu(node.input(0), slopes)
