"""Operators of strings."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.regex import python_pattern
from tilewright.frontends.onnx.registry import adapter, find_adapter
from tilewright.frontends.translation import Results
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.types import tensor
from tilewright.ops.composites.text import moved
from tilewright.ops.define.staged import host


@adapter(
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "OneHot",
    "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
    takes="host",
)  # fmt: skip
def moves(node: Node) -> Results:
    """Operators that only move elements."""
    if node.attr("reduction", "none") != "none":
        raise UnsupportedError(f"{node.op} that reduces strings is not supported")
    native = find_adapter("", node.op, node.version)
    assert native is not None

    def write(operands: Sequence[Value | None]) -> Results:
        found = native(node.with_inputs(operands))
        return found if isinstance(found, tuple) else (found,)

    return tuple(moved(node.inputs, write))


def common_shape(node: Node) -> tuple[Sym, ...]:
    """The shape to which the operands broadcast."""
    return node.translation.broadcast(*(node.shape(k) for k in range(len(node.inputs))))


@adapter("Equal", takes="host")
def equal(node: Node) -> Value:
    return host("equal_text", node.operands, [tensor(dt.bool_, common_shape(node))])[0]


@adapter("StringConcat", takes="host")
def string_concat(node: Node) -> Value:
    return host("concatenate_text", node.operands, [tensor(dt.string, common_shape(node))])[0]


@adapter("StringNormalizer", takes="host")
def string_normalizer(node: Node) -> Value:
    if node.rank(0) not in (1, 2):
        raise ModelError(f"StringNormalizer takes [c] or [1, c], not {node.type(0)}")
    parameters = {
        "action": node.one_of("case_change_action", "LOWER", "UPPER", "NONE"),
        "is_case_sensitive": node.flag("is_case_sensitive"),
        "stopwords": node.attr("stopwords", ()),
    }
    result = tensor(dt.string, (*[1] * (node.rank(0) - 1), node.translation.new_size()))
    return host("normalize_text", node.operands, [result], parameters)[0]


@adapter("StringSplit", takes="host")
def string_split(node: Node) -> tuple[Value, ...]:
    shape = node.shape(0)
    types = [tensor(dt.string, (*shape, node.translation.new_size())), tensor(dt.i64, shape)]
    return host(
        "split_text",
        node.operands,
        types,
        {"delimiter": node.attr("delimiter", ""), "most": node.attr("maxsplit", -1)},
    )


@adapter("RegexFullMatch", takes="host")
def regex_full_match(node: Node) -> Value:
    pattern = python_pattern(node.attr("pattern"))
    return host("match_text", node.operands, [tensor(dt.bool_, node.shape(0))], {"pattern": pattern})[0]
