"""Operators of strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


@adapter("TfIdfVectorizer", takes="all")
def tfidf_vectorizer(node: Node) -> Value:
    pool = node.attr("pool_strings", None) or node.attr("pool_int64s", ())
    starts, columns = node.attr("ngram_counts"), node.attr("ngram_indexes")
    lengths = (node.attr("min_gram_length"), node.attr("max_gram_length"))
    ngrams = _ngrams(pool, starts)
    if len(ngrams) != len(columns) or min(columns, default=0) < 0 or node.rank(0) not in (1, 2):
        raise ModelError(f"TfIdfVectorizer has {len(columns)} indexes for {len(ngrams)} n-grams, of {node.type(0)}")
    width, mode = max(columns, default=-1) + 1, node.one_of("mode", "TF", "IDF", "TFIDF")
    weights = node.attr("weights", ()) if mode != "TF" else ()
    if weights and len(weights) != len(ngrams):
        raise ModelError(f"TfIdfVectorizer has {len(weights)} weights for {len(ngrams)} n-grams")
    counted = [k for k, ngram in enumerate(ngrams) if lengths[0] <= len(ngram) <= lengths[1]]
    parameters = {
        "ngrams": tuple(ngrams[k] for k in counted),
        "columns": tuple(columns[k] for k in counted),
        "width": width,
        "lengths": lengths,
        "skips": node.attr("max_skip_count"),
        "weights": tuple(weights[k] for k in counted) if weights else None,
        "is_counted": mode != "IDF",
    }
    result = tensor(dt.f32, (*node.shape(0)[:-1], width))
    return host("count_ngrams", node.operands, [result], parameters)[0]


def _ngrams(pool: Sequence[Any], starts: Sequence[int]) -> list[tuple[Any, ...]]:
    """The n-grams of a pool, in which those of n items begin at the n-th of `starts`."""
    found = []
    ends = (*starts[1:], len(pool))
    for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % n:
            raise ModelError(f"TfIdfVectorizer: {n}-grams lie from {start} to {end} in a pool of {len(pool)}")
        found += [tuple(pool[k : k + n]) for k in range(start, end, n)]
    return found
