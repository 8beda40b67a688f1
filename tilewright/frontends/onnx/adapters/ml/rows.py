"""The data that models of the domain `ai.onnx.ml` take: rows of features."""

from __future__ import annotations

from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.reduce import as_dtype
from tilewright.ops.view import reshape

DOMAIN = "ai.onnx.ml"


def floats(node: Node, k: int = 0) -> Value:
    """Operand k in float32, which these models compute with whatever they are given."""
    return as_dtype(node.input(k), dt.f32)


def rows_of(node: Node) -> Value:
    """Operand 0 as a matrix of rows; a vector is one row."""
    if node.rank(0) == 1:
        return reshape(node.input(0), shape=(1, *node.shape(0)))
    if node.rank(0) != 2:
        raise ModelError(f"{node.op} takes rows of features, not {node.type(0)}")
    return node.input(0)


def require_size(node: Node, size: int, what: str, *, axis: int, operand: int = 0) -> None:
    """ModelError where an axis of an operand has another size than there are numbers for it."""
    if node.rank(operand) <= axis or (
        node.shape(operand)[axis].is_const and node.shape(operand)[axis] != size
    ):
        raise ModelError(f"{node.op} has {size} {what} for {node.type(operand)}")


def refuse_strings(node: Node) -> None:
    """UnsupportedError for operands that are text."""
    if any(v is not None and node.dtype(k).kind == "string" for k, v in enumerate(node.inputs)):
        raise UnsupportedError(
            f"{node.op} of strings is not supported", hint="encode them as numbers before the model"
        )
