"""Ensembles of decision trees.

A step goes from a node to its first child where the feature that it asks for is at most its threshold, and to the
second one otherwise. All rows take as many steps in a tree, so that none needs a branch. What one step reads depends on
the step before: several rows go through one tree together, so that their loads overlap, and where fewer rows are left,
one row through several trees.

    for block of rows parallel {
        for tree { for group of rows { for step { for r unroll { node[r] = child(node[r], x[r, ...] <= ...) } } } }
        for row of those left { for group of trees { for step { for k unroll { node[k] = ... } } } }
    }
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, ceildiv, le, minimum, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder

BLOCK = 64
"""Rows that a thread takes through all trees: the nodes of a tree that one of them reads are in L1 for the others."""

GROUP = 16
"""Rows (or trees) that go down together: their loads hide one another's latency."""

COMBINATIONS = ("add", "min", "max")


def _tree_types(
    x: TensorType,
    features: TensorType,
    thresholds: TensorType,
    values: TensorType,
    roots: TensorType,
    steps: TensorType,
    shifts: TensorType,
    targets: TensorType,
    children: TensorType | None = None,
    *,
    combine: str,
    count: int,
    depth: int,
) -> tuple[TensorType, ...]:
    if x.rank != 2 or not x.dtype.is_float or x.dtype != thresholds.dtype:
        raise ValueError(
            f"rows {x} and thresholds {thresholds} must be floats of one dtype, the rows a matrix"
        )
    nodes, trees = features.shape, roots.shape
    if len(nodes) != 1 or thresholds.shape != nodes:
        raise ValueError(f"features {features} and thresholds {thresholds} must be vectors of one length")
    if children is not None and children.shape != (*nodes, sym(2)):
        raise ValueError(f"children {children} must be two of each node of {features}")
    if len(trees) != 1 or any(v.shape != trees for v in (steps, shifts, targets)):
        raise ValueError(f"{roots}, {steps}, {shifts} and {targets} must be vectors of one length")
    if trees[0] % GROUP != 0:
        raise ValueError(f"the number of trees, {trees[0]}, must be a multiple of {GROUP}")
    if values.rank != 2 or values.shape[1] not in (1, count):
        raise ValueError(f"values {values} must be a matrix of 1 column or {count}")
    if combine not in COMBINATIONS:
        raise ValueError(f"values are combined by {', '.join(COMBINATIONS)}, not {combine!r}")
    return (TensorType(values.dtype, (x.shape[0], sym(count))),)


@dataclass(frozen=True, slots=True)
class _Ensemble:
    """The arrays of an ensemble, and the totals of the rows of a block."""

    builder: ScalarBuilder
    x: Array
    features: Array
    thresholds: Array
    values: Array
    roots: Array
    steps: Array
    shifts: Array
    targets: Array
    children: Array | None
    combine: str
    depth: int
    totals: Array

    def descend(
        self, tree: Callable[[Sym], Sym], row: Callable[[Sym], Sym], first: Sym, deepest: Sym
    ) -> None:
        """Take GROUP pairs of a tree and a row of the block, which begins with row `first` of all, down to leaves, in
        as many steps as tree `deepest` has, and combine their values with the totals."""
        t = self.builder
        numbers = t.alloc(dt.i32, (GROUP,), "reg")
        with t.loop(GROUP, "g", "unroll") as g:
            numbers.store((g,), 1)
        steps = t.bind(self.steps[deepest], "steps", 0, self.depth)
        with t.loop(steps, "step"), t.loop(GROUP, "g", "unroll") as g:
            node = t.bind(self.roots[tree(g)], "root", None) + t.bind(numbers[g], "number")
            feature = t.bind(self.features[node], "feature")
            is_second = t.apply("not", self.x[first + row(g), feature] <= self.thresholds[node])
            if self.children is None:
                numbers.store((g,), numbers[g] * 2 + is_second.cast(dt.i32))
            else:
                side = t.bind(is_second.cast(dt.i64), "side", 0, 1)
                numbers.store((g,), self.children[node, side].cast(dt.i32))
        with t.loop(GROUP, "g", "unroll") as g:
            leaf = t.bind(self.shifts[tree(g)], "shift", None) + t.bind(numbers[g], "number")
            self._add(leaf, tree(g), row(g))

    def _add(self, leaf: Sym, tree: Sym, row: Sym) -> None:
        if self.values.shape[1] == 1:
            target = sym(0)
            if self.totals.shape[1] != 1:
                target = self.builder.bind(self.targets[tree], "target")
            self._combine((row, target), leaf, sym(0))
        else:
            with self.builder.loop(self.values.shape[1], "k") as k:
                self._combine((row, k), leaf, k)

    def _combine(self, place: tuple[Sym, Sym], leaf: Sym, k: Sym) -> None:
        total = self.builder.apply(self.combine, self.totals[place], self.values[leaf, k])
        self.totals.store(place, total)


@irregular(_tree_types)
def tree_ensemble(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, combine: str, count: int, depth: int
) -> None:
    """y[r, k] = combine ("add", "min" or "max") over trees of the values of the leaf where row x[r] ends: [n, count].

    The nodes of a tree have numbers from 1 on; `features` and `thresholds` hold node i of tree t at roots[t] + i, and
    `values` that of a leaf at shifts[t] + i. After a node comes its first child where x[r, feature] <= threshold, and
    its second one elsewhere, as for NaN. These are nodes 2i and 2i + 1, or those of `children` [nodes, 2]. So many of
    `steps`, at most `depth`, lead to a leaf of a tree; more of them stay there with `children`, without these the trees
    of a group have the same number. They do not fall from one tree to the next. The leaves' values are for all targets,
    [leaves, count], or, [leaves, 1], for the one of their tree in `targets`. Numbers are not checked.
    """
    x, features, thresholds, values, roots, steps, shifts, targets, *children = inputs
    (y,) = outputs
    rows, trees = x.shape[0], roots.shape[0]
    with t.loop(ceildiv(rows, BLOCK), "block", "parallel") as block:
        first = block * BLOCK
        width = minimum(sym(BLOCK), rows - first)
        totals = t.alloc(y.dtype, (BLOCK, count))
        ensemble = _Ensemble(
            t, x, features, thresholds, values, roots, steps, shifts, targets,
            children[0] if children else None, combine, depth, totals,
        )  # fmt: skip
        with t.loop(width, "row") as row, t.loop(count, "k") as k:
            totals.store((row, k), t.const(identity(combine, y.dtype), y.dtype))
        with (
            t.when(le(GROUP, width)),
            t.loop(trees, "tree") as tree,
            t.loop(width // GROUP, "group") as group,
        ):
            start = group * GROUP
            ensemble.descend(lambda g: tree, lambda g: start + g, first, tree)
        with t.loop(width % GROUP, "left") as left, t.loop(trees // GROUP, "group") as group:
            row, start = width - 1 - left, group * GROUP
            ensemble.descend(lambda g: start + g, lambda g: row, first, start + (GROUP - 1))
        with t.loop(width, "row") as row, t.loop(count, "k") as k:
            y.store((first + row, k), totals[row, k])
