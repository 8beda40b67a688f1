"""Branches and loops whose ways and ends are computed: the host takes them, without compiling anything again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import compiled, model_of
from tilewright.runtime.errors import InputError


def body(nodes: list, inputs: list, outputs: list, constants: dict[str, np.ndarray] | None = None) -> onnx.GraphProto:
    given = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    infos = [[h.make_tensor_value_info(*i) for i in side] for side in (inputs, outputs)]
    return h.make_graph(nodes, "body", *infos, given)


TRIP = [("trip", T.INT64, []), ("going", T.BOOL, [])]


def doubling() -> onnx.GraphProto:
    """state, twice as long after each trip; the sum of it is a row."""
    return body(
        [
            h.make_node("Concat", ["state", "state"], ["longer"], axis=0),
            h.make_node("ReduceSum", ["longer"], ["row"], keepdims=0),
            h.make_node("Identity", ["going"], ["goes_on"]),
        ],
        [*TRIP, ("state", T.FLOAT, None)],
        [("goes_on", T.BOOL, []), ("longer", T.FLOAT, None), ("row", T.FLOAT, [])],
    )


def test_a_loop_whose_state_grows() -> None:
    node = h.make_node("Loop", ["trips", "", "x"], ["y", "rows"], body=doubling())
    model = compiled([node], [("trips", T.INT64, []), ("x", T.FLOAT, ["n"])], ["y", "rows"])
    for trips, n in [(3, 2), (0, 5), (1, 1), (6, 3), (-2, 4)]:
        x = np.arange(n, dtype=np.float32)
        y, rows = model(np.array(trips), x)
        np.testing.assert_array_equal(y, np.tile(x, 2 ** max(trips, 0)))
        np.testing.assert_allclose(rows, [x.sum() * 2.0 ** (k + 1) for k in range(max(trips, 0))])
        assert rows.shape == (max(trips, 0),)


def test_a_loop_that_ends_by_what_it_computes() -> None:
    """Collatz: the state until it is 1, and how many trips that takes."""
    step = body(
        [
            h.make_node("Mod", ["n", "two"], ["odd"]),
            h.make_node("Cast", ["odd"], ["is_odd"], to=T.BOOL),
            h.make_node("Mul", ["n", "three"], ["tripled"]),
            h.make_node("Add", ["tripled", "one"], ["up"]),
            h.make_node("Div", ["n", "two"], ["down"]),
            h.make_node("Where", ["is_odd", "up", "down"], ["next"]),
            h.make_node("Greater", ["next", "one"], ["goes_on"]),
            h.make_node("Identity", ["next"], ["row"]),
        ],
        [*TRIP, ("n", T.INT64, [])],
        [("goes_on", T.BOOL, []), ("next", T.INT64, []), ("row", T.INT64, [])],
        {"one": np.int64(1), "two": np.int64(2), "three": np.int64(3)},
    )
    node = h.make_node("Loop", ["", "begins", "n0"], ["last", "rows"], body=step)
    model = compiled([node], [("begins", T.BOOL, []), ("n0", T.INT64, [])], ["last", "rows"])
    for start in (6, 27, 1):
        n, expected = start, []
        while True:
            n = 3 * n + 1 if n % 2 else n // 2
            expected.append(n)
            if n <= 1:
                break
        last, rows = model(np.array(True), np.array(start))
        assert last == 1 and rows.tolist() == expected
    last, rows = model(np.array(False), np.array(5))
    assert last == 5 and rows.shape == (0,)


def test_branches_of_different_shapes_and_weights_from_outside() -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    then = body([h.make_node("MatMul", ["x", "w"], ["product"])], [], [("product", T.FLOAT, None)])
    other = body([h.make_node("Concat", ["x", "x"], ["both"], axis=0)], [], [("both", T.FLOAT, None)])
    nodes = [
        h.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        h.make_node("Greater", ["sum", "zero"], ["positive"]),
        h.make_node("If", ["positive"], ["chosen"], then_branch=then, else_branch=other),
        h.make_node("Neg", ["chosen"], ["y"]),
    ]
    model = compiled(nodes, [("x", T.FLOAT, ["n", 3])], ["y"], {"w": weight, "zero": np.float32(0)})
    for n in (1, 4):
        x = np.ones((n, 3), np.float32)
        np.testing.assert_allclose(model(x)[0], -(x @ weight))
        np.testing.assert_allclose(model(-x)[0], np.concatenate([x, x]))
    holders = [part for part in model.artifact.parts if part.constant_table]
    assert [c.shape for part in holders for c in part.constant_table if c.shape == (3, 4)] == [(3, 4)]


@pytest.mark.parametrize("in_a_branch", [True, False])
def test_what_is_decided_for_all_calls_is_checked_in_each(in_a_branch: bool) -> None:
    """The rank is that which the next node takes; what it depends on is a size that nothing else needs."""
    flat = body([h.make_node("Identity", ["y"], ["a"])], [], [("a", T.FLOAT, None)])
    long = body([h.make_node("Unsqueeze", ["y", "zero"], ["b"])], [], [("b", T.FLOAT, None)])
    constants = {"zero": np.array([0], np.int64), "one": np.array([1], np.int64)}
    nodes = [
        h.make_node("NonZero", ["x"], ["places"]),
        h.make_node("Shape", ["places"], ["count"], start=1),
        h.make_node("Equal", ["count", "zero"], ["none"]),
        h.make_node("If", ["none"], ["chosen"], then_branch=flat, else_branch=long),
        h.make_node("Transpose", ["chosen"], ["out"], perm=[1, 0]),
    ]
    inputs: list = [("x", T.FLOAT, [4]), ("y", T.FLOAT, [3])]
    if in_a_branch:
        ways = {name: body(nodes, [], [("out", T.FLOAT, None)], constants) for name in ("then_branch", "else_branch")}
        nodes, inputs = [h.make_node("If", ["flag"], ["out"], **ways)], [*inputs, ("flag", T.BOOL, [])]
    model = compiled(nodes, inputs, ["out"], constants)
    y, flag = np.array([1, 2, 3], np.float32), [np.array(True)] * in_a_branch
    np.testing.assert_array_equal(model(np.ones(4, np.float32), y, *flag)[0], y.reshape(3, 1))
    with pytest.raises(tilewright.InputError, match="the shape of what If gives depends on dims"):
        model(np.zeros(4, np.float32), y, *flag)


def test_a_loop_in_a_branch_in_a_loop() -> None:
    inner = body(
        [
            h.make_node("Add", ["v", "trip_f"], ["w"]),
            h.make_node("Identity", ["going"], ["goes_on"]),
        ],
        [("trip2", T.INT64, []), ("going", T.BOOL, []), ("v", T.FLOAT, [])],
        [("goes_on", T.BOOL, []), ("w", T.FLOAT, [])],
    )
    then = body([h.make_node("Loop", ["trip", "", "s"], ["looped"], body=inner)], [], [("looped", T.FLOAT, [])])
    other = body([h.make_node("Mul", ["s", "ten"], ["times"])], [], [("times", T.FLOAT, [])])
    outer = body(
        [
            h.make_node("Cast", ["trip"], ["trip_f"], to=T.FLOAT),
            h.make_node("Mod", ["trip", "two"], ["odd"]),
            h.make_node("Cast", ["odd"], ["is_odd"], to=T.BOOL),
            h.make_node("If", ["is_odd"], ["next"], then_branch=then, else_branch=other),
            h.make_node("Identity", ["going"], ["goes_on"]),
        ],
        [*TRIP, ("s", T.FLOAT, [])],
        [("goes_on", T.BOOL, []), ("next", T.FLOAT, [])],
        {"two": np.int64(2), "ten": np.float32(10)},
    )
    node = h.make_node("Loop", ["trips", "", "x"], ["y"], body=outer)
    model = compiled([node], [("trips", T.INT64, []), ("x", T.FLOAT, [])], ["y"])
    for trips in range(6):
        s = 1.0
        for t in range(trips):
            s = s + t * t if t % 2 else s * 10
        assert model(np.array(trips), np.float32(1))[0] == s


@pytest.mark.parametrize("back", [0, 1])
def test_a_scan_over_an_unknown_length(back: int) -> None:
    step = body(
        [h.make_node("Add", ["total", "e"], ["sum"]), h.make_node("Identity", ["sum"], ["row"])],
        [("total", T.FLOAT, [2]), ("e", T.FLOAT, [2])],
        [("sum", T.FLOAT, [2]), ("row", T.FLOAT, [2])],
    )
    node = h.make_node(
        "Scan", ["s", "x"], ["last", "rows"], body=step, num_scan_inputs=1, scan_input_directions=[back],
        scan_input_axes=[1], scan_output_axes=[1], scan_output_directions=[back],
    )  # fmt: skip
    model = compiled([node], [("s", T.FLOAT, [2]), ("x", T.FLOAT, [2, "n"])], ["last", "rows"])
    rng = np.random.default_rng(3)
    for n in (1, 5, 0, 40):
        x = rng.standard_normal((2, n)).astype(np.float32)
        last, rows = model(np.ones(2, np.float32), x)
        along = np.cumsum(x[:, ::-1], axis=1)[:, ::-1] if back else np.cumsum(x, axis=1)
        np.testing.assert_allclose(rows, 1 + along, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last, 1 + x.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_rows_of_different_shapes_are_refused_in_the_call() -> None:
    grow = body(
        [
            h.make_node("Concat", ["state", "state"], ["longer"], axis=0),
            h.make_node("Identity", ["longer"], ["row"]),
            h.make_node("Identity", ["going"], ["goes_on"]),
        ],
        [*TRIP, ("state", T.FLOAT, None)],
        [("goes_on", T.BOOL, []), ("longer", T.FLOAT, None), ("row", T.FLOAT, None)],
    )
    node = h.make_node("Loop", ["trips", "", "x"], ["y", "rows"], body=grow)
    model = compiled([node], [("trips", T.INT64, []), ("x", T.FLOAT, [1])], ["y", "rows"])
    assert model(np.array(1), np.ones(1, np.float32))[1].shape == (1, 2)
    with pytest.raises(tilewright.TilewrightError, match="different shapes"):
        model(np.array(2), np.ones(1, np.float32))


def test_a_state_that_changes_its_rank_is_refused() -> None:
    grow = body(
        [h.make_node("Unsqueeze", ["s", "zero"], ["t"]), h.make_node("Identity", ["going"], ["goes_on"])],
        [*TRIP, ("s", T.FLOAT, None)],
        [("goes_on", T.BOOL, []), ("t", T.FLOAT, None)],
        {"zero": np.array([0])},
    )
    node = h.make_node("Loop", ["trips", "", "x"], ["y"], body=grow)
    with pytest.raises(tilewright.UnsupportedError, match="ranks must be the same"):
        compiled([node], [("trips", T.INT64, []), ("x", T.FLOAT, [1])], ["y"])


def endless(going: str) -> tilewright.Model:
    step = body(
        [h.make_node("Add", ["s", "one"], ["t"]), h.make_node("Identity", [going], ["goes_on"])],
        [*TRIP, ("s", T.FLOAT, [3])],
        [("goes_on", T.BOOL, []), ("t", T.FLOAT, [3])],
        {"one": np.float32(1)},
    )
    node = h.make_node("Loop", ["trips", "", "x"], ["y"], body=step)
    return compiled(
        [node], [("x", T.FLOAT, [3]), ("c", T.BOOL, [])], ["y"], {"trips": np.array(2**62), "yes": np.array(True)}
    )


@pytest.mark.parametrize("going", ["going", "yes"])
def test_loops_that_never_end_are_refused(going: str) -> None:
    with pytest.raises(tilewright.UnsupportedError, match="would never end"):
        endless(going)


def test_loops_are_ended_after_max_seconds() -> None:
    model = endless("c")
    assert model(np.zeros(3, np.float32), np.array(False))[0].tolist() == [1.0] * 3
    model.max_seconds = 0.05
    with pytest.raises(tilewright.TilewrightError, match=r"in trip \d+ after max_seconds=0.05"):
        model(np.zeros(3, np.float32), np.array(True))
    assert model(np.zeros(3, np.float32), np.array(False))[0].tolist() == [1.0] * 3


def test_short_loops_of_known_length_are_unrolled() -> None:
    node = h.make_node("Loop", ["trips", "", "x"], ["y", "rows"], body=doubling())
    model = compiled([node], [("x", T.FLOAT, [3])], ["y", "rows"], {"trips": np.array(4)})
    assert model.artifact.program is None
    assert model(np.ones(3, np.float32))[0].shape == (48,)


def test_long_loops_are_not() -> None:
    node = h.make_node("Loop", ["trips", "", "x"], ["y"], body=body(
        [h.make_node("Add", ["s", "one"], ["t"]), h.make_node("Identity", ["going"], ["goes_on"])],
        [*TRIP, ("s", T.FLOAT, [3])],
        [("goes_on", T.BOOL, []), ("t", T.FLOAT, [3])],
        {"one": np.float32(1)},
    ))  # fmt: skip
    model = compiled([node], [("x", T.FLOAT, [3])], ["y"], {"trips": np.array(3000)})
    assert model.artifact.program is not None and len(model.artifact.parts) <= 2
    np.testing.assert_array_equal(model(np.zeros(3, np.float32))[0], [3000.0] * 3)


def test_models_are_the_same_after_saving() -> None:
    node = h.make_node("Loop", ["trips", "", "x"], ["y", "rows"], body=doubling())
    model = compiled([node], [("trips", T.INT64, []), ("x", T.FLOAT, ["n"])], ["y", "rows"])
    other = tilewright.load(model.artifact.to_bytes())
    assert other.artifact.program == model.artifact.program
    assert other(np.array(2), np.ones(2, np.float32))[0].shape == (8,)


def test_conditions_on_what_a_loop_computes_are_checked_after_it() -> None:
    """The body sees no result of its own loop: a range as long as that says, of which a loop's body knows nothing."""
    step = body(
        [h.make_node("Add", ["n", "by"], ["next"]), h.make_node("Identity", ["c"], ["go"])],
        [("i", T.INT64, []), ("c", T.BOOL, []), ("n", T.INT64, [])], [("go", T.BOOL, []), ("next", T.INT64, [])],
        {"by": np.array(3)},
    )  # fmt: skip
    nodes = [
        h.make_node("Loop", ["trips", "", "n"], ["length"], body=step),
        h.make_node("Range", ["zero", "length", "one"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    made = model_of(nodes, [("trips", T.INT64, []), ("n", T.INT64, [])], ["y"], constants)
    model = tilewright.compile(made, cache=False, verify=True, threads=1)
    for trips, first in ((4, 2), (0, 5), (1, -7)):
        np.testing.assert_array_equal(model(np.array(trips), np.array(first))[0], np.arange(first + 3 * trips))
    with pytest.raises(InputError, match="Range has more elements than can be counted"):
        model(np.array(1), np.array(5 << 60))
