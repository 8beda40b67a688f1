"""Linear models, and support vector machines."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx.adapters.ml.labels import Labels, greatest
from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN, require_size, rows_of
from tilewright.frontends.onnx.adapters.ml.scores import (
    TRANSFORMS,
    complemented,
    only_probit,
    transformed,
)
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.reduce import as_dtype
from tilewright.ops.view import squeeze


def numbers(node: Node, name: str) -> np.ndarray:
    """A list of floats; none where it is not given."""
    return np.array(node.attr(name, ()), np.float32)


def products(node: Node, weights: np.ndarray, bias: np.ndarray) -> Value:
    """Rows times the transposed `weights` [targets, features], plus `bias` (none where it is empty)."""
    x = as_dtype(rows_of(node), dt.f32)
    require_size(node, weights.shape[1], "coefficients of a target", axis=node.rank(0) - 1)
    scores = matmul(x, constant(np.ascontiguousarray(weights.T), "coefficients"))
    return ew.add(scores, constant(bias, "intercepts")) if bias.size else scores


def as_matrix(node: Node, array: np.ndarray, rows: int) -> np.ndarray:
    """So many rows; ModelError where the elements do not fill them."""
    if rows < 1 or not array.size or array.size % rows:
        raise ModelError(f"{node.op}: {array.size} numbers are not {rows} rows")
    return array.reshape(rows, -1)


def _coefficients(node: Node, rows: int) -> np.ndarray:
    """Those of so many targets. More than there are features for, if they would be whole rows, stand behind them all
    and mean nothing, as ONNX Runtime has it (an example of its own is such a model)."""
    array = numbers(node, "coefficients")
    found, width = as_matrix(node, array, rows), node.shape(0)[-1] if node.rank(0) else sym(0)
    is_surplus = width.is_const and 0 < width.value < found.shape[1]
    return array[: rows * width.value].reshape(rows, -1) if is_surplus else found


@adapter("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: Node) -> Value:
    count, bias = node.attr("targets"), numbers(node, "intercepts")
    scores = products(node, _coefficients(node, count), bias if bias.size == count else bias[:0])
    transform = node.one_of("post_transform", *TRANSFORMS)
    return transformed(scores, transform) if count > 1 else only_probit(scores, transform)


@adapter("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: Node) -> tuple[Value | None, Value]:
    labels = Labels(node, "classlabels_ints", "classlabels_strings")
    bias = numbers(node, "intercepts")
    scores = products(node, _coefficients(node, bias.size or labels.count), bias)
    transform = node.one_of("post_transform", *TRANSFORMS)
    if (bias.size or labels.count) > 1:
        return labels.of(greatest(scores)), transformed(scores, transform)
    label = labels.of_sign(ew.gt(squeeze(scores, axes=(1,)), 0.0))
    return label, complemented(scores, transform) if labels.count == 2 else only_probit(scores, transform)
