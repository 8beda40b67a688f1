"""Decision trees in the form of the operator `tree_ensemble`: every node asks whether a feature is at most a threshold.

    x < t           x <= the greatest number below t
    x > t           x <= t, children swapped
    x == t          x <= t, then not x < t
    x is of a set   x <= the median of the set, then that it is of the smaller half; == at the end

NaN compares false and goes to the second child. Where it is to go to the first one, the node asks for the feature with
minus infinity in place of NaN (`low`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.trees import GROUP

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
LEAF = -1

MOST_FILLED = 2
"""Trees are laid out as complete ones, without children, where that takes up to so many places for each node."""

MOST_VALUES = 1 << 28
"""Values of an ensemble whose leaves have one for each target."""

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(len(MODES))


@dataclass(frozen=True)
class Nodes:
    """Nodes by number: modes (positions in MODES, or LEAF), the features and thresholds that they ask for, children
    where the answer is yes and where it is no, and whether NaN goes to the first of them."""

    modes: np.ndarray
    features: np.ndarray
    thresholds: np.ndarray
    first: np.ndarray
    second: np.ndarray
    low: np.ndarray

    def extended(self, other: Nodes) -> Nodes:
        """With the nodes of another one after these."""
        return Nodes(*(np.concatenate([getattr(self, f), getattr(other, f)]) for f in self.__annotations__))


@dataclass(frozen=True)
class Leaves:
    """What leaves give: the weight for a target, each with the number of the leaf's node."""

    nodes: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Forest:
    """An ensemble as the arrays of `tree_ensemble`, but that `features` are the model's, and `low` says which of them
    are asked for with minus infinity in place of NaN. `given` has for each target whether any leaf has a value for it;
    with `counts` there are as many more columns of values, which count those that are found."""

    features: np.ndarray
    low: np.ndarray
    thresholds: np.ndarray
    values: np.ndarray
    roots: np.ndarray
    steps: np.ndarray
    shifts: np.ndarray
    targets: np.ndarray
    children: np.ndarray | None
    given: np.ndarray
    counts: bool


def forest_of(
    nodes: Nodes,
    roots: np.ndarray,
    leaves: Leaves,
    count: int,
    *,
    sets: Sequence[np.ndarray] = (),
    combine: str = "add",
    counted: bool = False,
) -> Forest:
    """The trees that begin at nodes `roots`, which give `count` targets; `sets` are those of nodes MEMBER in order.
    With `counted` values are counted, unless it depends on no row which targets have some.

    ModelError for nodes that lie on a cycle.
    """
    nodes, roots = _filled(_as_thresholds(nodes, sets), roots)
    tree, level = _levels(nodes, roots)
    steps = np.zeros(len(roots), np.int64)
    np.maximum.at(steps, tree[tree >= 0], level[tree >= 0])
    by_steps = np.argsort(steps, kind="stable")
    tree = np.where(tree < 0, -1, np.argsort(by_steps)[tree])
    roots, steps = roots[by_steps], steps[by_steps]
    values = _Values.of(leaves, tree, nodes.modes == LEAF, combine, count, counted)
    even = steps.reshape(-1, GROUP).max(axis=1).repeat(GROUP)
    if sum(1 << min(int(s), 62) for s in even) <= MOST_FILLED * len(nodes.modes):
        places, children = _complete(nodes, roots, even), None
        steps = even
    else:
        places, children = _linked(nodes, tree, level)
    is_inner = nodes.modes[places.nodes] != LEAF
    low = nodes.low[places.nodes]
    return Forest(
        np.where(is_inner, nodes.features[places.nodes], 0),
        np.where(is_inner, low, low[is_inner].all()),
        nodes.thresholds[places.nodes],
        values.values[places.leaves],
        places.roots.astype(np.int32),
        steps.astype(np.int32),
        places.shifts.astype(np.int32),
        values.targets.astype(np.int32),
        children,
        values.given,
        values.counts,
    )


def _filled(nodes: Nodes, roots: np.ndarray) -> tuple[Nodes, np.ndarray]:
    """The same trees and as many leaves without value as make whole groups; leaves are their own children."""
    fill = -len(roots) % GROUP
    none = np.zeros(fill, np.int64)
    extra = Nodes(none + LEAF, none, none.astype(nodes.thresholds.dtype), none, none, none.astype(bool))
    number, own = len(nodes.modes), np.arange(len(nodes.modes) + fill)
    nodes = nodes.extended(extra)
    is_leaf = nodes.modes == LEAF
    first, second = (np.where(is_leaf, own, child) for child in (nodes.first, nodes.second))
    return replace(nodes, first=first, second=second), np.concatenate([number + np.arange(fill), roots])


# Comparisons


def _as_thresholds(nodes: Nodes, sets: Sequence[np.ndarray]) -> Nodes:
    """The same trees with nodes LEQ alone."""
    nodes = _without_sets(nodes, sets)
    nodes = _without_equality(nodes)
    swapped = np.isin(nodes.modes, (_GT, _GTE))
    below = np.isin(nodes.modes, (_LT, _GTE))
    return replace(
        nodes,
        thresholds=np.where(below, _below(nodes.thresholds), nodes.thresholds),
        first=np.where(swapped, nodes.second, nodes.first),
        second=np.where(swapped, nodes.first, nodes.second),
        low=nodes.low ^ swapped,
        modes=np.where(nodes.modes == LEAF, LEAF, _LEQ),
    )


def _below(thresholds: np.ndarray) -> np.ndarray:
    """The greatest numbers below; NaN, which nothing is at most, below minus infinity. Denormals count as zero."""
    smallest = np.finfo(thresholds.dtype).tiny
    found = np.nextafter(thresholds, -np.inf, dtype=thresholds.dtype)
    denormal = (np.abs(found) < smallest) & (found != 0)
    found = np.where(denormal, np.where(found < 0, -smallest, 0), found).astype(thresholds.dtype)
    return np.where(thresholds == -np.inf, np.nan, found).astype(thresholds.dtype)


def _without_equality(nodes: Nodes) -> Nodes:
    """x == t as x <= t, then x < t on a node of its own."""
    at = np.flatnonzero(np.isin(nodes.modes, (_EQ, _NEQ)))
    if not at.size:
        return nodes
    is_equal = nodes.modes[at] == _EQ
    same = np.where(is_equal, nodes.first[at], nodes.second[at])
    other = np.where(is_equal, nodes.second[at], nodes.first[at])
    modes, first, second, low = (a.copy() for a in (nodes.modes, nodes.first, nodes.second, nodes.low))
    modes[at], first[at], second[at] = _LEQ, len(modes) + np.arange(len(at)), other
    low[at] &= is_equal
    inner = Nodes(
        np.full(len(at), _LT), nodes.features[at], nodes.thresholds[at], other, same, np.zeros(len(at), bool)
    )
    return replace(nodes, modes=modes, first=first, second=second, low=low).extended(inner)


def _without_sets(nodes: Nodes, sets: Sequence[np.ndarray]) -> Nodes:
    """Membership of a set as a search in it."""
    at = np.flatnonzero(nodes.modes == _MEMBER)
    if len(at) != len(sets) or not all(s.size for s in sets):
        raise ModelError(
            f"{len(at)} nodes ask for a set, but {len(sets)} sets are given, or one without members"
        )
    if not at.size:
        return nodes
    search = _Search(nodes, [], [])
    asked = [
        search.among(int(n), np.unique(s.astype(nodes.thresholds.dtype)))
        for n, s in zip(at, sets, strict=True)
    ]
    origins = np.concatenate([at, np.array(search.origins, np.int64)])
    changed = {f: getattr(nodes, f)[origins] for f in nodes.__annotations__}
    for k, name in enumerate(("modes", "thresholds", "first", "second")):
        changed[name] = np.array([q[k] for q in (*asked, *search.questions)], changed[name].dtype)
    whole = nodes.extended(Nodes(**{f: a[len(at) :] for f, a in changed.items()}))
    for f, a in changed.items():
        getattr(whole, f)[at] = a[: len(at)]
    return whole


_Question = tuple[int, float, int, int]
"""The mode, threshold and children of a node."""


@dataclass(frozen=True)
class _Search:
    """The nodes that searches in sets add to `nodes`: what they ask, and the node each is part of."""

    nodes: Nodes
    questions: list[_Question]
    origins: list[int]

    def among(self, node: int, members: np.ndarray) -> _Question:
        """What asks whether the feature of `node` is one of the sorted `members`."""
        if members.size == 1:
            return _EQ, members[0], int(self.nodes.first[node]), int(self.nodes.second[node])
        half = (members.size + 1) // 2
        children = [self._added(node, part) for part in (members[:half], members[half:])]
        return _LEQ, members[half - 1], children[0], children[1]

    def _added(self, node: int, members: np.ndarray) -> int:
        question = self.among(node, members)
        self.questions.append(question)
        self.origins.append(node)
        return len(self.nodes.modes) + len(self.questions) - 1


# Order


def _levels(nodes: Nodes, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each node its tree, -1 for those of none, and its greatest distance from the root."""
    count = len(nodes.modes)
    tree, level = np.full(count, -1), np.zeros(count, np.int64)
    tree[roots] = np.arange(len(roots))
    front, distance = roots[nodes.modes[roots] != LEAF], 0
    while front.size:
        distance += 1
        if distance > count:
            raise ModelError("the nodes of a tree lie on a cycle")
        for child in (nodes.first[front], nodes.second[front]):
            tree[child], level[child] = tree[front], distance
        front = np.unique(np.concatenate([nodes.first[front], nodes.second[front]]))
        front = front[nodes.modes[front] != LEAF]
    return tree, level


@dataclass(frozen=True)
class _Places:
    """Which node lies where: `nodes` as features and thresholds are, `leaves` as values are, and the place before the
    root of each tree among the former, and that of the leaf numbered 0 among the latter."""

    nodes: np.ndarray
    leaves: np.ndarray
    roots: np.ndarray
    shifts: np.ndarray


def _complete(nodes: Nodes, roots: np.ndarray, steps: np.ndarray) -> _Places:
    """Complete trees of so many `steps`, in which all nodes below a leaf are that leaf."""
    inner, leaves = [], []
    for size in np.unique(steps):
        front = roots[steps == size][:, None]
        levels = [front]  # the place before the root, which nothing reads
        for _ in range(size):
            levels.append(front)
            front = np.stack([nodes.first[front], nodes.second[front]], axis=-1).reshape(len(front), -1)
        inner.append(np.concatenate(levels, axis=1).reshape(-1))
        leaves.append(front.reshape(-1))
    sizes = 1 << steps
    starts = np.cumsum(sizes) - sizes
    return _Places(np.concatenate(inner), np.concatenate(leaves), starts, starts - sizes)


def _linked(nodes: Nodes, tree: np.ndarray, level: np.ndarray) -> tuple[_Places, np.ndarray]:
    """Trees as they are, level by level, then their leaves; and the numbers of children."""
    is_leaf = nodes.modes == LEAF
    order = np.lexsort((level, is_leaf, tree))
    order = order[tree[order] >= 0]
    trees = int(tree.max()) + 1
    sizes = np.bincount(tree[order], minlength=trees)
    ends = np.bincount(tree[order][is_leaf[order]], minlength=trees)
    starts = np.cumsum(sizes) - sizes - 1
    number = np.zeros(len(tree), np.int64)
    number[order] = np.arange(len(order)) - starts[tree[order]]
    children = number[np.stack([nodes.first[order], nodes.second[order]], axis=1)]
    shifts = np.cumsum(ends) - ends - (sizes - ends) - 1
    places = _Places(order, order[is_leaf[order]], starts, shifts)
    return places, children.astype(np.uint16 if sizes.max() < 1 << 16 else np.int32)


# Leaves


@dataclass(frozen=True)
class _Values:
    """The values of all nodes, of which those of leaves count: for all targets or, in one column, for that of their
    tree. `given` and `counts` are those of the forest."""

    values: np.ndarray
    targets: np.ndarray
    given: np.ndarray
    counts: bool

    @staticmethod
    def of(
        leaves: Leaves, tree: np.ndarray, is_leaf: np.ndarray, combine: str, count: int, counted: bool
    ) -> _Values:
        reached = tree[leaves.nodes] >= 0
        node, target, weight = leaves.nodes[reached], leaves.targets[reached], leaves.weights[reached]
        trees, size = int(tree.max()) + 1, len(tree)
        own = np.zeros(trees, np.int64)
        own[tree[node]] = target
        is_single = bool((own[tree[node]] == target).all())
        ends = np.bincount(tree[is_leaf & (tree >= 0)], minlength=trees)
        found = np.unique(node * count + target)
        pairs, times = np.unique(tree[found // count] * count + found % count, return_counts=True)
        given, is_sure = np.zeros(count, bool), np.zeros(count, bool)
        given[pairs % count] = True
        is_sure[pairs[times == ends[pairs // count]] % count] = True
        counts = counted and not bool((given == is_sure).all())
        columns = 1 if is_single and not counts else count
        if size * columns > MOST_VALUES:
            raise UnsupportedError(f"values of {columns} targets for {size} nodes are too many")
        place = (node, target if columns == count else np.zeros(len(node), np.int64))
        neutral, function = _COMBINED[combine]
        values = np.full((size, columns), neutral, leaves.weights.dtype)
        function.at(values, place, weight)
        if counts:
            values = np.concatenate([values, np.zeros_like(values)], axis=1)
            values[found // count, count + found % count] = 1
        return _Values(values, own, given, counts)


_COMBINED: dict[str, tuple[float, np.ufunc]] = {
    "add": (0.0, np.add),
    "min": (np.inf, np.minimum),
    "max": (-np.inf, np.maximum),
}
"""What there is of no value, and how values are combined."""
