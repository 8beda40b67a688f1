"""The data that models of the domain `ai.onnx.ml` take: rows of features."""

from __future__ import annotations

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.reduce import as_dtype
from tilewright.ops.shape import surely_different
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
    """Refuse an axis of an operand that has another size than there are numbers for it."""
    wrong = f"{node.op} has {size} {what} for {node.type(operand)}"
    if axis >= node.rank(operand) or surely_different(node.shape(operand)[axis], s.sym(size)):
        raise ModelError(wrong)
    require(node.translation, s.eq(node.shape(operand)[axis], size), wrong)


def refuse_strings(node: Node) -> None:
    """UnsupportedError for operands that are text."""
    if any(v is not None and node.dtype(k).kind == "string" for k, v in enumerate(node.inputs)):
        raise UnsupportedError(
            f"{node.op} of strings is not supported", hint="encode them as numbers before the model"
        )
