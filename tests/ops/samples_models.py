"""Samples of what models other than networks are made of: trees, lookups, probabilities of pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.ops.sampling import Sample, normal, sample
from tilewright.ir import dtype as dt
from tilewright.ops.trees import GROUP


def models() -> Iterator[Sample]:
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        for rows in (0, 1, GROUP + 3, 70):
            x = normal((rows, 3), dtype)
            if rows:
                x[0, 1] = np.nan
            for combine, function in (("add", np.add), ("min", np.minimum), ("max", np.maximum)):
                for targets, columns in ((1, 1), (3, 1), (3, 3)):
                    arrays = _complete_trees(dtype, targets, columns)
                    yield sample(
                        "tree_ensemble",
                        [x, *arrays],
                        lambda x=x, a=arrays, f=function, k=targets: _by_rows(x, a, f, k),
                        combine=combine,
                        count=targets,
                        depth=2,
                        loose=4,
                    )
            chains = _chains(dtype)
            yield sample(
                "tree_ensemble",
                [x, *chains],
                lambda x=x, a=chains: _by_rows(x, a, np.add, 1),
                combine="add",
                count=1,
                depth=3,
                note="linked",
                loose=4,
            )
    yield from _lookups()
    yield from _tables()
    yield from _levels()
    yield from _couplings()


def _complete_trees(dtype: np.dtype, targets: int, columns: int) -> list[np.ndarray]:
    """GROUP trees of two steps: places 0 to 3 of a tree hold its nodes 1 to 3."""
    rng = np.random.default_rng(targets)
    trees = np.arange(GROUP, dtype=np.int32)
    return [
        rng.integers(0, 3, 4 * GROUP).astype(np.uint8),
        rng.standard_normal(4 * GROUP).astype(dtype),
        rng.standard_normal((4 * GROUP, columns)).astype(dtype),
        4 * trees,
        np.full(GROUP, 2, np.int32),
        4 * trees - 4,
        trees % targets,
    ]


def _chains(dtype: np.dtype) -> list[np.ndarray]:
    """Trees with children: the first ones are a leaf, node 1, the last ones chains of three nodes and four leaves."""
    leaf, chain = GROUP // 2, GROUP - GROUP // 2
    rng = np.random.default_rng(3)
    numbers = np.array([[4, 2], [3, 5], [6, 7], [4, 4], [5, 5], [6, 6], [7, 7]], np.uint16)
    starts = np.concatenate([np.arange(leaf), leaf + 7 * np.arange(chain)]) - 1
    ends = np.concatenate([np.arange(leaf) - 1, leaf + 4 * np.arange(chain) - 4])
    return [
        rng.integers(0, 3, leaf + 7 * chain).astype(np.uint8),
        rng.standard_normal(leaf + 7 * chain).astype(dtype),
        rng.standard_normal((leaf + 4 * chain, 1)).astype(dtype),
        starts.astype(np.int32),
        np.repeat([0, 3], [leaf, chain]).astype(np.int32),
        ends.astype(np.int32),
        np.zeros(GROUP, np.int32),
        np.concatenate([np.ones((leaf, 2), np.uint16), np.tile(numbers, (chain, 1))]),
    ]


def _by_rows(x: np.ndarray, arrays: list[np.ndarray], function: np.ufunc, targets: int) -> np.ndarray:
    """One row and one tree after the other."""
    features, thresholds, values, roots, steps, shifts, targeted = arrays[:7]
    children = arrays[7] if len(arrays) > 7 else None
    start = {np.add: 0.0, np.minimum: np.inf, np.maximum: -np.inf}[function]
    y = np.full((len(x), targets), start, np.float64)
    for r, row in enumerate(x):
        for tree, root in enumerate(roots):
            node = 1
            for _ in range(steps[tree]):
                second = not row[features[root + node]] <= thresholds[root + node]
                node = int(children[root + node, int(second)]) if children is not None else 2 * node + second
            leaf = values[shifts[tree] + node]
            if values.shape[1] == 1:
                k = targeted[tree]
                y[r, k] = function(y[r, k], leaf[0])
            else:
                y[r] = function(y[r], leaf)
    return y


def _lookups() -> Iterator[Sample]:
    for dtype in (np.int64, np.float32):
        for count in (1, 2, 7, 8):
            keys = (np.arange(count) * 3 - 5).astype(dtype)
            x = normal((4, 9), dtype).round()
            values = np.arange(count, dtype=np.float32) + 0.5
            known = dict(zip(keys.tolist(), values.tolist(), strict=True))
            expected = np.array([known.get(v, 9.0) for v in x.reshape(-1).tolist()], np.float32).reshape(
                x.shape
            )
            inputs = [x, keys, values, np.array(9, np.float32)]
            yield sample("lookup", inputs, lambda y=expected: y)
    keys = np.array([2, 5], np.int64)
    yield sample(
        "lookup", [keys, keys, keys + 1, np.array(0)], lambda: np.array([3, 6], np.int64), required=True
    )


def _tables() -> Iterator[Sample]:
    for dtype in (np.uint8, np.int8):
        x = (np.arange(24).reshape(2, 12) * 11).astype(np.uint8).view(dtype)
        for table in (np.arange(256)[::-1].astype(np.uint8), np.arange(256, dtype=np.float32) / 3):
            expected = table[x.view(np.uint8)]
            yield sample("table_lookup", [x, table], lambda y=expected: y)


def _levels() -> Iterator[Sample]:
    codes = np.arange(48).reshape(3, 16) * 7 % 16
    signed = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    books = {dt.i8: signed, dt.u8: range(0, 256, 16)}
    for dtype, levels in {**books, dt.i32: range(-9, 7), dt.f32: [k / 7 for k in range(16)]}.items():
        expected = np.array(levels).astype(dtype.storage)[codes]
        attrs = {"levels": tuple(levels), "dtype": dtype}
        yield sample("level", [codes.astype(dt.u4.storage)], lambda y=expected: y, **attrs)


def _couplings() -> Iterator[Sample]:
    """Pairs that agree: p is then what they follow from, as far as the tolerance goes."""
    for p in (np.array([[0.2, 0.8]]), np.array([[0.1, 0.3, 0.6], [1 / 3, 1 / 3, 1 / 3]])):
        r = p[:, :, None] / (p[:, :, None] + p[:, None, :])
        yield sample("coupled_probabilities", [r], lambda p=p: p, loose=3e11)
