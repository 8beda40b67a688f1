"""Branches, loops, and sizes that data decide."""

from __future__ import annotations

import numpy as np

from tests.exporters.round_trip import agree, operators, parsed, run

RNG = np.random.default_rng(0)

IF = """
g (float[n, 40] x, bool c) => (float[n, 40] y) {
    y = If (c) <
        then_branch = a () => (float[n, 40] p) { s = MatMul (x, w) p = Add (s, x) },
        else_branch = b () => (float[n, 40] q) { t = MatMul (w, w) q = MatMul (x, t) }
    >
}
"""

LOOP = """
g (int64 trips, float[n] x) => (float[n] y, float[k, n] rows) {
    yes = Constant <value = bool {1}> ()
    y, rows = Loop (trips, yes, x) <body = b (int64 i, bool go, float[n] s) => (bool again, float[n] t, float[n] row) {
        again = Identity (go)
        t = Mul (s, s)
        f = Cast <to = 1> (i)
        row = Add (t, f)
    }>
}
"""


def test_a_branch_is_if() -> None:
    w = (RNG.standard_normal((40, 40)) / 6).astype(np.float32)
    x = RNG.standard_normal((300, 40)).astype(np.float32)
    written = agree(parsed(IF, w=w), {"x": x, "c": np.True_}, {"x": x[:3], "c": np.False_}, rtol=1e-4)
    assert "If" in operators(written) or "Where" in operators(written)


def test_a_loop_is_loop() -> None:
    x = np.array([0.5, 1.5], np.float32)
    feeds = [{"trips": np.int64(k), "x": x} for k in (0, 1, 4)]
    written = agree(parsed(LOOP), *feeds[1:])
    assert operators(written) == ["Loop", "Shape", "Gather", "Shape", "Concat", "Reshape"]
    assert run(written, feeds[0])[1].shape == (0, 2)  # the rows of no trip


def test_sizes_that_data_decide() -> None:
    proto = parsed("g (float[a, b] x) => (int64[2, k] places, float[k] chosen) "
                   "{ places = NonZero (x) t = Transpose (places) chosen = GatherND (x, t) }")  # fmt: skip
    x = (RNG.standard_normal((4, 5)) * (RNG.random((4, 5)) < 0.5)).astype(np.float32)
    written = agree(proto, {"x": x}, {"x": np.zeros((2, 3), np.float32)})
    assert operators(written) == ["NonZero", "Transpose", "GatherND"]


def test_boxes() -> None:
    proto = parsed(
        "g (float[1, n, 4] boxes, float[1, 2, n] scores) => (int64[k, 3] kept) { most = Constant <value_ints = [3]> () "
        "half = Constant <value_floats = [0.5]> () kept = NonMaxSuppression (boxes, scores, most, half) }"
    )
    corners = RNG.random((1, 12, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + 0.4], axis=2)
    written = agree(proto, {"boxes": boxes, "scores": RNG.random((1, 2, 12)).astype(np.float32)})
    assert "NonMaxSuppression" in operators(written)


def test_dims_that_may_be_one_keep_both_meanings() -> None:
    proto = parsed("g (float[a] x, float[b] y) => (float[c] z) { s = Add (x, y) z = Tanh (s) }")
    x = RNG.standard_normal(4).astype(np.float32)
    written = agree(proto, {"x": x, "y": x[:1]}, {"x": x[:1], "y": x}, {"x": x, "y": x})
    assert operators(written) == ["Add", "Tanh"]


def test_shapes_that_are_computed() -> None:
    proto = parsed(
        "g (float[a, b, c] x) => (float[n, m] y, int64[2] ends) { s = Shape (x) zero = Constant <value_ints = [0]> () "
        "two = Constant <value_ints = [2]> () d = Gather (s, two) rest = Constant <value_ints = [-1]> () "
        "half = Div (d, two) shape = Concat <axis = 0> (rest, half) y = Reshape (x, shape) "
        "a0 = Gather (s, zero) ends = Concat <axis = 0> (a0, half) }"
    )
    agree(proto, {"x": RNG.standard_normal((3, 5, 4)).astype(np.float32)})
