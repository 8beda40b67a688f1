"""Ensembles of trees against ONNX Runtime, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.frontends.ml.models import (
    MODES,
    agree,
    features,
    ml_model,
    random_trees,
    weights_of,
)
from tilewright.ops.trees import BLOCK, GROUP

ROWS = (1, GROUP - 1, GROUP, BLOCK + GROUP + 3)
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
LEQ = MODES[:1]


def tracked(rng: np.random.Generator, attrs: dict[str, Any], how: str) -> dict[str, Any]:
    """With what NaN does: nothing is said, it goes to the first child everywhere, or at some nodes."""
    count = len(attrs["nodes_modes"])
    if how == "never":
        return attrs
    return attrs | {
        "nodes_missing_value_tracks_true": [1] * count
        if how == "always"
        else rng.integers(0, 2, count).tolist()
    }


@pytest.mark.sweep
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(
    ("trees", "depth", "full", "modes", "targets", "style", "track", "dtype"),
    [
        (1, 0, True, LEQ, 1, "turns", "never", np.float32),
        (5, 3, True, LEQ, 1, "turns", "always", np.float64),
        (20, 4, True, MODES[1:2], 3, "turns", "some", np.float32),
        (20, 6, False, MODES, 1, "turns", "some", np.float32),
        (7, 9, False, MODES, 3, "any", "some", np.float32),
        (33, 3, False, MODES, 2, "all", "never", np.float32),
        (4, 3, False, MODES, 2, "last", "some", np.float64),
    ],
)
def test_regression_is_as_that_of_onnxruntime(
    aggregate: str,
    trees: int,
    depth: int,
    full: bool,
    modes: tuple[str, ...],
    targets: int,
    style: str,
    track: str,
    dtype: Any,
) -> None:
    rng = np.random.default_rng([trees, depth, targets])
    attrs, leaves = random_trees(rng, trees, 4, depth, modes, full)
    attrs = tracked(rng, attrs, track) | weights_of(rng, leaves, "target", targets, style, False)
    base = rng.standard_normal(targets).astype(np.float32).tolist()
    attrs |= {"n_targets": targets, "aggregate_function": aggregate, "base_values": base}
    rows = [features(rng, n, 4, dtype) for n in ROWS]
    agree(ml_model("TreeEnsembleRegressor", attrs, rows[0]), *rows)


@pytest.mark.sweep
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
def test_transforms_of_a_regression_are_as_those_of_onnxruntime(transform: str, targets: int) -> None:
    rng = np.random.default_rng(targets)
    attrs, leaves = random_trees(rng, 6, 4, 3, MODES, False)
    weights = weights_of(rng, leaves, "target", targets, "any", True)
    attrs |= weights | {"n_targets": targets, "post_transform": transform}
    rows = [features(rng, n, 4) for n in ROWS]
    agree(ml_model("TreeEnsembleRegressor", attrs, rows[0]), *rows)


@pytest.mark.sweep
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("base", [0, 1, 2])
@pytest.mark.parametrize(
    ("labels", "style", "transform"),
    [
        ([3, 5], "first", "NONE"),
        ([3, 5], "first", "LOGISTIC"),
        ([3, 5], "last", "SOFTMAX"),
        ([5, 3], "all", "LOGISTIC"),
        ([5, 3], "turns", "SOFTMAX_ZERO"),
        ([2, 0, 7], "any", "SOFTMAX"),
        ([2, 0, 7], "turns", "LOGISTIC"),
        ([2, 0, 7, 4], "all", "NONE"),
    ],
)
def test_classes_are_those_of_onnxruntime(
    labels: list[int], style: str, transform: str, base: int, positive: bool
) -> None:
    rng = np.random.default_rng([len(labels), base])
    attrs, leaves = random_trees(rng, 9, 4, 4, MODES[:2], False)
    weights = weights_of(rng, leaves, "class", 1 if style == "first" else len(labels), style, positive)
    attrs |= weights | {"classlabels_int64s": labels, "post_transform": transform}
    if base:
        sizes = {1: 1, 2: len(labels)}[base] if len(labels) == 2 else len(labels)
        attrs["base_values"] = np.abs(rng.standard_normal(sizes)).astype(np.float32).tolist()
    rows = [features(rng, n, 4, np.int64 if positive else np.float32) for n in ROWS]
    agree(ml_model("TreeEnsembleClassifier", attrs, rows[0], outputs=("label", "y")), *rows)


def test_votes_of_some_rows_alone_are_told_apart() -> None:
    """Two classes, of which most rows have votes for one: what is given depends on the row."""
    rng = np.random.default_rng(5)
    attrs, leaves = random_trees(rng, 2, 4, 3, LEQ, False)
    attrs |= weights_of(rng, leaves, "class", 2, "any", False) | {"classlabels_int64s": [0, 1]}
    rows = [features(rng, n, 4) for n in ROWS]
    agree(ml_model("TreeEnsembleClassifier", attrs, rows[0], outputs=("label", "y")), *rows)


def test_thresholds_may_be_doubles() -> None:
    rng = np.random.default_rng(6)
    attrs, leaves = random_trees(rng, 3, 4, 3, LEQ, True)
    values = np.array(attrs.pop("nodes_values")) + 1e-9
    attrs |= {"nodes_values_as_tensor": numpy_helper.from_array(values, "v"), "n_targets": 1}
    attrs |= weights_of(rng, leaves, "target", 1, "turns", False)
    x = np.resize(values, (9, 4))
    agree(ml_model("TreeEnsembleRegressor", attrs, x), x)


def five(**changes: Any) -> dict[str, Any]:
    """Version 5: two trees of three nodes and five leaves, which ask for sets and other things."""

    def tensor(name: str, values: Any, dtype: Any = np.float32) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, dtype), name)

    attrs = {
        "aggregate_function": 1,
        "post_transform": 0,
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 0],
        "nodes_modes": tensor("modes", [6, 0, 6], np.uint8),
        "nodes_splits": tensor("splits", [0, 0.5, 0]),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 4],
        "nodes_falseleafs": [1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": tensor("weights", [1, 2, 4, 8, 16]),
        "membership_values": tensor("sets", [1.2, 3.7, 8, 9, np.nan, 12, 7, np.nan]),
    }
    return attrs | changes


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_sets_are_searched(dtype: Any) -> None:
    x = np.array([[1.2, 0], [3.7, 1], [8, 0.5], [9, 2], [12, 0], [7, 1], [3, 0], [-1, 0], [13, 0]], dtype)
    attrs = five()
    for name in ("nodes_splits", "leaf_weights", "membership_values"):
        attrs[name] = numpy_helper.from_array(numpy_helper.to_array(attrs[name]).astype(dtype), name)
    model = ml_model("TreeEnsemble", attrs, x, outputs=("z",), version=5)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
    (got,) = tilewright.compile(model.SerializeToString(), threads=1, cache=False)(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, wanted)


def regressor(**changes: Any) -> onnx.ModelProto:
    attrs = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "n_targets": 1,
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    return ml_model("TreeEnsembleRegressor", attrs | changes, np.zeros((2, 2), np.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_featureids": [2, 0, 0]}, "asks for feature 2 of 2"),
        ({"nodes_featureids": [-1, 0, 0]}, "asks for feature -1 of 2"),
        ({"nodes_truenodeids": [7, 0, 0]}, "tree 0 has no node 7"),
        ({"nodes_truenodeids": [0, 0, 0]}, "lie on a cycle"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes of one number"),
        ({"nodes_nodeids": [0, 1]}, "3 treeids for 2 nodeids"),
        ({"nodes_nodeids": [0, 1, 1 << 40]}, "below 0 or not below 2"),
        ({"target_treeids": [0, 1 << 40]}, "tree 1099511627776 has no node 2"),
        ({"nodes_values": [0.5]}, "but 3 featureids"),
        ({"nodes_modes": ["BRANCH_ODD", "LEAF", "LEAF"]}, "no mode 'BRANCH_ODD'"),
        ({"target_nodeids": [1, 9]}, "tree 0 has no node 9"),
        ({"target_ids": [0, 1]}, "target 1 of 1"),
        ({"target_weights": [1.0]}, "not as many nodes and ids"),
        ({"post_transform": "CUBE"}, "no post_transform 'CUBE'"),
        ({"aggregate_function": "MEDIAN"}, "no aggregate_function 'MEDIAN'"),
    ],
)
def test_ensembles_that_contradict_themselves_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(tilewright.ModelError, match=reason):
        tilewright.compile(regressor(**changes).SerializeToString(), cache=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_featureids": [0, 1]}, "do not fit 3 nodes"),
        ({"nodes_truenodeids": [1, 0]}, "not as many true children"),
        ({"nodes_truenodeids": [1, 0, 5]}, "a true child is none of"),
        ({"tree_roots": [3]}, "do not fit 3 nodes"),
        ({"membership_values": numpy_helper.from_array(np.ones(1, np.float32), "s")}, "1 sets are given"),
        ({"aggregate_function": 4}, "no aggregate_function 4"),
    ],
)
def test_ensembles_of_version_5_that_contradict_themselves_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    x = np.zeros((1, 2), np.float32)
    model = ml_model("TreeEnsemble", five(**changes), x, outputs=("z",), version=5)
    with pytest.raises(tilewright.ModelError, match=reason):
        tilewright.compile(model.SerializeToString(), cache=False)


def test_too_many_targets_are_refused() -> None:
    with pytest.raises(tilewright.UnsupportedError, match="1099511627776 targets"):
        tilewright.compile(regressor(n_targets=1 << 40).SerializeToString(), cache=False)


def test_features_of_an_unknown_number_are_looked_for_when_called() -> None:
    model = regressor()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "f"
    compiled = tilewright.compile(model.SerializeToString(), cache=False)
    (y,) = compiled(np.array([[9, 0, 9], [0, 9, 9]], np.float32))
    np.testing.assert_array_equal(y, [[1], [2]])
    with pytest.raises(tilewright.ExecutionError, match="out of range"):
        compiled(np.zeros((2, 1), np.float32))
