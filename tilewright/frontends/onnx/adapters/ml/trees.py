"""Ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.onnx.adapters.ml.forest import LEAF, MODES, Forest, Leaves, Nodes, forest_of
from tilewright.frontends.onnx.adapters.ml.labels import Labels
from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN, rows_of
from tilewright.frontends.onnx.adapters.ml.scores import TRANSFORMS, only_probit, transformed
from tilewright.frontends.onnx.adapters.ml.votes import Votes, classified
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.define import constant
from tilewright.ops.reduce import as_dtype, dtype_of
from tilewright.ops.trees import tree_ensemble
from tilewright.ops.view import concat, shape_of, split

MOST_TARGETS = 1 << 16
"""Targets or classes of an ensemble: the totals of a block of rows stay in L2 or L3."""

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_COMBINE = {"AVERAGE": "add", "SUM": "add", "MIN": "min", "MAX": "max"}


@adapter("TreeEnsembleRegressor", domain=DOMAIN)
def regressor(node: Node) -> Value:
    numbering = _Numbering(node)
    nodes, roots = _numbered_by_trees(node, numbering)
    aggregate, count = node.one_of("aggregate_function", *_AGGREGATES), node.attr("n_targets", 0)
    leaves = _weights(node, nodes, numbering, "target", count)
    base = _numbers(node, "base_values", nodes.thresholds.dtype)
    scores = _aggregated(
        node, nodes, roots, leaves, aggregate, count, base if base.size == count else base[:0]
    )
    return as_dtype(_regression(scores, node.one_of("post_transform", *TRANSFORMS), count), dt.f32)


@adapter("TreeEnsembleClassifier", domain=DOMAIN)
def classifier(node: Node) -> tuple[Value | None, Value]:
    labels = Labels(node, "classlabels_int64s", "classlabels_strings")
    numbering = _Numbering(node)
    nodes, roots = _numbered_by_trees(node, numbering)
    leaves = _weights(node, nodes, numbering, "class", labels.count)
    forest = forest_of(nodes, roots, leaves, labels.count, counted=True)
    scores, found = _totals(node, forest, "add", labels.count), forest.given
    if forest.counts:
        scores, counted = split(scores, sizes=(labels.count, labels.count), axis=1)
        found = ew.gt(counted, 0.0)
    votes = Votes(
        scores,
        found,
        _numbers(node, "base_values", dtype_of(scores).storage),
        is_binary=labels.count == 2 and len(set(node.attr("class_ids", ()))) == 1,
        is_positive=bool((_numbers(node, "class_weights", dtype_of(scores).storage) >= 0).all()),
    )
    label, scores = classified(votes, labels, node.one_of("post_transform", *TRANSFORMS))
    return label, as_dtype(scores, dt.f32)


@adapter("TreeEnsemble", since=5, domain=DOMAIN)
def ensemble(node: Node) -> Value:
    nodes, roots, leaves = _numbered_through(node)
    aggregate, count = _named(node, "aggregate_function", _AGGREGATES), node.attr("n_targets", 0)
    scores = _aggregated(node, nodes, roots, leaves, aggregate, count, np.zeros(0), _sets(node))
    return as_dtype(_regression(scores, _named(node, "post_transform", TRANSFORMS), count), node.dtype(0))


def _regression(scores: Value, transform: str, count: int) -> Value:
    return transformed(scores, transform) if count > 1 else only_probit(scores, transform)


def _named(node: Node, name: str, names: Sequence[str]) -> str:
    """An attribute that is a number of `names`."""
    number = node.attr(name)
    if not 0 <= number < len(names):
        raise ModelError(f"{node.op} has no {name} {number}", hint=f"it is one of 0 to {len(names) - 1}")
    return names[number]


# Scores


def _totals(node: Node, forest: Forest, combine: str, count: int) -> Value:
    """What the leaves of all trees give together: [rows, count]."""
    x = as_dtype(rows_of(node), dt.from_numpy(forest.thresholds.dtype))
    x, features = _asked_for(node, x, forest)
    largest = features.max(initial=0)
    arrays = {
        "features": features.astype(
            np.uint8 if largest < 1 << 8 else np.uint16 if largest < 1 << 16 else np.int32
        ),
        "thresholds": forest.thresholds,
        "values": forest.values,
        "roots": forest.roots,
        "steps": forest.steps,
        "shifts": forest.shifts,
        "targets": forest.targets,
    }
    if forest.children is not None:
        arrays["children"] = forest.children
    constants = [constant(array, name) for name, array in arrays.items()]
    count *= 2 if forest.counts else 1
    depth = int(forest.steps.max())
    totals: Value = tree_ensemble(x, *constants, combine=combine, count=count, depth=depth)
    return totals


def _asked_for(node: Node, x: Value, forest: Forest) -> tuple[Value, np.ndarray]:
    """Rows of the features that nodes ask for, some with minus infinity in place of NaN, and where each node finds its
    own."""
    features, low = forest.features, forest.low
    size = shape_of(x)[1]
    most = int(features.max(initial=0))
    least = int(features.min(initial=0))
    if least < 0 or (size.is_const and most >= size.value):
        raise ModelError(f"{node.op} asks for feature {min(least, 0) or most} of {size}")
    if size.is_const and not low.any():
        return x, features
    filled = ew.select(ew.is_nan(x), -np.inf, x)
    if size.is_const and low.all():
        return filled, features
    asked, places = np.unique(features * 2 + low, return_inverse=True)
    parts = [
        ix.gather(source, constant(asked[asked % 2 == k] // 2, "features"), axis=1)
        for k, source in enumerate((x, filled))
        if (asked % 2 == k).any()
    ]
    order = np.empty(len(asked), np.int64)
    order[np.argsort(asked % 2, kind="stable")] = np.arange(len(asked))
    return concat(*parts, axis=1) if len(parts) > 1 else parts[0], order[places]


def _aggregated(
    node: Node,
    nodes: Nodes,
    roots: np.ndarray,
    leaves: Leaves,
    aggregate: str,
    count: int,
    base: np.ndarray,
    sets: Sequence[np.ndarray] = (),
) -> Value:
    """The targets of a regression, and `base` added. Without any value a target is 0 and, if it is one of several, gets
    no base value (as ONNX Runtime has it)."""
    combine = _COMBINE[aggregate]
    counted = combine == "add" and base.size > 1
    forest = forest_of(nodes, roots, leaves, count, sets=sets, combine=combine, counted=counted)
    totals, found = _totals(node, forest, combine, count), None
    if combine != "add":
        found = ew.ne(totals, np.inf if combine == "min" else -np.inf)
        totals = ew.select(found, totals, 0.0)
    elif forest.counts:
        totals, counts = split(totals, sizes=(count, count), axis=1)
        found = ew.gt(counts, 0.0)
    if aggregate == "AVERAGE":
        totals = ew.div(totals, float(len(roots)))
    if not base.size:
        return totals
    shifted = ew.add(totals, constant(base if count == 1 else np.where(forest.given, base, 0), "base_values"))
    return shifted if found is None or count == 1 else ew.select(found, shifted, 0.0)


# Attributes


def _numbers(node: Node, name: str, dtype: np.dtype) -> np.ndarray:
    """Numbers that are an attribute, or from version 3 on a tensor."""
    tensor = f"{name}_as_tensor"
    if node.has(tensor):
        return node.array(tensor).reshape(-1).astype(dtype)
    return np.array(node.attr(name, ()), dtype)


def _numbered_by_trees(node: Node, numbering: _Numbering) -> tuple[Nodes, np.ndarray]:
    """The nodes of an ensemble whose trees number theirs, and the roots: the first node of each tree."""
    dtype = np.dtype(np.float64 if node.dtype(0) == dt.f64 else np.float32)
    modes = _modes(node)
    columns = {
        name: np.array(node.attr(f"nodes_{name}", ()), np.int64)
        for name in ("featureids", "treeids", "truenodeids", "falsenodeids")
    }
    values = _numbers(node, "nodes_values", dtype)
    if any(len(c) != len(modes) for c in (*columns.values(), values)) or not modes.size:
        lengths = ", ".join(f"{len(c)} {name}" for name, c in {**columns, "values": values}.items())
        raise ModelError(f"{node.op} has {len(modes)} modes of nodes, but {lengths}")
    trees = columns["treeids"]
    inner = modes != LEAF
    children = []
    for name in ("truenodeids", "falsenodeids"):
        child = np.arange(len(modes))
        child[inner] = numbering.find(trees[inner], columns[name][inner])
        children.append(child)
    tracks = np.zeros(len(modes), bool)
    given = np.array(node.attr("nodes_missing_value_tracks_true", ()), np.int64)[: len(modes)]
    tracks[: len(given)] = given == 1
    nodes = Nodes(modes, columns["featureids"], values, children[0], children[1], tracks)
    return nodes, np.flatnonzero(np.diff(trees, prepend=trees[0] - 1))


def _modes(node: Node) -> np.ndarray:
    """The modes of all nodes."""
    known = {"LEAF": LEAF, **{f"BRANCH_{mode}": k for k, mode in enumerate(MODES[:-1])}}
    names = node.attr("nodes_modes", ())
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ModelError(
            f"{node.op} has no mode '{shown(unknown[0])}'", hint=f"it is one of {', '.join(known)}"
        )
    return np.array([known[name] for name in names], np.int64)


class _Numbering:
    """Nodes by their tree and the number that it gives them."""

    def __init__(self, node: Node) -> None:
        self._op = node.op
        self._own = [np.array(node.attr(f"nodes_{name}", ()), np.int64) for name in ("treeids", "nodeids")]
        if len(self._own[0]) != len(self._own[1]) or not self._own[0].size:
            raise ModelError(f"{node.op} has {len(self._own[0])} treeids for {len(self._own[1])} nodeids")
        if any(ids.min(initial=0) < 0 or ids.max(initial=0) >= 1 << 31 for ids in self._own):
            raise ModelError(f"{node.op} has numbers of trees or nodes that are below 0 or not below 2^31")
        keys = self._key(*self._own)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (np.diff(self._keys) == 0).any():
            raise ModelError(f"{node.op} has two nodes of one number in a tree")

    @staticmethod
    def _key(trees: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return (trees << 31) + nodes

    def find(self, trees: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Positions among all nodes of those that their trees number so."""
        fits = (nodes >= 0) & (nodes < 1 << 31) & (trees >= 0) & (trees < 1 << 31)
        wanted = np.where(fits, self._key(trees, nodes), -1)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        lost = np.flatnonzero(self._keys[at] != wanted)
        if lost.size:
            raise ModelError(f"{self._op}: tree {trees[lost[0]]} has no node {nodes[lost[0]]}")
        return np.asarray(self._order[at])


def _weights(node: Node, nodes: Nodes, numbering: _Numbering, kind: str, count: int) -> Leaves:
    """What leaves give, of attributes that begin with `kind`; weights of other nodes are left out."""
    columns = {n: np.array(node.attr(f"{kind}_{n}", ()), np.int64) for n in ("treeids", "nodeids", "ids")}
    weights = _numbers(node, f"{kind}_weights", nodes.thresholds.dtype)
    if any(len(c) != len(weights) for c in columns.values()):
        raise ModelError(f"{node.op} has {len(weights)} weights, but not as many nodes and ids for them")
    found = numbering.find(columns["treeids"], columns["nodeids"])
    kept = nodes.modes[found] == LEAF
    return _checked(node, Leaves(found[kept], columns["ids"][kept], weights[kept]), count)


def _checked(node: Node, leaves: Leaves, count: int) -> Leaves:
    if count > MOST_TARGETS:
        raise UnsupportedError(f"{node.op} has {count} targets, more than {MOST_TARGETS}")
    if count < 1 or leaves.targets.min(initial=0) < 0 or leaves.targets.max(initial=0) >= count:
        raise ModelError(f"{node.op} has weights for target {leaves.targets.max(initial=0)} of {count}")
    return leaves


def _numbered_through(node: Node) -> tuple[Nodes, np.ndarray, Leaves]:
    """The nodes, roots and leaves of an ensemble whose nodes have one numbering and leaves another."""
    dtype = np.dtype(np.float64 if node.dtype(0) == dt.f64 else np.float32)
    modes = node.array("nodes_modes").reshape(-1).astype(np.int64)
    inner = len(modes)
    features = np.array(node.attr("nodes_featureids"), np.int64)
    splits = node.array("nodes_splits").reshape(-1).astype(dtype)
    targets = np.array(node.attr("leaf_targetids"), np.int64)
    weights = node.array("leaf_weights").reshape(-1).astype(dtype)
    roots = np.array(node.attr("tree_roots"), np.int64)
    children = []
    for side in ("true", "false"):
        ids = np.array(node.attr(f"nodes_{side}nodeids"), np.int64)
        is_leaf = np.array(node.attr(f"nodes_{side}leafs"), np.int64) != 0
        if len(ids) != inner or len(is_leaf) != inner:
            raise ModelError(f"{node.op} has {inner} nodes, but not as many {side} children")
        if ((ids < 0) | (ids >= np.where(is_leaf, len(weights), inner))).any():
            raise ModelError(f"{node.op}: a {side} child is none of {inner} nodes and {len(weights)} leaves")
        children.append(np.concatenate([ids + np.where(is_leaf, inner, 0), inner + np.arange(len(weights))]))
    fits = len(features) == len(splits) == inner and len(targets) == len(weights)
    if (
        not fits
        or not ((modes >= 0) & (modes < len(MODES))).all()
        or not ((roots >= 0) & (roots < inner)).all()
    ):
        raise ModelError(f"{node.op}: modes, features, splits or roots do not fit {inner} nodes")
    tracks = np.zeros(inner + len(weights), bool)
    given = np.array(node.attr("nodes_missing_value_tracks_true", ()), np.int64)[:inner]
    tracks[: len(given)] = given == 1
    none = np.zeros(len(weights), np.int64)
    nodes = Nodes(
        np.concatenate([modes, none + LEAF]),
        np.concatenate([features, none]),
        np.concatenate([splits, none.astype(dtype)]),
        children[0],
        children[1],
        tracks,
    )
    leaves = Leaves(inner + np.arange(len(weights)), targets, weights)
    return nodes, roots, _checked(node, leaves, node.attr("n_targets", 0))


def _sets(node: Node) -> list[np.ndarray]:
    """The sets of nodes that ask for one, which NaN ends."""
    if not node.has("membership_values"):
        return []
    members = node.array("membership_values").reshape(-1)
    ends = np.flatnonzero(np.isnan(members))
    parts = np.split(members, ends + 1)
    sets = [part[~np.isnan(part)] for part in parts]
    return sets[:-1] if not sets[-1].size else sets
