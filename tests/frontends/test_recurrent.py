"""Recurrent networks with constant weights as machine code, against their definition in float64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


@dataclass(frozen=True)
class Case:
    """A network of one node: sizes, attributes, and which optional operands it has."""

    op: str
    batch: int
    hidden: int
    attrs: dict[str, Any] = field(default_factory=dict)
    lengths: bool = False
    peepholes: bool = False
    steps: int = 5
    inputs: int = 7

    @property
    def directions(self) -> int:
        return 2 if self.attrs.get("direction") == "bidirectional" else 1

    def __str__(self) -> str:
        return f"{self.op}-{self.batch}-{self.hidden}-{'-'.join(map(str, self.attrs.values()))}"


CASES = [
    *(Case("LSTM", batch, 21) for batch in (1, 2, 5, 7, 13)),
    *(Case("LSTM", 3, hidden) for hidden in (1, 8, 16, 35)),
    *(Case("LSTM", batch, 141) for batch in (1, 2, 9)),
    Case("LSTM", 8, 130, {"direction": "bidirectional"}, lengths=True, peepholes=True),
    *(Case("GRU", 7, 150, {"linear_before_reset": linear}, lengths=True) for linear in (0, 1)),
    Case("RNN", 10, 260, {"direction": "reverse"}, lengths=True),
    *(Case(op, 5, 19, {"direction": "bidirectional"}, lengths=True) for op in GATES),
    *(Case(op, 1, 33, {"direction": "reverse"}) for op in GATES),
    *(Case(op, 4, 17, {"direction": "reverse"}, lengths=True) for op in GATES),
    *(Case("GRU", batch, 18, {"linear_before_reset": 1}) for batch in (1, 6)),
    Case("LSTM", 3, 10, {"layout": 1, "direction": "bidirectional"}),
    Case("LSTM", 4, 12, {"input_forget": 1}, peepholes=True),
    Case("LSTM", 2, 9, {"activations": ["Sigmoid", "Relu", "Tanh"]}, peepholes=True),
    Case("RNN", 7, 40, {"activations": ["Relu"]}),
    Case("GRU", 2, 20, {"activations": ["Tanh", "Relu"]}, lengths=True),
]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {"Sigmoid": sigmoid, "Tanh": np.tanh, "Relu": lambda x: np.maximum(x, 0)}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def step(case: Case, x: np.ndarray, state: list[np.ndarray], w: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The states of one entry after one step, as the ONNX operators define them."""
    f, *others = (FUNCTIONS[n] for n in case.attrs.get("activations", DEFAULTS[case.op]))
    h = state[0]
    wb, rb = np.split(w["b"], 2)
    left = np.split(w["w"] @ x + wb, GATES[case.op])
    r, rb = np.split(w["r"], GATES[case.op]), np.split(rb, GATES[case.op])
    if case.op == "RNN":
        return [f(left[0] + r[0] @ h + rb[0])]
    if case.op == "GRU":
        z, reset = (f(left[k] + r[k] @ h + rb[k]) for k in range(2))
        linear = case.attrs.get("linear_before_reset")
        term = reset * (r[2] @ h + rb[2]) if linear else r[2] @ (reset * h) + rb[2]
        return [(1 - z) * others[0](left[2] + term) + z * h]
    cell = state[1]
    i, o, forget, entry = (left[k] + r[k] @ h + rb[k] for k in range(4))
    pi, po, pf = np.split(w["p"], 3)
    i = f(i + pi * cell)
    forget = 1 - i if case.attrs.get("input_forget") else f(forget + pf * cell)
    new = forget * cell + i * others[0](entry)
    return [f(o + po * new) * others[1](new), new]


def expected(case: Case, x: np.ndarray, lengths: np.ndarray, w: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Y [time, directions, batch, hidden] and the last states [directions, batch, hidden]."""
    y = np.zeros((case.steps, case.directions, case.batch, case.hidden))
    last = np.zeros((STATES[case.op], case.directions, case.batch, case.hidden))
    for d in range(case.directions):
        weights = {k: v[d].astype(np.float64) for k, v in w.items()}
        reverse = d == 1 or case.attrs.get("direction") == "reverse"
        for b in range(case.batch):
            state = [np.zeros(case.hidden)] * STATES[case.op]
            times = range(lengths[b])
            for t in reversed(times) if reverse else times:
                state = step(case, x[t, b].astype(np.float64), state, weights)
                y[t, d, b] = state[0]
            last[:, d, b] = state
    if case.attrs.get("layout"):
        return [y.transpose(2, 0, 1, 3), *last.transpose(0, 2, 1, 3)]
    return [y, *last]


def weights_of(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    d, rows = case.directions, GATES[case.op] * case.hidden
    shapes = {"w": (d, rows, case.inputs), "r": (d, rows, case.hidden), "b": (d, 2 * rows)}
    if case.op == "LSTM":
        shapes["p"] = (d, 3 * case.hidden)
    made = {k: (rng.standard_normal(s) / np.sqrt(s[-1])).astype(np.float32) for k, s in shapes.items()}
    if "p" in made and not case.peepholes:
        made["p"] *= 0
    return made


def save(case: Case, lengths: np.ndarray, w: dict[str, np.ndarray], path: Path) -> None:
    shape = [case.batch, case.steps] if case.attrs.get("layout") else [case.steps, case.batch]
    operands = ["x", "w", "r", "b", "lengths" if case.lengths else "", "", "", "p" if case.peepholes else ""]
    operands = operands if case.op == "LSTM" else operands[:6]
    outputs = ["y", "h", "c"][: 1 + STATES[case.op]]
    node = helper.make_node(case.op, operands, outputs, hidden_size=case.hidden, **case.attrs)
    constants = [numpy_helper.from_array(v, k) for k, v in w.items() if k != "p" or case.peepholes]
    if case.lengths:
        constants.append(numpy_helper.from_array(lengths.astype(np.int32), "lengths"))
    graph = helper.make_graph(
        [node], "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, case.inputs])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        constants,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.sweep(7)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_network_gives_what_its_definition_gives(case: Case, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    w = weights_of(case, rng)
    lengths = rng.integers(0, case.steps + 1, case.batch) if case.lengths else np.full(case.batch, case.steps)
    x = rng.standard_normal((case.steps, case.batch, case.inputs)).astype(np.float32)
    path = tmp_path / "network.onnx"
    save(case, lengths, w, path)
    given = np.ascontiguousarray(x.transpose(1, 0, 2)) if case.attrs.get("layout") else x
    found = tilewright.compile(path, threads=1, cache=False)(given)
    for a, b in zip(found, expected(case, x, lengths, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


SHARED = [
    Case("LSTM", 1, 200),
    Case("LSTM", 4, 100, {"direction": "bidirectional"}, lengths=True),
    Case("LSTM", 13, 75, {"input_forget": 1, "layout": 1}, peepholes=True),
    Case("LSTM", 5, 90, {"activations": ["Sigmoid", "Relu", "Tanh"]}, peepholes=True, steps=1),
    Case("GRU", 5, 170, {"direction": "reverse"}, lengths=True),
    Case("GRU", 4, 120, {"linear_before_reset": 1}),
    Case("RNN", 6, 150, {"activations": ["Relu"], "direction": "reverse"}),
    Case("RNN", 7, 190, lengths=True),
]
"""Networks in which two threads share every step."""


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", SHARED, ids=str)
def test_the_number_of_threads_changes_no_bit(case: Case, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    w = weights_of(case, rng)
    lengths = rng.integers(0, case.steps + 1, case.batch) if case.lengths else np.full(case.batch, case.steps)
    x = rng.standard_normal((case.steps, case.batch, case.inputs)).astype(np.float32)
    path = tmp_path / "network.onnx"
    save(case, lengths, w, path)
    given = np.ascontiguousarray(x.transpose(1, 0, 2)) if case.attrs.get("layout") else x
    models = [tilewright.compile(path, threads=n, cache=False, target="host,cores=2") for n in (1, 2, 3)]
    alone, *together = ([a.tobytes() for a in model(given)] for model in models)
    assert together == [alone, alone]
    for a, b in zip(models[1](given), expected(case, x, lengths, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=4e-6)


@pytest.mark.parametrize("batch", [1, 7, 16])
def test_threads_that_share_entries_change_no_bit(batch: int, tmp_path: Path) -> None:
    case = Case("LSTM", batch, 70, steps=9)
    rng = np.random.default_rng(8)
    path = tmp_path / "network.onnx"
    save(case, np.full(batch, case.steps), weights_of(case, rng), path)
    x = rng.standard_normal((case.steps, batch, case.inputs)).astype(np.float32)
    alone, together = (tilewright.compile(path, threads=n, cache=False)(x) for n in (1, 2))
    for a, b in zip(alone, together, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("op", GATES)
def test_threads_share_steps_whose_number_is_not_known(op: str, tmp_path: Path) -> None:
    case = Case(op, 6, 160 if op == "LSTM" else 180)
    rng = np.random.default_rng(9)
    w = weights_of(case, rng)
    path = tmp_path / "network.onnx"
    save(case, np.full(case.batch, case.steps), w, path)
    network = onnx.load(path)
    network.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "time"
    onnx.save(network, path)
    model = tilewright.compile(path, threads=2, cache=False, target="host,cores=2")
    for steps in (3, 1, 8):
        now = replace(case, steps=steps)
        x = rng.standard_normal((steps, case.batch, case.inputs)).astype(np.float32)
        for a, b in zip(model(x), expected(now, x, np.full(case.batch, steps), w), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=4e-6)
