"""States that recurrent operators keep from call to call, in tensors marked as variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, run, written
from tilewright.frontends.tflite.load import load_tflite
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.options import Options
from tilewright.runtime.errors import OptionError
from tilewright.stages import programs

RNG = np.random.default_rng(11)
TANH, RELU = 4, 1


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def layer(
    kind: str,
    x: Sequence[int],
    operands: Sequence[np.ndarray | Tensor | None],
    y: Sequence[int],
    **options: Any,
) -> bytes:
    tensors, names = [Tensor("x", x)], []
    for k, operand in enumerate(operands):
        tensor = constant(f"k{k}", operand) if isinstance(operand, np.ndarray) else operand
        tensors += [] if tensor is None else [tensor]
        names.append(None if tensor is None else tensor.name)
    graph = Graph([*tensors, Tensor("y", y)], [Node(kind, ["x", *names], ["y"], options)], ["x"], ["y"])
    return written(graph)


def variable(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, variable=True)


Step = Callable[[np.ndarray, Mapping[str, np.ndarray]], tuple[np.ndarray, dict[str, np.ndarray]]]
"""The result of a call and the states behind it, of its input and the states before."""


def lstm_over_time(time_major: bool) -> tuple[bytes, Step, tuple[int, ...]]:
    w, r, b = normal(4, 5, 3), normal(4, 5, 5) / 2, normal(4, 5)
    states = variable("h", 2, 5), variable("c", 2, 5)
    operands = [*w, *r, None, None, None, *b, None, None, *states]
    shape, result = ((4, 2, 3), (4, 2, 5)) if time_major else ((2, 4, 3), (2, 4, 5))
    options = {"activation": TANH, "cell_clip": 0.5, "time_major": time_major}
    data = layer("UNIDIRECTIONAL_SEQUENCE_LSTM", shape, operands, result, **options)

    def step(x: np.ndarray, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        (h, c), found = (before["h"], before["c"]), []
        for now in x if time_major else x.swapaxes(0, 1):
            h, c = cell(now, h, c, w, r, b, 0.5)
            found.append(h)
        return np.stack(found, 0 if time_major else 1), {"h": h, "c": c}

    return data, step, shape


def cell(x: Any, h: Any, c: Any, w: Any, r: Any, b: Any, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """A step of an LSTM with gates in the order i f c o."""
    i, f, g, o = (x @ w[k].T + h @ r[k].T + b[k] for k in range(4))
    c = np.clip(sigmoid(f) * c + sigmoid(i) * np.tanh(g), -clip, clip)
    return sigmoid(o) * np.tanh(c), c


def lstm_step() -> tuple[bytes, Step, tuple[int, ...]]:
    w, r, b = normal(4, 5, 3), normal(4, 5, 5) / 2, normal(4, 5)
    states = variable("h", 2, 5), variable("c", 2, 5)
    operands = [*w, *r, None, None, None, *b, None, None, *states]
    data = layer("LSTM", (2, 3), operands, (2, 5), activation=TANH, cell_clip=0.4)

    def step(x: np.ndarray, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        h, c = cell(x, before["h"], before["c"], w, r, b, 0.4)
        return h, {"h": h, "c": c}

    return data, step, (2, 3)


def rnn(kind: str) -> tuple[bytes, Step, tuple[int, ...]]:
    w, r, b = normal(5, 3), normal(5, 5) / 2, normal(5)
    shape = (2, 4, 3) if kind.endswith("SEQUENCE_RNN") else (2, 3)
    data = layer(kind, shape, [w, r, b, variable("h", 2, 5)], (*shape[:-1], 5), activation=TANH)

    def step(x: np.ndarray, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        h, found = before["h"], []
        for now in x.swapaxes(0, 1) if x.ndim == 3 else [x]:
            h = np.tanh(now @ w.T + h @ r.T + b)
            found.append(h)
        return (np.stack(found, 1) if x.ndim == 3 else h), {"h": h}

    return data, step, shape


def svdf(rank: int, memory: int) -> tuple[bytes, Step, tuple[int, ...]]:
    """Filters of features of the last steps: what leaves a filter's memory is forgotten."""
    features, over_time, b = normal(6, 3), normal(6, memory), normal(6 // rank)
    state = variable("s", 2, 6 * memory)
    data = layer("SVDF", (2, 3), [features, over_time, b, state], (2, 6 // rank), rank=rank, activation=RELU)

    def step(x: np.ndarray, before: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        held = before["s"].reshape(2, 6, memory)
        held = np.concatenate([held[:, :, 1:], (x @ features.T)[:, :, None]], 2)
        total = (held * over_time).sum(2).reshape(2, 6 // rank, rank).sum(2)
        return np.maximum(total + b, 0), {"s": held.reshape(2, 6 * memory)}

    return data, step, (2, 3)


LAYERS = {
    "lstm over time": lambda: lstm_over_time(False),
    "lstm, time first": lambda: lstm_over_time(True),
    "a step of lstm": lstm_step,
    "rnn over time": lambda: rnn("UNIDIRECTIONAL_SEQUENCE_RNN"),
    "a step of rnn": lambda: rnn("RNN"),
    "svdf": lambda: svdf(1, 4),
    "svdf of rank 2": lambda: svdf(2, 3),
    "svdf without memory": lambda: svdf(2, 1),
}


def zeros(model: tilewright.Model) -> dict[str, np.ndarray]:
    return {s.state: np.zeros_like(model.state(s.state)) for s in model.report().states}


@pytest.mark.parametrize("name", LAYERS)
def test_a_stream_goes_on_from_call_to_call_and_begins_anew(name: str) -> None:
    data, step, shape = LAYERS[name]()
    model = tilewright.compile(data, cache=False, states=True, threads=1)
    assert [i.name for i in model.inputs] == ["x"] and [o.name for o in model.outputs] == ["y"]
    for _ in range(2):
        states = zeros(model)
        for _ in range(4):
            x = normal(*shape)
            wanted, states = step(x, states)
            np.testing.assert_allclose(model(x)[0], wanted, rtol=2e-5, atol=2e-5)
            for state, value in states.items():
                np.testing.assert_allclose(model.state(state), value, rtol=2e-5, atol=2e-5)
        model.reset()


@pytest.mark.parametrize("name", LAYERS)
def test_without_states_each_call_begins_anew(name: str) -> None:
    data, step, shape = LAYERS[name]()
    x, whole = normal(*shape), tilewright.compile(data, cache=False, threads=1)
    first = {n: np.zeros(s, np.float32) for n, s in (("h", (2, 5)), ("c", (2, 5)))}
    first["s"] = np.zeros((2, 6 * {"svdf": 4, "svdf of rank 2": 3}.get(name, 1)), np.float32)
    for _ in range(2):
        np.testing.assert_allclose(whole(x)[0], step(x, first)[0], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(run(data, x)[0], step(x, first)[0], rtol=2e-5, atol=2e-5)
    assert load_tflite(data).main.attrs["inputs"] == ("x",)


def test_states_are_saved_restored_and_set(tmp_path: Path) -> None:
    data, step, shape = svdf(2, 3)
    model = tilewright.compile(data, cache=False, states=True)
    model.save(tmp_path / "stream.tw")
    loaded = tilewright.load(tmp_path / "stream.tw")
    first, second = normal(*shape), normal(*shape)
    states = step(first, zeros(model))[1]
    wanted = step(second, states)[0]
    model(first)
    loaded.set_state("s", model.state("s"))
    np.testing.assert_allclose(loaded(second)[0], wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(loaded(first)[0], (model(second), model(first)[0])[1])


def test_two_layers_keep_what_is_theirs() -> None:
    """Both tensors have one name, and so have states and outputs."""
    w, r, b = normal(5, 5), normal(5, 5) / 2, normal(5)
    tensors = [Tensor("x", (2, 5)), *(constant(n, v) for n, v in (("w", w), ("r", r), ("b", b)))]
    tensors += [variable("h", 2, 5), Tensor("m", (2, 5)), variable("y", 2, 5), Tensor("y_out", (2, 5))]
    nodes = [
        Node("RNN", ["x", "w", "r", "b", "h"], ["m"], {"activation": TANH}),
        Node("RNN", ["m", "w", "r", "b", "y"], ["y_out"], {"activation": TANH}),
    ]
    data = written(Graph(tensors, nodes, ["x"], ["y_out"]), names={"x": "x", "y_out": "y"})
    model = tilewright.compile(data, cache=False, states=True)
    lower = upper = np.zeros((2, 5))
    for _ in range(3):
        x = normal(2, 5)
        lower = np.tanh(x @ w.T + lower @ r.T + b)
        upper = np.tanh(lower @ w.T + upper @ r.T + b)
        np.testing.assert_allclose(model(x)[0], upper, rtol=2e-5, atol=2e-5)


def test_integers_that_stand_for_zero_come_first() -> None:
    state = Tensor("h", (2, 5), np.int8, variable=True, scale=0.05, zero=7)
    w, r, b = normal(5, 3), normal(5, 5) / 2, normal(5)
    model = tilewright.compile(
        layer("RNN", (2, 3), [w, r, b, state], (2, 5), activation=TANH), cache=False, states=True
    )
    np.testing.assert_array_equal(model.state("h"), np.full((2, 5), 7))
    x = normal(2, 3)
    (h,) = model(x)
    np.testing.assert_allclose(h, np.tanh(x @ w.T + b), rtol=2e-5, atol=2e-5)
    held = np.clip(np.rint(h / 0.05) + 7, -128, 127)
    np.testing.assert_allclose(model.state("h"), held, atol=1)
    wanted = np.tanh(x @ w.T + 0.05 * (model.state("h").astype(np.float64) - 7) @ r.T + b)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=2e-5, atol=2e-5)
    model.reset()
    np.testing.assert_array_equal(model.state("h"), np.full((2, 5), 7))


def test_the_graph_has_them_where_they_are_kept() -> None:
    data, _, _ = lstm_step()
    kept = programs(data, "import", options=Options(states=True))["main"]
    assert "(x: f32[2, 3], h: f32[2, 5], c: f32[2, 5])" in kept
    assert "(x: f32[2, 3])" in programs(data, "import")["main"]
    assert tilewright.check(data, states=True).runs and tilewright.check(data).runs


def test_what_is_no_such_layer_is_told() -> None:
    gates = [normal(4, 3), normal(4, 4)]
    cell = layer("LSTM", (2, 3), [*gates[:1] * 4, *gates[1:] * 4], (2, 4), activation=TANH, kernel_type=1)
    with pytest.raises(UnsupportedError, match="states as results"):
        load_tflite(cell)
    odd = layer("SVDF", (2, 3), [normal(5, 3), normal(5, 4), None, variable("s", 2, 20)], (2, 2), rank=2)
    with pytest.raises(ModelError, match="5 filters, which are no multiple of its rank 2"):
        load_tflite(odd)


def test_models_without_states_have_none_to_keep() -> None:
    x, y = Tensor("x", (3,)), Tensor("y", (3,))
    with pytest.raises(OptionError, match="declares none"):
        tilewright.compile(
            written(Graph([x, y], [Node("ABS", ["x"], ["y"])], ["x"], ["y"])), states=True, cache=False
        )
