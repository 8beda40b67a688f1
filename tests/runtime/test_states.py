"""States: what a model keeps from call to call is what its caller would hand on."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper, parser

import tilewright
from tests.staging.models import model_of
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, OptionError
from tilewright.runtime.report.records import StateRecord
from tilewright.stages import programs
from tilewright.target.host import host_target

RNG = np.random.default_rng(8)

SUMS = """g (float[n, 4] x, float[1, 8] h) => (float[1, 8] y, float[1, 8] hn) {
    s = ReduceSum <keepdims = 1> (x)
    a = Tanh (h)
    hn = Add (a, s)
    y = Mul (hn, s)
}"""
SWAPPED = """g (float[1, 40] x, float[1, 40] h) => (float[1, 40] y, float[1, 40] hn) {
    back = Constant <value_ints = [-1]> ()
    end = Constant <value_ints = [-100]> ()
    axis = Constant <value_ints = [1]> ()
    turned = Slice (h, back, end, axis, back)
    hn = Add (turned, x)
    y = Tanh (hn)
}"""
READ_FIRST = """g (float[1, 8] x, float[1, 8] h) => (float[1, 8] y, float[1, 8] hn)
    <float[8, 8] w = {{{}}}> {{
    p = MatMul (h, w)
    y = Softmax (p)
    q = MatMul (y, w)
    hn = Add (q, x)
}}""".format(", ".join(f"{x:.2f}" for x in np.linspace(-0.3, 0.3, 64)))
LOOP = """g (float[4] x, int64 trips, float[4] h) => (float[4] y, float[4] hn) {
    hn = Loop (trips, , h) <body = trip (int64 i, bool go, float[4] a) => (bool on, float[4] b) {
        on = Identity (go)
        b = Add (a, x)
    }>
    y = Mul (hn, x)
}"""
CACHE = """g (float[1, 3] row, float[16, 3] cache, int64[1] past)
        => (float[k, 3] seen, float[16, 3] next, int64[1] more) {
    one = Constant <value_ints = [1]> ()
    zero = Constant <value_ints = [0]> ()
    at = Unsqueeze (past, zero)
    next = ScatterND (cache, at, row)
    more = Add (past, one)
    seen = Slice (next, zero, more, zero)
}"""
KEPT = """g (float[3] x, float[3] h) => (float[3] y, float[3] hn) {
    hn = Identity (h)
    y = Add (x, h)
}"""
TWICE = """g (float[3] x, float[3] h) => (float[3] y, float[3] hn) {
    hn = Add (x, h)
    y = Identity (hn)
}"""

PARTS_KEPT = """g (float[4] x, float[4] h) => (float[4] before, int64[1, k] places, float[4] hn) {
    before = Identity (h)
    hn = Add (h, x)
    places = NonZero (hn)
}"""
PARTS_EXCHANGED = """g (float[3] x, float[3] g, float[3] h) => (int64[1, k] places, float[3] gn, float[3] hn) {
    places = NonZero (x)
    gn = Identity (h)
    hn = Add (g, x)
}"""
NO_TRIP = """g (float[3] x, int64 trips, float[3] h) => (float[3] y, float[3] hn) {
    y = Loop (trips, , h) <body = trip (int64 i, bool go, float[3] a) => (bool on, float[3] b) {
        on = Identity (go)
        b = Add (a, x)
    }>
    hn = Add (y, x)
}"""
LENGTH = """g (float[3] x, int64 place, float[3] h) => (int64 count, seq(float[3]) held, float[3] hn) {
    pair = SequenceConstruct (h, x)
    held = SequenceErase (pair, place)
    count = SequenceLength (held)
    hn = Add (h, x)
}"""


def source(graph: str) -> bytes:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()


def compiled(model: Any, **options: Any) -> tilewright.Model:
    return tilewright.compile(model, cache=False, threads=1, verify=True, **options)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ways(model: tilewright.Model) -> list[str]:
    return [record.update for record in model.report().states]


CASES: dict[str, tuple[str, dict[str, str], Any, str]] = {
    "sums": (SUMS, {"h": "hn"}, lambda k: [floats(k, 4)], "in place"),
    "swapped": (SWAPPED, {"h": "hn"}, lambda k: [floats(1, 40)], "swapped"),
    "read first": (READ_FIRST, {"h": "hn"}, lambda k: [floats(1, 8)], "in place"),
    "loop": (LOOP, {"h": "hn"}, lambda k: [floats(4), np.array(k % 3)], "handed on"),
    "cache": (CACHE, {"cache": "next", "past": "more"}, lambda k: [floats(1, 3)], "in place"),
    "kept": (KEPT, {"h": "hn"}, lambda k: [floats(3)], "swapped"),
    "twice": (TWICE, {"h": "hn"}, lambda k: [floats(3)], "swapped"),
    "given by parts": (PARTS_KEPT, {"h": "hn"}, lambda k: [floats(4)], "handed on"),
    "exchanged": (PARTS_EXCHANGED, {"g": "gn", "h": "hn"}, lambda k: [floats(3)], "handed on"),
    "no trip": (NO_TRIP, {"h": "hn"}, lambda k: [floats(3), np.array(k % 2)], "handed on"),
    "in a sequence": (LENGTH, {"h": "hn"}, lambda k: [floats(3), np.array(k % 2)], "handed on"),
}


@pytest.mark.parametrize("graph, states, inputs, way", CASES.values(), ids=CASES.keys())
def test_they_are_what_a_caller_would_hand_on(graph: str, states: dict[str, str], inputs: Any, way: str) -> None:
    plain, model = compiled(source(graph)), compiled(source(graph), states=states)
    assert way in ways(model)
    assert [info.name for info in model.inputs] == [i.name for i in plain.inputs if i.name not in states]
    values = {name: model.state(name) for name in states}
    assert not any(value.any() for value in values.values())
    for k in range(1, 6):
        given = inputs(k)
        by_name = dict(zip([info.name for info in model.inputs], given, strict=True))
        wanted = plain.run_dict({**by_name, **values})
        found = model.run_dict(by_name)
        assert found.keys() == wanted.keys() - set(states.values())
        for name, array in found.items():
            np.testing.assert_array_equal(array, wanted[name])
        values = {name: wanted[output] for name, output in states.items()}
        for name, array in values.items():
            np.testing.assert_array_equal(model.state(name), array)


@pytest.mark.parametrize("graph, states, inputs, way", CASES.values(), ids=CASES.keys())
def test_the_program_keeps_them_too(graph: str, states: dict[str, str], inputs: Any, way: str) -> None:
    """The interpreter of the program that is compiled, kernels in their places."""
    setting = Setting.of(Options(verify=True, states=states), host_target())
    model, module = compiled(source(graph), states=states), load_onnx(source(graph))
    module = Compilation(module, setting).run("planned").whole()
    held: dict[str, np.ndarray] = {}
    for k in range(1, 4):
        given = inputs(k)
        for found, wanted in zip(run_program(module, given, held), model(*given), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        for name in states:
            np.testing.assert_allclose(held[name], model.state(name), rtol=1e-5, atol=1e-6)


def test_states_of_a_program_of_parts_change_places() -> None:
    model = compiled(source(PARTS_EXCHANGED.replace("Add (g, x)", "Identity (g)")), states={"g": "gn", "h": "hn"})
    values = {name: floats(3) for name in "gh"}
    for name, value in values.items():
        model.set_state(name, value)
    for k in range(3):
        model(floats(3))
        for name, other in zip("gh", "gh" if k % 2 else "hg", strict=True):
            np.testing.assert_array_equal(model.state(name), values[other])


def lstm() -> bytes:
    w, r = (numpy_helper.from_array(floats(1, 20, n) / 3, name) for n, name in ((3, "w"), (5, "r")))
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "", "", "h0", "c0"], ["y", "hn", "cn"], hidden_size=5)]
    inputs = [helper.make_tensor_value_info("x", T.FLOAT, ["n", "batch", 3])]
    inputs += [helper.make_tensor_value_info(name, T.FLOAT, [1, "batch", 5]) for name in ("h0", "c0")]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "hn", "cn")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [w, r])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_an_lstm_over_a_sequence_in_pieces_gives_what_it_gives_for_all_of_it() -> None:
    model, x = lstm(), floats(12, 2, 3)
    whole = tilewright.compile(model, cache=False, threads=1)
    y, hn, cn = whole(x, *np.zeros((2, 1, 2, 5), np.float32))
    shapes = {name: [1, 2, 5] for name in ("h0", "c0")} | {"x": ["n", 2, 3]}
    stream = compiled(model, states={"h0": "hn", "c0": "cn"}, shapes=shapes)
    for _ in range(2):
        pieces = [stream(piece)[0] for piece in np.split(x, [1, 4, 5, 9])]
        np.testing.assert_allclose(np.concatenate(pieces), y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(stream.state("h0"), hn, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(stream.state("c0"), cn, rtol=1e-5, atol=1e-6)
        stream.reset()


def test_variants_and_the_general_program_share_them() -> None:
    model = compiled(source(SUMS), states={"h": "hn"}, frequent=[{"n": 2}])
    plain, h = compiled(source(SUMS)), np.zeros((1, 8), np.float32)
    for n in (2, 3, 2, 5):
        x = floats(n, 4)
        y, h = plain(x, h)
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-6)


def test_they_can_be_set_reset_saved_and_loaded(tmp_path: Path) -> None:
    model, x = compiled(source(SWAPPED), states={"h": "hn"}), floats(1, 40)
    model.set_state("h", np.ones((1, 40), np.float32))
    (first,) = model(x)
    model.save_states(tmp_path / "h.npz")
    later = model(x)
    assert not np.array_equal(later[0], first)
    model.save(tmp_path / "model.tw")
    other = tilewright.load(tmp_path / "model.tw", threads=1)
    assert not other.state("h").any()  # a file of a model has none of its calls
    other.load_states(tmp_path / "h.npz")
    np.testing.assert_array_equal(other(x), later)
    for again in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.state("h"), model.state("h"))
        again.reset()
        assert model.state("h").any() and not again.state("h").any()
    model.set_state("h", [[1.0] * 40])
    np.testing.assert_array_equal(model(x)[0], first)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("size", [0, 3])
def test_all_dtypes_and_sizes(dtype: str, size: int, tmp_path: Path) -> None:
    real = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    kind = helper.np_dtype_to_tensor_dtype(real)
    nodes = [helper.make_node("Or" if dtype == "bool" else "Add", ["h", "x"], ["hn"])]
    model = compiled(
        model_of(nodes, [("x", kind, [size]), ("h", kind, [size])], ["hn"], {}).SerializeToString(), states={"h": "hn"}
    )
    x = np.ones(size).astype(real)
    assert model(x) == model(x) == ()
    wanted = x if dtype == "bool" else (x + x).astype(real)
    assert model.state("h").dtype == real
    np.testing.assert_array_equal(model.state("h"), wanted)
    model.save_states(tmp_path / "h.npz")
    model.reset()
    model.load_states(tmp_path / "h.npz")
    np.testing.assert_array_equal(model.state("h"), wanted)


@pytest.mark.parametrize("graph", [SUMS, SWAPPED, LOOP], ids=["in place", "swapped", "handed on"])
def test_calls_of_several_threads_run_one_after_the_other(graph: str) -> None:
    counting = {
        SUMS: "g (float[n] x, float[1] h) => (float[1] hn) { s = ReduceSum (x) hn = Add (h, s) }",
        SWAPPED: "g (float[1] x, float[1] h) => (float[1] hn) { s = Add (x, h) t = ReduceMax (s) hn = Max (s, t) }",
        LOOP: """g (float[1] x, float[1] h) => (float[1] hn) {
            n = Constant <value = int64 {1}> ()
            m = Cast <to = 7> (x)
            k = Squeeze (m)
            hn = Loop (k, , h) <body = trip (int64 i, bool go, float[1] a) => (bool on, float[1] b) {
                on = Identity (go)  b = Add (a, x)
            }>
        }""",
    }[graph]
    model = tilewright.compile(source(counting), cache=False, threads=1, states={"h": "hn"})
    x = np.ones(1, np.float32)
    threads = [threading.Thread(target=lambda: [model(x) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.state("h").tolist() == [200]


def test_copies_are_streams_of_their_own() -> None:
    model = tilewright.compile(source(SWAPPED), cache=False, threads=1, states={"h": "hn"})
    streams = [copy.copy(model) for _ in range(3)]
    inputs = floats(3, 4, 1, 40)
    alone = []
    for given in inputs:
        model.reset()
        alone.append([model(x)[0] for x in given])
    found: list[list[np.ndarray]] = [[] for _ in streams]

    def run(k: int) -> None:
        found[k] += [streams[k](x)[0] for x in inputs[k]]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found, alone)


FAILS = """g (int64[1] i, float[4] h) => (float[1] y, float[4] hn) {
    one = Constant <value_float = 1.0> ()
    hn = Add (h, one)
    y = Gather (%s, i)
}"""


def test_a_call_that_fails_while_it_writes_loses_the_state_and_says_so() -> None:
    model = compiled(source(FAILS % "hn"), states={"h": "hn"})
    model(np.array([1]))
    if ways(model) == ["in place"]:
        with pytest.raises(ExecutionError):
            model(np.array([9]))
        for attempt in (lambda: model(np.array([1])), lambda: model.state("h")):
            with pytest.raises(ExecutionError, match="state 'h' is lost: a call failed while it was written"):
                attempt()
        model.set_state("h", np.full(4, 5, np.float32))
    assert model(np.array([1]))[0].tolist() == [6]


def test_a_call_that_fails_leaves_what_is_swapped() -> None:
    model = compiled(source(FAILS % "h"), states={"h": "hn"})
    model(np.array([1]))
    kept = ways(model) == ["swapped"]
    with pytest.raises(ExecutionError):
        model(np.array([-9]))
    if not kept:
        model.set_state("h", np.ones(4, np.float32))
    assert model.state("h").tolist() == [1, 1, 1, 1]
    assert model(np.array([1]))[0].tolist() == [1]


def test_wrong_inputs_change_nothing() -> None:
    model = compiled(source(SUMS), states={"h": "hn"})
    model(floats(2, 4))
    before = model.state("h")
    for wrong in (floats(2, 5), floats(2, 4).astype(np.float64)):
        with pytest.raises(InputError):
            model(wrong)
    with pytest.raises(InputError, match="there is no input 'h'"):
        model(x=floats(2, 4), h=floats(1, 8))
    np.testing.assert_array_equal(model.state("h"), before)


@pytest.mark.parametrize("graph", [SUMS, SWAPPED, LOOP], ids=["in place", "swapped", "handed on"])
def test_profiles_leave_no_traces(graph: str) -> None:
    """Each run finds what the first one found, so that what grows is as long in all of them."""
    model = compiled(source(graph), states={"h": "hn"}, profile=True)
    inputs = {"x": floats(1, 40) if graph == SWAPPED else floats(4) if graph == LOOP else floats(2, 4)}
    inputs |= {"trips": np.array(2)} if graph == LOOP else {}
    model.run(inputs)
    before = model.state("h")
    behind: list[np.ndarray] = []
    assert model.profile(inputs, runs=3, between=lambda: behind.append(model.state("h")))
    assert len(behind) >= 3 and all(np.array_equal(found, behind[0]) for found in behind)
    np.testing.assert_array_equal(model.state("h"), before)
    assert model.run(inputs)


def test_results_are_written_to_arrays_of_the_caller() -> None:
    model, plain = compiled(source(SUMS), states={"h": "hn"}), compiled(source(SUMS))
    x, y = floats(3, 4), np.empty((1, 8), np.float32)
    model(x, out=(y,))
    np.testing.assert_array_equal(y, plain(x, np.zeros((1, 8), np.float32))[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_goes_on_by_itself() -> None:
    model = tilewright.compile(source(TWICE), cache=False, threads=1, states={"h": "hn"})
    ones = np.ones(3, np.float32)
    model(ones)
    child = os.fork()
    if not child:
        os._exit(0 if model(ones)[0].tolist() == [2, 2, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert model.state("h").tolist() == [1, 1, 1]


def test_trimming_and_closing_wait_for_nobody() -> None:
    """Not even for a call of another thread, which ends as usual."""
    model = tilewright.compile(source(SWAPPED), cache=False, threads=1, states={"h": "hn"})
    x = floats(1, 40)
    model(x)
    before = model.state("h")
    for end in (model.trim, model.close):
        entered, ended = threading.Event(), threading.Event()

        def call(entered: threading.Event = entered, ended: threading.Event = ended) -> None:
            model._states.begin()
            entered.set()
            ended.wait(60)
            model._states.end()

        other = threading.Thread(target=call)
        other.start()
        entered.wait(60)
        end()
        ended.set()
        other.join()
        np.testing.assert_array_equal(model.state("h"), before)
    with pytest.raises(ExecutionError, match="closed"):
        model(x)


def test_they_are_told_of() -> None:
    model = compiled(source(SUMS), states={"h": "hn"})
    assert str(model.artifact.states[0]) == "h: float32[1, 8] = hn"
    assert "keeping h" in repr(model)
    assert model.report().states == (StateRecord("h", "float32[1, 8]", "hn", "zeros", "in place"),)
    text = programs(source(SUMS), "program", options=Options(states={"h": "hn"}))["main"]
    assert 'h = state() {name="h"} : state f32[1, 8]' in text and "update(h, hn)" in text


def test_the_cache_tells_models_by_them(tmp_path: Path) -> None:
    session = tilewright.Session(tmp_path)
    given = [None, {"h": "hn"}]
    for states, _ in itertools.product(given, range(2)):
        model = tilewright.compile(source(SUMS), session=session, threads=1, states=states)
        assert len(model.inputs) == (1 if states else 2)


WIDENS = "g (float[1, 8] h) => (double[1, 8] hn) { hn = Cast <to = 11> (h) }"
GROWS = "g (float[1, n] x, float[1, m] h) => (float[1, k] hn) { hn = Concat <axis = 1> (h, x) }"


@pytest.mark.parametrize(
    "graph, states, options, message",
    [
        (SUMS, {"q": "hn"}, {}, "the model has no input 'q'\n  hint: its inputs are: x, h"),
        (SUMS, {"h": "q"}, {}, "the model has no output 'q'\n  hint: its outputs are: y, hn"),
        (SUMS, {"x": "y"}, {}, r"state 'x' is f32\[n, 4\], and the output 'y' that it becomes is f32\[1, 8\]: memory "
         r"that lives from call to call has fixed sizes\n  hint: fix them, such as shapes={'x': \[1, 4\]}"),
        (SUMS, {"x": "y"}, {"shapes": {"x": [2, 4]}}, r"state 'x' is f32\[2, 4\], and .* is f32\[1, 8\]: both must be"),
        (GROWS, {"h": "hn"}, {"shapes": {"h": [1, 2], "x": [1, 1]}}, r"is f32\[1, 2\], and .* is f32\[1, 3\]: both "
         "must be the same\n  hint: a state keeps its shape"),
        (WIDENS, {"h": "hn"}, {}, r"and .* is f64\[1, 8\]: both must be the same\n  hint: .*: cast it to f32 in the"),
        (SUMS, {"h": "hn"}, {"constants": {"h": np.zeros((1, 8), np.float32)}}, "that constants= gives are none"),
        (SUMS, (("h", "hn"), ("h", "y")), {}, "states= names the input 'h' twice"),
        (SUMS, True, {}, "keeps the variables that a model declares, and this one declares none"),
        (SUMS, "h=hn", {}, "give a dict of names of inputs to names of outputs, or True"),
        (SUMS, {"h": 3}, {}, "give a dict of names"),
        (SUMS, {"h": "hn"}, {"integer_only": True}, "integer_only=True keeps no states"),
    ],
)  # fmt: skip
def test_states_that_do_not_fit(graph: str, states: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        compiled(source(graph), states=states, **options)


def test_wrong_names_values_and_files(tmp_path: Path) -> None:
    model = compiled(source(SUMS), states={"h": "hn"})
    for attempt in (lambda: model.state("q"), lambda: model.set_state("q", 1)):
        with pytest.raises(OptionError, match="the model keeps no state 'q'\n  hint: its states are: h"):
            attempt()
    with pytest.raises(InputError, match=r"state 'h: float32\[1, 8\]' cannot be set to an array of shape \[2\]"):
        model.set_state("h", np.zeros(2, np.float32))
    with pytest.raises(InputError, match="must be float32"):
        model.set_state("h", np.zeros((1, 8)))
    plain = compiled(source(SUMS))
    assert plain.states == () and plain.reset() is None
    with pytest.raises(OptionError, match="states are: none"):
        plain.state("h")
    path = tmp_path / "states.npz"
    path.write_bytes(b"PK no file of states")
    with pytest.raises(ArtifactError, match="is no file of states"):
        model.load_states(path)
    with pytest.raises(ArtifactError, match="is no file of states"):
        model.load_states(tmp_path / "missing.npz")
    plain.save_states(path)
    with pytest.raises(ArtifactError, match="has the states none, and the model h"):
        model.load_states(path)
    compiled(source(SWAPPED), states={"x": "y"}).save_states(path)
    with pytest.raises(ArtifactError, match="has the states x, and the model h"):
        model.load_states(path)
    compiled(source(KEPT), states={"h": "hn"}).save_states(path)
    with pytest.raises(ArtifactError, match=r"state 'h: float32\[1, 8\]' is float32\[3\] there"):
        model.load_states(path)
    (tmp_path / "text").write_text("mine")
    with pytest.raises(ArtifactError, match="there is a file that is not a file of states"):
        model.save_states(tmp_path / "text")


def test_artefacts_whose_states_cannot_be() -> None:
    artifact = compiled(source(SUMS), states={"h": "hn"}).artifact
    (state,) = artifact.states
    beyond = replace(artifact, states=(replace(state, initial=1 << 40),))
    with pytest.raises(ArtifactError, match="the first value of state 'h' is not in the artefact"):
        tilewright.load(beyond.to_bytes())
    text = artifact.to_bytes()
    assert tilewright.load(text).states == artifact.states
    for wrong in ({"way": "somehow"}, {"info": replace(state.info, shape=("n", 8))}):
        with pytest.raises(ValueError, match="there is no state"):
            replace(state, **wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("use", ["call", "reset", "set_state", "state", "copy", "save_states", "new memory"])
def test_a_child_may_use_what_a_thread_of_its_parent_was_calling(use: str, tmp_path: Path) -> None:
    """Of that thread the child has the lock, and nothing else."""
    model = compiled(source(SWAPPED), states={"h": "hn"})
    model(np.ones((1, 40), np.float32))
    inside, ends = threading.Event(), threading.Event()

    def call() -> None:
        model._states.begin()
        inside.set()
        ends.wait()
        model._states.end()

    uses: dict[str, Any] = {
        "call": lambda: model(np.ones((1, 40), np.float32)),
        "reset": model.reset,
        "set_state": lambda: model.set_state("h", np.zeros((1, 40), np.float32)),
        "state": lambda: model.state("h"),
        "copy": lambda: copy.copy(model)(np.ones((1, 40), np.float32)),
        "save_states": lambda: model.save_states(tmp_path / "states.npz"),
        "new memory": lambda: model.use_state_memory(["h"], model.new_state_memory(["h"])),
    }
    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            uses[use]()
            model(np.ones((1, 40), np.float32))
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ends.set()
    thread.join()
    assert status == 0
