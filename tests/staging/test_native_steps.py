"""Steps that native code runs: the same results as by the host, memory that is used again, and ends of loops."""

from __future__ import annotations

import _thread
import ctypes
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright
from tilewright.program.native import GroupNative
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import RunNative

RNG = np.random.default_rng(3)

SQUARES = """g (float[n] x, int64 trips) => (float[n] y, float[k, n] rows) {
    y, rows = Loop (trips, , x) <body = trip (int64 i, bool go, float[n] a) => (bool on, float[n] b, float[n] row) {
        on = Identity (go)
        t = Tanh (a)
        b = Add (t, x)
        row = Mul (b, b)
    }>
}"""

ENDLESS = """g (float[n] x) => (float[n] y) {
    yes = Constant <value = bool {1}> ()
    zero = Constant <value_float = 0.0> ()
    y = Loop (, yes, x) <body = trip (int64 i, bool go, float[n] a) => (bool on, float[n] b) {
        b = Neg (a)
        m = Abs (b)
        s = ReduceSum <keepdims = 0> (m)
        on = GreaterOrEqual (s, zero)
    }>
}"""


def compiled(graph: str, **options: Any) -> tilewright.Model:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()
    return tilewright.compile(model, **options)


def by_host(graph: str, monkeypatch: pytest.MonkeyPatch) -> tilewright.Model:
    """A model of which the host runs all that is between parts."""
    with monkeypatch.context() as patch:
        patch.setattr(GroupNative, "run", lambda *_: None)
        model = compiled(graph, cache=False)
    assert native_of(model) is None
    return model


def native_of(model: tilewright.Model) -> Any:
    return model._loaded.runs[0].native


def blocks(model: tilewright.Model) -> Iterator[int]:
    """The bytes of all blocks that wait in the memory of the last call."""
    native = native_of(model)
    words = native._frames[-1].words
    for _, slot in native.program.slots:
        block = words[slot + frame.FREE]
        while block:
            _, size, _, block = (ctypes.c_int64 * 4).from_address(block)
            yield size


def by_hand(x: np.ndarray, trips: int) -> tuple[np.ndarray, np.ndarray]:
    rows, a = [], x
    for _ in range(trips):
        a = np.tanh(a) + x
        rows.append(a * a)
    return a, np.array(rows).reshape(trips, *x.shape)


def test_one_call_runs_all_steps() -> None:
    model = compiled(SQUARES)
    (step,) = model.artifact.program.steps
    assert isinstance(step, RunNative) and step.loops
    assert [r.shape for r in model(np.ones(50, np.float32), np.array(0))] == [(50,), (0, 50)]
    for trips in (1, 7, 300):
        x = RNG.standard_normal(50).astype(np.float32)
        for found, expected in zip(model(x, np.array(trips)), by_hand(x, trips), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_host_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = compiled(SQUARES), by_host(SQUARES, monkeypatch)
    x, trips = RNG.standard_normal(50).astype(np.float32), np.array(9)
    assert all(map(np.array_equal, model(x, trips), other(x, trips)))


def test_states_take_turns_in_two_blocks() -> None:
    model = compiled(SQUARES)
    x = RNG.standard_normal(100_000).astype(np.float32)
    for trips in (10, 200):
        y, rows = model(x, np.array(trips))
        del y, rows
        model(x, np.array(1))
        states = [size for size in blocks(model) if size == x.nbytes]
        assert len(states) <= 3  # two of the state, and the row


def test_a_state_that_grows_is_not_allocated_in_each_trip() -> None:
    graph = """g (float[1] x, int64 trips) => (float[k] y) {
        y = Loop (trips, , x) <body = trip (int64 i, bool go, float[m] a) => (bool on, float[p] b) {
            on = Identity (go)
            b = Concat <axis = 0> (a, x)
        }>
    }"""
    model = compiled(graph)
    assert np.array_equal(model(np.ones(1, np.float32), np.array(500))[0], np.ones(501))
    assert len(list(blocks(model))) <= 6


def test_results_are_the_callers() -> None:
    model = compiled(SQUARES)
    x = RNG.standard_normal(30_000).astype(np.float32)
    calls = [model(x * k, np.array(3)) for k in range(4)]
    for k, results in enumerate(calls):
        for found, expected in zip(results, by_hand(x * np.float32(k), 3), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    kept = calls[2][1]
    copy = kept.copy()
    kept[0] += 1  # it may be written
    kept[0] -= 1
    model.trim()
    del calls, results
    model(x, np.array(5))
    model.close()
    np.testing.assert_allclose(kept, copy, atol=1e-6)


def test_memory_of_results_that_are_gone_serves_again() -> None:
    model = compiled(SQUARES)
    x = RNG.standard_normal(30_000).astype(np.float32)
    addresses = {model(x, np.array(3))[1].ctypes.data for _ in range(6)}
    assert len(addresses) <= 2


def test_an_endless_loop_is_ended_after_max_seconds() -> None:
    model = compiled(ENDLESS)
    assert native_of(model) is not None
    model.max_seconds = 0.05
    with pytest.raises(tilewright.TilewrightError, match=r"a loop was in trip \d+ after max_seconds=0.05"):
        model(np.ones(8, np.float32))
    with pytest.raises(tilewright.TilewrightError, match="max_seconds"):
        model(np.ones(8, np.float32))


@pytest.mark.parametrize("nested", [False, True])
def test_control_c_ends_an_endless_loop(nested: bool) -> None:
    graph = ENDLESS
    if nested:
        graph = """g (float[n] x) => (float[n] y) {
            yes = Constant <value = bool {1}> ()
            three = Constant <value_int = 1000> ()
            y = Loop (, yes, x) <body = trip (int64 i, bool go, float[n] a) => (bool on, float[n] b) {
                b = Loop (three, , a) <body = inner (int64 j, bool go_, float[n] c) => (bool on_, float[n] d) {
                    on_ = Identity (go_)
                    d = Neg (c)
                }>
                s = ReduceMax <keepdims = 0> (b)
                m = ReduceMin <keepdims = 0> (b)
                on = GreaterOrEqual (s, m)
            }>
        }"""
    model = compiled(graph)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):  # whenever it comes
        timer.start()
        model(np.ones(8, np.float32))
    timer.join()


def test_an_error_in_a_trip_is_told() -> None:
    graph = """g (float[n] x, int64 trips) => (float y) {
        zero = Constant <value_float = 0.0> ()
        y = Loop (trips, , zero) <body = trip (int64 i, bool go, float a) => (bool on, float b) {
            on = Identity (go)
            e = Gather (x, i)
            b = Add (a, e)
        }>
    }"""
    model = compiled(graph)
    x = np.arange(5, dtype=np.float32)
    assert model(x, np.array(5))[0] == 10
    with pytest.raises(tilewright.TilewrightError, match="out of range"):
        model(x, np.array(6))
    assert model(x, np.array(5))[0] == 10  # it goes on


def test_rows_of_different_shapes_are_refused() -> None:
    graph = """g (float[n] x, int64 trips) => (float[k, m] y) {
        axes = Constant <value_ints = [0]> ()
        zero = Constant <value_ints = [0]> ()
        yes = Constant <value = bool {1}> ()
        y = Loop (trips, yes) <body = trip (int64 i, bool go) => (bool on, float[p] row) {
            on = Identity (go)
            end = Unsqueeze (i, axes)
            row = Slice (x, zero, end, axes)
        }>
    }"""
    model = compiled(graph)
    x = np.arange(5, dtype=np.float32)
    assert model(x, np.array(1))[0].shape == (1, 0)
    with pytest.raises(tilewright.TilewrightError, match="rows that a loop collects have different shapes"):
        model(x, np.array(3))


def test_states_may_change_places() -> None:
    """A value lives on for as many trips as it is handed on."""
    graph = """g (float[n] x, float[n] y, float[n] z, int64 trips) => (float[n] p, float[n] q, float[n] r) {
        p, q, r = Loop (trips, , x, y, z) <body = trip (int64 i, bool go, float[n] a, float[n] b, float[n] c)
            => (bool on, float[n] d, float[n] a2, float[n] b2) {
            on = Identity (go)
            s = Add (b, c)
            d = Sub (s, a)
            a2 = Identity (a)
            b2 = Identity (b)
        }>
    }"""
    x, y, z = states = [RNG.integers(-9, 9, 5).astype(np.float32) for _ in range(3)]
    model = compiled(graph)
    for trips in (0, 1, 2, 3, 8):
        x, y, z = states
        for _ in range(trips):
            x, y, z = y + z - x, x, y
        for found, expected in zip(model(*states, np.array(trips)), (x, y, z), strict=True):
            assert np.array_equal(found, expected)


def test_branches_in_loops() -> None:
    graph = """g (float[8, 8] x, int64 trips) => (float[8, 8] y) {
        zero = Constant <value_float = 0.0> ()
        y = Loop (trips, , x) <body = trip (int64 i, bool go, float[8, 8] a) => (bool on, float[8, 8] b) {
            on = Identity (go)
            s = ReduceSum <keepdims = 0> (a)
            above = Greater (s, zero)
            b = If (above) <then_branch = one () => (float[8, 8] p) {
                m = MatMul (a, a)
                t = Tanh (m)
                p = Sub (t, x)
            }, else_branch = two () => (float[8, 8] q) {
                q = Sub (x, a)
            }>
        }>
    }"""
    x = RNG.standard_normal((8, 8)).astype(np.float32)
    model = compiled(graph)
    for trips in (0, 1, 2, 9):
        expected = x.astype(np.float64)
        for _ in range(trips):
            expected = np.tanh(expected @ expected) - x if expected.sum() > 0 else x - expected
        np.testing.assert_allclose(model(x, np.array(trips))[0], expected, rtol=1e-3, atol=1e-4)


def test_many_threads_call_at_once() -> None:
    model = compiled(SQUARES, threads=2)
    x = RNG.standard_normal(3000).astype(np.float32)
    expected = model(x, np.array(40))
    wrong: list[int] = []

    def call() -> None:
        for k in range(20):
            if not all(map(np.array_equal, model(x, np.array(40)), expected)):
                wrong.append(k)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_models_go_on_in_a_forked_process() -> None:
    model = compiled(SQUARES, threads=2)
    x = RNG.standard_normal(3000).astype(np.float32)
    expected = model(x, np.array(4))
    child = os.fork()
    if not child:
        os._exit(0 if all(map(np.array_equal, model(x, np.array(4)), expected)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_artefacts_keep_their_native_steps() -> None:
    model = compiled(SQUARES)
    again = pickle.loads(pickle.dumps(model))
    assert native_of(again) is not None and again.artifact.program == model.artifact.program
    x = RNG.standard_normal(10).astype(np.float32)
    assert all(map(np.array_equal, again(x, np.array(4)), model(x, np.array(4))))


def test_an_executor_cannot_run_what_native_code_calls() -> None:
    artifact = compiled(SQUARES).artifact

    class Other:
        plan = run_profiled = None

        def run(self, call: int) -> int:
            return 0

        def create_pool(self, threads: int) -> None:
            return None

        def destroy_pool(self, address: int) -> None: ...

    with pytest.raises(tilewright.ArtifactError, match="executor= cannot run parts that native code calls"):
        tilewright.Model(artifact, 1, lambda _: Other())


ROWS = """g (float[n, 3] x, int64 trips) => (float[n, 3] y, float[k, n, 3] same, float[k, m] flat, float[k, p] chosen) {
    none = Constant <value_ints = [-1]> ()
    y, same, flat, chosen = Loop (trips, , x) <body = trip (int64 i, bool go, float[n, 3] a)
        => (bool on, float[n, 3] b, float[n, 3] row, float[m] line, float[p] positive) {
        on = Identity (go)
        b = Neg (a)
        row = Exp (a)
        line = Reshape (a, none)
        zero = Constant <value_float = 0.0> ()
        above = Greater (x, zero)
        positive = Compress (x, above)
    }>
}"""


@pytest.mark.parametrize("natively", [False, True])
def test_rows_of_a_loop_without_a_trip(natively: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the sizes that are known outside of the loop, and 0 where a trip would compute them."""
    graph = ROWS.replace("above = Greater (x, zero)", "wide = Greater (x, zero)\n        above = Reshape (wide, none)")
    model = compiled(graph) if natively else by_host(graph, monkeypatch)
    x = np.ones((4, 3), np.float32)
    assert [r.shape for r in model(x, np.array(0))] == [(4, 3), (0, 4, 3), (0, 12), (0, 0)]
    assert [r.shape for r in model(x, np.array(2))] == [(4, 3), (2, 4, 3), (2, 12), (2, 12)]


def test_rows_without_a_trip_are_added_to_what_has_their_sizes() -> None:
    graph = SQUARES.replace("(float[n] y, float[k, n] rows)", "(float[n] y, float[k, n] sum)")
    model = compiled(graph.removesuffix("}") + "    sum = Add (rows, x)\n}")
    assert [r.shape for r in model(np.ones(5, np.float32), np.array(0))] == [(5,), (0, 5)]


CACHE = """g (float[m, 8] cache, float[8] x, int64 trips) => (float[m, 8] y, float[m, 8] z, float[k, 1, 8] rows) {
    columns = Constant <value_ints = [0]> ()
    y, z, rows = Loop (trips, , cache, cache) <body = trip (int64 i, bool go, float[m, 8] a, float[m, 8] b)
        => (bool on, float[m, 8] a2, float[m, 8] b2, float[1, 8] row) {
        on = Identity (go)
        at = Unsqueeze (i, columns)
        before = Gather (a, at)
        row = ReduceSum (before, columns)
        new = Add (row, x)
        place = Unsqueeze (at, columns)
        PUT
        b2 = Tanh (b)
    }>
}"""

PUTS = {
    "in place": "a2 = ScatterND (a, place, new)",
    "read afterwards": "put = ScatterND (a, place, new)\n a2 = Sub (put, a)",
    "of the other state": "a2 = ScatterND (b, place, new)",
    "in a branch": """half = Constant <value = int64[1] {2}> ()
        odd = Mod (at, half)
        none = Constant <value = int64[1] {0}> ()
        even = Equal (odd, none)
        a2 = If (even) <then_branch = put () => (float[m, 8] p) {
            p = ScatterND (a, place, new)
        }, else_branch = keep () => (float[m, 8] q) {
            w = MatMul (a, weights)
            q = Sub (a, w)
        }>""",
}


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_states_are_overwritten_where_nobody_needs_them(
    put: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the host computes, which gives each value memory of its own, and the inputs stay as they are."""
    text = CACHE.replace("PUT", PUTS[put])
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}')
    weights = RNG.standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    compiled = tilewright.compile(model.SerializeToString(), threads=threads)
    cache, x = RNG.standard_normal((3000, 8)).astype(np.float32), RNG.standard_normal(8).astype(np.float32)
    given = cache.copy()
    results = [compiled(given, x, np.array(trips)) for trips in (9, 1, 0, 9)]
    assert np.array_equal(given, cache)
    monkeypatch.setattr(GroupNative, "run", lambda *_: None)
    compiled = tilewright.compile(model.SerializeToString(), threads=threads, cache=False)
    assert native_of(compiled) is None
    for found, trips in zip(results, (9, 1, 0, 9), strict=True):
        assert all(map(np.array_equal, found, compiled(cache, x, np.array(trips))))


def test_one_block_serves_a_state_that_is_overwritten() -> None:
    text = CACHE.replace("PUT", PUTS["in place"]).replace("b2 = Tanh (b)", "b2 = Identity (b)")
    model = compiled(text)
    cache = np.ones((3000, 8), np.float32)
    y, _, _ = model(cache, np.ones(8, np.float32), np.array(50))
    del y
    model(cache[:1], np.ones(8, np.float32), np.array(1))
    assert sum(size >= cache.nbytes for size in blocks(model)) <= 2  # that of the state, and the caller's



PICKED = """g (float[n] x, float[n] z, bool c) => (float[n] y) {
    y = If (c) <
        then_branch = t () => (float[n] a) { a = Identity (x) },
        else_branch = e () => (float[n] b) { b = Add (x, z) }
    >
}"""


def test_inputs_are_looked_at_in_each_call() -> None:
    """Also where calls before had the same shapes, or took the other branch."""
    model = compiled(PICKED)
    x, z = (RNG.standard_normal(5).astype(np.float32) for _ in range(2))
    yes, no = np.array(True), np.array(False)
    for _ in range(2):
        (same,) = model(x, z, yes)
        assert same is not x and not np.shares_memory(same, x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(model(x, z, no)[0], x + z)
        np.testing.assert_array_equal(model(x[::-1], z, no)[0], x[::-1] + z)
        with pytest.raises(tilewright.TilewrightError, match="n = 5"):
            model(x, z[:4], no)
        with pytest.raises(tilewright.TilewrightError, match="must be float32"):
            model(x.astype(np.float64), z, no)
        np.testing.assert_array_equal(model(x[:4], z[:4], no)[0], x[:4] + z[:4])
        frozen = x.copy()
        frozen.flags.writeable = False
        (given,) = model(frozen, z, yes)
        assert given.flags.writeable and not np.shares_memory(given, frozen)


def test_values_of_a_call_are_let_go_of_with_its_memory() -> None:
    """A call leaves its values in their blocks for the next one; who frees the frame frees these as well."""
    model = compiled("g (float[n] x) => (int64[1, k] y) { y = NonZero (x) }")
    model(np.ones(5, np.float32))
    code, order = native_of(model).code, []
    clear, free = code.clear, code.free
    code.clear = lambda address: (order.append("clear"), clear(address))
    code.free = lambda address: (order.append("free"), free(address))
    model.trim()
    assert order == ["clear", "free"]
    assert model(np.ones(3, np.float32))[0].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("ends", ["(y, y2)", "(y2, y)"])
def test_a_program_of_one_step_gives_its_outputs_in_their_order(ends: str) -> None:
    """And takes its inputs in any."""
    first, second = ends.strip("()").split(", ")
    types = {"y": "int64[1, k] y", "y2": "float[m] y2"}
    graph = f"""g (float[n] x, bool[n] c) => ({types[first]}, {types[second]}) {{
        y2 = Compress <axis = 0> (x, c)
        y = NonZero (x)
    }}"""
    model = compiled(graph)
    assert model._loaded.runs[0]._whole is not None
    x, c = np.array([0, 1, 2, 0], np.float32), np.array([True, False, True, False])
    expected = {"y": [[1, 2]], "y2": [0, 2]}
    assert [r.tolist() for r in model(x, c)] == [expected[first], expected[second]]


def test_one_value_that_is_two_outputs_is_two_arrays() -> None:
    model = compiled("g (float[n] x) => (int64[1, k] y, int64[1, k] z) { y = NonZero (x) \n z = Identity (y) }")
    y, z = model(np.ones(3, np.float32))
    y[:] = 7
    assert z.tolist() == [[0, 1, 2]]


def test_a_call_after_one_that_failed() -> None:
    graph = """g (float[n] x, float[m] z, bool[n] c) => (float[k] y) {
        chosen = Compress <axis = 0> (x, c)
        y = Add (chosen, z)
    }"""
    model = compiled(graph)
    x, z = np.arange(4, dtype=np.float32), np.ones(2, np.float32)
    assert model(x, z, np.array([True, False, False, True]))[0].tolist() == [1, 4]
    with pytest.raises(tilewright.TilewrightError):
        model(x, z, np.array([True, False, True, True]))
    assert model(x, z, np.array([False, True, True, False]))[0].tolist() == [2, 3]


def test_sizes_that_data_ask_for_again_and_others() -> None:
    """Sizes are computed in each call; where they are those of the call before, nothing else is."""
    model = compiled("g (float[n] x, int64[1] more) => (float[n, k] y) { \n"
                     "one = Constant <value_ints = [1]> () \n wide = Unsqueeze (x, one) \n"
                     "shape = Concat <axis = 0> (one, more) \n y = Expand (wide, shape) }")  # fmt: skip
    for n, more in [(2, 3), (2, 3), (2, 4), (5, 4), (5, 4), (5, 0), (2, 3)]:
        (y,) = model(np.arange(n, dtype=np.float32), np.array([more]))
        assert y.tolist() == [[float(k)] * more for k in range(n)]
