"""Calls that somebody ends before they would end by themselves."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tilewright.runtime.errors import CancelledError, ExecutionError

LAYERS = 12
CHAIN = "\n".join(f"h{k} = MatMul (t{k}, w)\n    t{k + 1} = Softmax (h{k})" for k in range(LAYERS))
KERNELS = f"""g (float[rows, 64] t0, float[64, 64] w) => (float[rows, 64] t{LAYERS}) {{
    {CHAIN}
}}"""
LOOP = """g (float[4] x, int64 trips) => (float[4] y) {
    y = Loop (trips, , x) <body = trip (int64 i, bool go, float[4] a) => (bool on, float[4] b) {
        on = Identity (go)
        b = Tanh (a)
    }>
}"""
NO_KERNELS = """g (float[4] x, int64 trips) => (float[4] y, float[4] z) {
    y, z = Loop (trips, , x, x) <body = trip (int64 i, bool go, float[4] a, float[4] b) => (bool on, float[4] c, float[4] d) {
        on = Identity (go)
        c = Identity (b)
        d = Identity (a)
    }>
}"""  # noqa: E501
OF_THE_HOST = """g (float[4] x, int64 trips) => (float[k, 4] y) {
    none = SequenceEmpty <dtype = 1> ()
    some = Loop (trips, , none) <body = trip (int64 i, bool go, seq(float[4]) s) => (bool on, seq(float[4]) t) {
        on = Identity (go)
        t = SequenceInsert (s, x)
    }>
    y = ConcatFromSequence <axis = 0, new_axis = 1> (some)
}"""
X = np.ones(4, np.float32)
FOREVER = 1 << 40


def compiled(graph: str, **options: Any) -> tilewright.Model:
    source = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}')
    return tilewright.compile(source.SerializeToString(), cache=False, **options)


def cancelled(model: tilewright.Model, call: Callable[[], Any]) -> BaseException | None:
    """What ends a call that is cancelled again and again."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        model.cancel()
        thread.join(0.002)
    return ended[0]


def test_between_kernels() -> None:
    model = compiled(KERNELS, threads=2)
    w = np.eye(64, dtype=np.float32)
    some = model(np.ones((3, 64), np.float32), w)[0]
    many = np.ones((20_000, 64), np.float32)
    found = cancelled(model, lambda: [model(many, w) for _ in range(50)])
    assert isinstance(found, CancelledError) and "was cancelled" in str(found)
    np.testing.assert_array_equal(model(np.ones((3, 64), np.float32), w)[0], some)  # later calls are as before
    model.cancel()
    np.testing.assert_array_equal(model(np.ones((3, 64), np.float32), w)[0], some)


CASES: Mapping[str, tuple[str, Callable[[tilewright.Model, int], Any]]] = {
    "native loop": (LOOP, lambda model, trips: model(X, np.array(trips))),
    "loop without kernels": (NO_KERNELS, lambda model, trips: model(X, np.array(trips))),
    "loop of the host": (OF_THE_HOST, lambda model, trips: model(X, np.array(trips))),
}


@pytest.mark.parametrize("graph, call", CASES.values(), ids=CASES.keys())
def test_within_loops(graph: str, call: Callable[[tilewright.Model, int], Any]) -> None:
    model = compiled(graph, threads=1)
    before = call(model, 3)[0]
    assert isinstance(cancelled(model, lambda: call(model, FOREVER)), CancelledError)
    np.testing.assert_array_equal(call(model, 3)[0], before)


def test_copies_go_on() -> None:
    """Each has calls of its own."""
    model = compiled(LOOP, threads=1)
    other = copy.copy(model)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(other(X, np.array(200_000))))
    thread.start()
    assert isinstance(cancelled(model, lambda: model(X, np.array(FOREVER))), CancelledError)
    thread.join()
    assert found and not isinstance(found[0], ExecutionError)
