"""What the adapters of ONNX Runtime's operators share: these have no schema, so that the operands are checked here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import Adapter, adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops.view import reshape

microsoft: Callable[..., Callable[[Adapter], Adapter]] = partial(adapter, domain="com.microsoft")
"""`adapter` for operators of ONNX Runtime."""


def require_ranks(node: Node, **ranks: int) -> None:
    """ModelError where an operand that is given, by its position (`input0=3`), has not that many axes."""
    for name, rank in ranks.items():
        k = int(name.removeprefix("input"))
        if node.optional(k) is not None and node.rank(k) != rank:
            raise ModelError(f"{node.op}: input {k} is {node.type(k)}; it needs {rank} axes")


def of_columns(node: Node, k: int) -> Value:
    """A scale or zero point of each column of the right operand, or of all."""
    x = node.input(k)
    return reshape(x, shape=()) if node.type(k).size == 1 else x
