"""What the adapters of ONNX Runtime's operators share: these have no schema, so that the operands are checked here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import Adapter, adapter, binds
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops.view import reshape

microsoft: Callable[..., Callable[[Adapter], Adapter]] = partial(adapter, domain="com.microsoft")
"""`adapter` for operators of ONNX Runtime."""

microsoft_binds: Callable[..., None] = partial(binds, domain="com.microsoft")
"""`binds` for them."""


def require_ranks(node: Node, **ranks: int) -> None:
    """ModelError where an operand that is given, by its position (`input0=3`), has not that many axes."""
    for name, rank in ranks.items():
        k = int(name.removeprefix("input"))
        if node.optional(k) is not None and node.rank(k) != rank:
            raise ModelError(f"{node.op}: input {k} is {node.type(k)}; it needs {rank} axes")


def require_two_parts(node: Node, k: int) -> None:
    """Refuse an operand whose last axis does not hold the two parts of complex numbers."""
    message = f"{node.op}: the last axis of input {k}, {node.type(k)}, does not hold two parts"
    require(node.translation, s.eq(node.shape(k)[-1], 2) if node.rank(k) else s.ZERO, message)


def of_columns(node: Node, k: int) -> Value:
    """A scale or zero point of each column of the right operand, or of all."""
    x = node.input(k)
    return reshape(x, shape=()) if node.type(k).size == 1 else x
