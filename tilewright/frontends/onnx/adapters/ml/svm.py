"""Support vector machines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from tilewright.frontends.onnx.adapters.ml.labels import Labels, greatest
from tilewright.frontends.onnx.adapters.ml.linear import as_matrix, numbers, products
from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN, require_size, rows_of
from tilewright.frontends.onnx.adapters.ml.scores import (
    TRANSFORMS,
    complemented,
    mirrored,
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
from tilewright.ops.coupling import coupled_probabilities
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.reduce import argmax, as_dtype, reduce_max, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, shape_of

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _kernel(node: Node, vectors: np.ndarray) -> Value:
    """The kernel function of each row and each support vector [vectors, features]: [rows, vectors]."""
    kind = node.one_of("kernel_type", *_KERNELS)
    parameters = node.attr("kernel_params", ())
    if len(parameters) not in (0, 3) or (kind != "LINEAR" and not parameters):
        raise ModelError(f"{node.op} needs 3 kernel_params (gamma, coef0, degree), not {len(parameters)}")
    gamma, offset, degree = parameters or (0.0, 0.0, 0.0)
    if kind == "RBF":
        return _radial(node, vectors, gamma)
    product = products(node, vectors, np.zeros(0, np.float32))
    if kind == "LINEAR":
        return product
    scaled = ew.add(ew.mul(product, gamma), offset)
    if kind == "SIGMOID":
        return ew.tanh(scaled)
    if degree == 2:
        return ew.mul(scaled, scaled)
    return ew.mul(ew.mul(scaled, scaled), scaled) if degree == 3 else ew.pow_(scaled, degree)


def _radial(node: Node, vectors: np.ndarray, gamma: float) -> Value:
    """exp(-gamma * |x - v|^2), of differences: a sum of three products would cancel."""
    x = as_dtype(rows_of(node), dt.f32)
    require_size(node, vectors.shape[1], "features of a support vector", axis=node.rank(0) - 1)
    rows, features = shape_of(x)
    columns = constant(np.ascontiguousarray(vectors.T), "support_vectors")
    difference = ew.sub(reshape(x, shape=(rows, features, sym(1))), columns)
    distance = reduce_sum(ew.mul(difference, difference), axes=(1,), keepdims=False)
    return ew.exp(ew.mul(distance, -gamma))


@adapter("SVMRegressor", domain=DOMAIN)
def regressor(node: Node) -> Value:
    count, rho = node.attr("n_supports"), numbers(node, "rho")
    coefficients = numbers(node, "coefficients")
    if rho.size < 1:
        raise ModelError("SVMRegressor needs the attribute 'rho'")
    if count > 0:
        kernel = _kernel(node, as_matrix(node, numbers(node, "support_vectors"), count))
        if coefficients.size != count:
            raise ModelError(f"SVMRegressor has {coefficients.size} coefficients for {count} support vectors")
        y = ew.add(matmul(kernel, constant(coefficients[:, None], "coefficients")), float(rho[0]))
    else:
        y = products(node, as_matrix(node, coefficients, 1), rho[:1])
    if not node.flag("one_class"):
        return y
    return ew.select(ew.gt(y, 0.0), full(value=1.0, dtype=dt.f32, shape=()), -1.0)


@adapter("SVMClassifier", domain=DOMAIN)
def classifier(node: Node) -> tuple[Value | None, Value]:
    labels = Labels(node, "classlabels_ints", "classlabels_strings")
    transform = node.one_of("post_transform", *TRANSFORMS)
    sizes = np.array(node.attr("vectors_per_class", ()), np.int64)
    if sizes.sum() == 0:
        return _linear(node, labels, transform)
    if len(sizes) != labels.count or labels.count < 2 or (sizes < 0).any():
        raise ModelError(f"SVMClassifier has vectors of {len(sizes)} classes for {labels.count} labels")
    scores = _decisions(node, sizes)
    label = labels.of(_elected(scores, labels.count))
    a, b = numbers(node, "prob_a"), numbers(node, "prob_b")
    if a.size:
        if not a.size == b.size == len(list(_pairs(labels.count))):
            raise ModelError(f"SVMClassifier has {a.size} and {b.size} numbers for probabilities")
        return label, transformed(_probabilities(scores, a, b, labels.count), transform)
    if labels.count > 2:
        return label, transformed(scores, transform)
    return label, (mirrored if transform == "NONE" else complemented)(scores, transform)


def _linear(node: Node, labels: Labels, transform: str) -> tuple[Value | None, Value]:
    """Without support vectors: a linear model. Of two classes the scores themselves decide (as ONNX Runtime has it)."""
    coefficients, rho = numbers(node, "coefficients"), numbers(node, "rho")
    if rho.size < 1:
        raise ModelError("SVMClassifier needs the attribute 'rho'")
    scores = products(node, as_matrix(node, coefficients, labels.count), rho[:1])
    best = greatest(scores)
    if labels.count == 2:
        top = reduce_max(scores, axes=(1,), keepdims=False)
        is_second = ew.ge(top, 0.5) if (coefficients >= 0).all() else ew.gt(top, 0.0)
        best = ew.select(is_second, full(value=1, dtype=dt.i64, shape=()), best)
    single = labels.count == 1
    return labels.of(best), only_probit(scores, transform) if single else transformed(scores, transform)


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    return combinations(range(count), 2)


def _decisions(node: Node, sizes: np.ndarray) -> Value:
    """For each pair of classes a score, which is positive for the first one: [rows, pairs]."""
    count, ends = len(sizes), np.cumsum(sizes)
    vectors = as_matrix(node, numbers(node, "support_vectors"), int(ends[-1]))
    given, rho = numbers(node, "coefficients"), numbers(node, "rho")
    pairs = list(_pairs(count))
    if given.size < (count - 1) * ends[-1] or rho.size < len(pairs):
        raise ModelError(
            f"SVMClassifier has {given.size} coefficients and {rho.size} rho for {count} classes"
        )
    coefficients = given[: (count - 1) * ends[-1]].reshape(count - 1, -1)
    weights = np.zeros((int(ends[-1]), len(pairs)), np.float32)
    for k, (i, j) in enumerate(pairs):
        of_i, of_j = (slice(ends[c] - sizes[c], ends[c]) for c in (i, j))
        weights[of_i, k], weights[of_j, k] = coefficients[j - 1, of_i], coefficients[i, of_j]
    scores = matmul(_kernel(node, vectors), constant(weights, "coefficients"))
    return ew.add(scores, constant(rho[: len(pairs)], "rho"))


def _elected(scores: Value, count: int) -> Value:
    """The class with most votes, of which each pair has one."""
    first, second = (np.zeros((count * (count - 1) // 2, count), np.float32) for _ in range(2))
    for k, (i, j) in enumerate(_pairs(count)):
        first[k, i], second[k, j] = 1, 1
    votes = matmul(as_dtype(ew.gt(scores, 0.0), dt.f32), constant(first - second, "votes"))
    return argmax(ew.add(votes, constant(second.sum(axis=0), "votes")), axis=1, keepdims=False)


def _probabilities(scores: Value, a: np.ndarray, b: np.ndarray, count: int) -> Value:
    """The classes' probabilities, of those of pairs: [rows, classes]."""
    val = ew.neg(ew.add(ew.mul(scores, constant(a, "prob_a")), constant(b, "prob_b")))
    pair = ew.min_(ew.max_(ew.sigmoid(val), 1e-7), 1 - 1e-7)
    rows = shape_of(pair)[0]
    table = np.zeros((count, count), np.int64)
    for k, (i, j) in enumerate(_pairs(count)):
        table[i, j], table[j, i] = k, len(a) + k
    both = concat(pair, ew.sub(1.0, pair), axis=1)
    taken = gather(both, constant(table.reshape(-1), "pairs"), axis=1)
    return coupled_probabilities(reshape(taken, shape=(rows, sym(count), sym(count))))
