"""Text as tokens, as converters of scikit-learn's vectorizers write it."""

from __future__ import annotations

import re

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.regex import python_pattern
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.types import tensor
from tilewright.ops.define.staged import host


@microsoft("Tokenizer", takes="host")
def tokenizer(node: Node) -> Value:
    """Tokens are what an expression matches, what is between separators or, if the separator is "", characters."""
    if node.dtype(0) != dt.string or node.rank(0) not in (1, 2):
        raise ModelError(f"Tokenizer takes strings [c] or [n, c], not {node.type(0)}")
    expression, separators = node.attr("tokenexp", ""), node.attr("separators", ())
    if bool(expression) == bool(separators):
        raise ModelError("Tokenizer takes either separators or an expression of tokens")
    if (least := node.attr("mincharnum", 1)) < 1:
        raise ModelError(f"Tokenizer with mincharnum={least}, which must be positive")
    is_split = any(separators)
    if least > 1 and not (expression or is_split):
        raise ModelError(f"Tokenizer with mincharnum={least}, but its tokens are characters")
    splits = tuple(map(python_pattern, filter(None, separators)))
    if any(re.match(pattern, "") for pattern in splits):
        raise ModelError(f"Tokenizer: a separator of {list(separators)} is found where there is nothing")
    parameters = {
        "expression": "" if is_split else python_pattern(expression or "[\\x00-\\x{10ffff}]"),
        "separators": splits,
        "least": least,
        "is_marked": node.flag("mark"),
        "padding": node.attr("pad_value"),
    }
    tokens = tensor(dt.string, (*node.shape(0), node.translation.new_size()))
    return host("tokenize_text", node.operands, [tokens], parameters)[0]
