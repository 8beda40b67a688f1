"""Ensembles of version 5, whose nodes may ask for sets, against one row and one tree after the other."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import tilewright
from tests.frontends.ml.models import LEVELS, features, ml_model
from tilewright.ops.trees import GROUP

_COMPARISONS = (operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne)
_MEMBER = 6
AVERAGE, SUM, MIN, MAX = range(4)


class Trees:
    """Random trees while they grow, as columns of attributes; `sets` are those of nodes that ask for one."""

    def __init__(self, rng: np.random.Generator, trees: int, depth: int, targets: int) -> None:
        self.rng, self.depth, self.targets = rng, depth, targets
        names = ("featureids", "modes", "splits", "missing_value_tracks_true")
        sides = [f"{side}{kind}" for side in ("true", "false") for kind in ("nodeids", "leafs")]
        self.nodes: dict[str, list[Any]] = {name: [] for name in (*names, *sides)}
        self.leaves: list[tuple[int, float]] = []
        self.sets: dict[int, list[float]] = {}
        self.roots = [self._grown(1) for _ in range(trees)]

    def _grown(self, level: int) -> int:
        rng, number = self.rng, len(self.nodes["modes"])
        row = (int(rng.integers(3)), int(rng.integers(7)), float(rng.choice(LEVELS)), int(rng.integers(2)))
        for name, value in zip(self.nodes, (*row, 0, 0, 0, 0), strict=True):
            self.nodes[name].append(value)
        if row[1] == _MEMBER:
            self.sets[number] = rng.permutation(LEVELS)[: int(rng.integers(1, 5))].tolist()
        for side in ("true", "false"):
            is_leaf = level == self.depth or rng.random() < 0.25
            if is_leaf:
                self.leaves.append((int(rng.integers(self.targets)), float(rng.standard_normal())))
            child = len(self.leaves) - 1 if is_leaf else self._grown(level + 1)
            self.nodes[f"{side}nodeids"][number], self.nodes[f"{side}leafs"][number] = child, int(is_leaf)
        return number

    def attributes(self, aggregate: int, dtype: Any) -> dict[str, Any]:
        tensors = {"nodes_splits": self.nodes["splits"], "leaf_weights": [w for _, w in self.leaves]}
        if self.sets:
            tensors["membership_values"] = [v for s in self.sets.values() for v in (*s, np.nan)]
        attrs = {
            name: numpy_helper.from_array(np.array(values, dtype), name) for name, values in tensors.items()
        }
        attrs["nodes_modes"] = numpy_helper.from_array(np.array(self.nodes["modes"], np.uint8), "modes")
        attrs |= {f"nodes_{n}": v for n, v in self.nodes.items() if n not in ("splits", "modes")}
        ids = [target for target, _ in self.leaves]
        common = {"n_targets": self.targets, "tree_roots": self.roots, "aggregate_function": aggregate}
        return attrs | common | {"leaf_targetids": ids, "post_transform": 0}

    def leaf(self, root: int, row: np.ndarray) -> tuple[int, float]:
        node, nodes = root, self.nodes
        while True:
            value, mode = row[nodes["featureids"][node]], nodes["modes"][node]
            compare = self.sets[node].__contains__ if mode == _MEMBER else partial(_COMPARISONS[mode], value)
            holds = compare(value if mode == _MEMBER else nodes["splits"][node]) or (
                nodes["missing_value_tracks_true"][node] and np.isnan(value)
            )
            side = "true" if holds else "false"
            is_leaf, node = nodes[f"{side}leafs"][node], nodes[f"{side}nodeids"][node]
            if is_leaf:
                return self.leaves[node]

    def evaluated(self, x: np.ndarray, aggregate: int) -> np.ndarray:
        """0 for targets that no leaf has a value for."""
        function = {AVERAGE: np.add, SUM: np.add, MIN: np.minimum, MAX: np.maximum}[aggregate]
        y = np.zeros((len(x), self.targets))
        for r, row in enumerate(x):
            seen = set()
            for target, weight in (self.leaf(root, row) for root in self.roots):
                y[r, target] = function(y[r, target], weight) if target in seen else weight
                seen.add(target)
        return y / len(self.roots) if aggregate == AVERAGE else y


@pytest.mark.sweep
@pytest.mark.parametrize("aggregate", [AVERAGE, SUM, MIN, MAX])
@pytest.mark.parametrize(("trees", "depth", "targets"), [(3, 2, 1), (18, 5, 2), (5, 6, 3)])
def test_nodes_of_all_modes_lead_where_they_say(aggregate: int, trees: int, depth: int, targets: int) -> None:
    rng, dtype = np.random.default_rng([trees, aggregate]), (np.float32, np.float64)[aggregate % 2]
    ensemble, x = Trees(rng, trees, depth, targets), features(rng, GROUP + 5, 3, dtype)
    model = ml_model("TreeEnsemble", ensemble.attributes(aggregate, dtype), x, outputs=("z",), version=5)
    (y,) = tilewright.compile(model.SerializeToString(), threads=1, cache=False)(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, ensemble.evaluated(x, aggregate), rtol=1e-5, atol=1e-6)
