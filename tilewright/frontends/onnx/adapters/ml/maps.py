"""Labels and categories that are strings, and maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN
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
