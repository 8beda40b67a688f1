"""Work on features before a model: scaling, missing values, categories as vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN, floats, refuse_strings, require_size
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.composites.text import moved
from tilewright.ops.define import constant
from tilewright.ops.reduce import as_dtype, reduce_max, reduce_sum
from tilewright.ops.source import sym_tensor
from tilewright.ops.view import concat, pad, reshape, shape_of, slice_

_LEAST = float(np.finfo(np.float32).min)


@adapter("Scaler", domain=DOMAIN)
def scaler(node: Node) -> Value:
    """(x - offset) * scale: numbers for each feature, or one for all."""
    x = floats(node)
    offset, scale = (np.array(node.attr(name, ()), np.float32) for name in ("offset", "scale"))
    if offset.size != scale.size or not scale.size:
        raise ModelError(f"Scaler has {offset.size} offsets for {scale.size} scales")
    if scale.size > 1:
        require_size(node, scale.size, "scales", axis=min(1, node.rank(0) - 1))
    offset, scale = (_along_features(node, a) for a in (offset, scale))
    return ew.mul(ew.sub(x, constant(offset, "offset")), constant(scale, "scale"))


def _along_features(node: Node, numbers: np.ndarray) -> np.ndarray:
    """Numbers of features so that they broadcast against operand 0, whose features are along axis 1."""
    return numbers.reshape(-1, *[1] * max(0, node.rank(0) - 2)) if numbers.size > 1 else numbers.reshape(())


@adapter("Imputer", domain=DOMAIN)
def imputer(node: Node) -> Value:
    """Another number, for each feature or for all, in place of each that equals one; NaN equals NaN."""
    x, kind = node.input(0), "float" if node.dtype(0).is_float else "int64"
    values = np.array(node.attr(f"imputed_value_{kind}s", ()), node.dtype(0).storage)
    replaced = node.attr(f"replaced_value_{kind}")
    if not values.size:
        raise ModelError(f"Imputer needs the attribute 'imputed_value_{kind}s' for {node.type(0)}")
    size = node.shape(0)[min(1, node.rank(0) - 1)] if node.rank(0) else None
    if values.size > 1 and size is not None and size.is_const and size.value != values.size:
        values = values[:1]  # as ONNX Runtime has it
    if values.size > 1:
        require_size(node, values.size, "imputed values", axis=min(1, node.rank(0) - 1))
    missing = ew.is_nan(x) if replaced != replaced else ew.eq(x, replaced)
    return ew.select(missing, constant(_along_features(node, values), "imputed"), x)


@adapter("Binarizer", domain=DOMAIN)
def binarizer(node: Node) -> Value:
    """1 where x is above a threshold, else 0."""
    wide = node.input(0) if node.dtype(0) == dt.f64 else floats(node)
    return as_dtype(ew.gt(wide, node.attr("threshold")), node.dtype(0))


@adapter("Normalizer", domain=DOMAIN)
def normalizer(node: Node) -> Value:
    """Rows divided by their greatest element, the sum of their absolute values, or their length; by 1 instead of 0."""
    norm = node.one_of("norm", "MAX", "L1", "L2")
    if not 1 <= node.rank(0) <= 2:
        raise ModelError(f"Normalizer takes rows of features, not {node.type(0)}")
    x, axes = floats(node), (node.rank(0) - 1,)
    if norm == "MAX":
        size = reduce_max(ew.select(ew.is_nan(x), _LEAST, x), axes=axes)
    else:
        size = reduce_sum(ew.abs_(x) if norm == "L1" else ew.mul(x, x), axes=axes)
    divisor = ew.sqrt(size) if norm == "L2" else size
    return ew.div(x, ew.select(ew.eq(size, 0.0), 1.0, divisor))


@adapter("ArrayFeatureExtractor", domain=DOMAIN, takes="all")
def array_feature_extractor(node: Node) -> Value:
    """The features at some positions; they may be text."""
    rank = node.rank(0)
    if not rank:
        raise ModelError("ArrayFeatureExtractor takes features, not a scalar")
    size, known = node.shape(0)[-1], node.constant_or_none(1)
    if known is not None and ((known < 0) | (size.is_const and known >= size.value)).any():
        raise ModelError(
            f"ArrayFeatureExtractor: an index ({known.min()} to {known.max()}) is out of range for {size}"
        )
    places = reshape(node.input(1), shape=(product(node.shape(1)),))
    if known is None:  # none is counted from the end
        places = ew.select(ew.lt(places, 0), sym_tensor(values=(size,), scalar=True), places)

    def write(operands: Sequence[Value | None]) -> tuple[Value]:
        (features,) = operands
        assert features is not None
        found = ix.gather(features, places, axis=rank - 1)
        return (found if rank > 1 else reshape(found, shape=(1, *shape_of(found))),)

    (found,) = moved([node.input(0)], write)
    assert found is not None
    return found


@adapter("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: Node) -> Value:
    """The features of all operands after each other, so many of each as it is said to have: cut off, or 0 more."""
    sizes = node.attr("inputdimensions", ())
    if len(sizes) != len(node.inputs) or any(s < 0 for s in sizes) or not any(sizes):
        raise ModelError(f"FeatureVectorizer has sizes {list(sizes)} for {len(node.inputs)} inputs")
    return concat(*[_sized(node, k, size) for k, size in enumerate(sizes) if size], axis=1)


def _sized(node: Node, k: int, size: int) -> Value:
    """Operand k as rows of `size` floats."""
    shape = node.shape(k) if node.rank(k) > 1 else (sym(1), *node.shape(k))
    x = reshape(floats(node, k), shape=(shape[0], product(shape[1:])))
    width = shape_of(x)[1]
    if width == size:
        return x
    is_enough = width.is_const and width.value >= size
    filled = x if is_enough else pad(x, before=(0, 0), after=(0, size))
    return slice_(filled, starts=(0, 0), sizes=(shape[0], size))


@adapter("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: Node) -> Value:
    """1 at the place of a category in a vector of all of them, on a new last axis."""
    refuse_strings(node)
    categories = np.array(node.attr("cats_int64s", ()), np.int64)
    if not categories.size:
        raise ModelError("OneHotEncoder needs the attribute 'cats_int64s'")
    keys, first = np.unique(categories[::-1], return_index=True)
    x = node.input(0)
    if node.dtype(0).is_float:  # what is no int64 is no category
        absent = next(k for k in range(len(keys) + 1) if k not in keys)
        x = ew.select(ew.lt(ew.abs_(x), 2.0**63), x, float(absent))
    lost, unknown = constant(np.array(len(categories)), "none"), not node.flag("zeros")
    places = constant(len(categories) - 1 - first, "places")
    position = ix.lookup(as_dtype(x, dt.i64), constant(keys, "categories"), places, lost, required=unknown)
    values = constant(np.array([0, 1], np.float32), "values")
    return ix.one_hot(position, values, depth=len(categories), axis=len(shape_of(position)))
