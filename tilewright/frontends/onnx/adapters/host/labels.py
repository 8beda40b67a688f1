"""Labels and categories that are strings, n-grams, and maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType, from_numpy
from tilewright.ir.sym import ONE, sym
from tilewright.ir.types import HostType, TensorType, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define.staged import host
from tilewright.ops.source import iota
from tilewright.ops.view import unsqueeze

DOMAIN = "ai.onnx.ml"


def looked_up(x: Value, keys: Sequence[Any], values: np.ndarray, default: Any) -> Value:
    """For each element of x the value of the key that it equals, or a default (None: it must be found)."""
    if len(keys) != values.size:
        raise ModelError(f"{len(keys)} keys for {values.size} values")
    assert isinstance(x.type, TensorType)
    dtype = dt.string if values.dtype == object else from_numpy(values.dtype)
    name = "string" if dtype is dt.string else values.dtype.name
    parameters = {"keys": tuple(keys), "values": tuple(values.tolist()), "default": default, "dtype": name}
    return host("look_up", [x], [TensorType(dtype, x.type.shape)], parameters)[0]


@adapter("LabelEncoder", "CategoryMapper", domain=DOMAIN, takes="all")
def category_mapper(node: Node) -> Value:
    """Strings to numbers or numbers to strings; before version 2 LabelEncoder's numbers are positions."""
    is_encoder = node.op == "LabelEncoder"
    words: tuple[str, ...] = node.attr("classes_strings" if is_encoder else "cats_strings", ())
    numbers: tuple[int, ...] = tuple(range(len(words))) if is_encoder else node.attr("cats_int64s", ())
    if node.dtype(0) is dt.string:
        return looked_up(node.input(0), words, np.array(numbers, np.int64), node.attr("default_int64"))
    return looked_up(node.input(0), numbers, np.array(words, object), node.attr("default_string"))


@adapter("OneHotEncoder", domain=DOMAIN, takes="host")
def one_hot_encoder(node: Node) -> Value:
    """Strings; what is none of them has no one, or is an error."""
    words = node.attr("cats_strings", ())
    places = looked_up(node.input(0), words, np.arange(len(words)), -1 if node.flag("zeros") else None)
    shape = (*[ONE] * node.rank(0), sym(len(words)))
    marks = ew.eq(unsqueeze(places, axes=(node.rank(0),)), iota(shape=shape, axis=node.rank(0)))
    return ew.cast(marks, dtype=dt.f32)


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


@adapter("ZipMap", domain=DOMAIN)
def zip_map(node: Node) -> Value:
    words, numbers = node.attr("classlabels_strings", ()), node.attr("classlabels_int64s", ())
    if bool(words) == bool(numbers) or node.rank(0) not in (1, 2):
        raise ModelError(f"ZipMap of {node.type(0)} has {len(words)} strings and {len(numbers)} numbers as labels")
    result = HostType("sequence", None, _map(dt.string if words else dt.i64, node.dtype(0)))
    return host("rows_to_maps", node.operands, [result], {"keys": words or numbers})[0]


def _map(key: DType, value: DType) -> HostType:
    return HostType("map", key, tensor(value, ()))


def _value_of_map(node: Node) -> DType:
    type = node.input(0).type
    assert isinstance(type, HostType) and isinstance(type.element, TensorType)
    return type.element.dtype


@adapter("DictVectorizer", domain=DOMAIN, takes="host")
def dict_vectorizer(node: Node) -> Value:
    keys = node.attr("string_vocabulary", ()) or node.attr("int64_vocabulary", ())
    dtype = _value_of_map(node)
    parameters = {"keys": keys, "dtype": "string" if dtype is dt.string else dtype.storage.name}
    return host("map_to_row", node.operands, [tensor(dtype, (1, len(keys)))], parameters)[0]


_CASTS = {"TO_FLOAT": dt.f32, "TO_INT64": dt.i64, "TO_STRING": dt.string}


@adapter("CastMap", domain=DOMAIN, takes="host")
def cast_map(node: Node) -> Value:
    dtype = _CASTS[node.one_of("cast_to", *_CASTS)]
    size = node.attr("max_map") if node.one_of("map_form", "DENSE", "SPARSE") == "SPARSE" else None
    if size is not None and size < 1:
        raise ModelError(f"CastMap: a row of {size} elements")
    shape = (1, node.translation.new_size() if size is None else size)
    parameters = {"size": size, "dtype": "string" if dtype is dt.string else dtype.storage.name}
    return host("cast_map", node.operands, [tensor(dtype, shape)], parameters)[0]
