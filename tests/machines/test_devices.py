"""A device of the four layers that docs/devices.md has, and models in parts on a device and the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.machines.board import board, examples
from tests.machines.test_webgpu import UNKNOWN, X, model
from tests.runtime.test_states import CASES, source
from tilewright import Session


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(folder=tmp_path, plugins=(board().PLUGIN,))


def test_the_page_of_devices_has_a_whole_device(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(examples()[0].splitlines()) < 80
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(model("g (float[n,4] x) => (float[n,4] y) { y = Exp(x) }"))
    exec(examples()[1], {})


def test_a_device_computes_what_the_cpu_does(session: Session) -> None:
    text = """g (float[3,8] x) => (float[3,8] s, int64[3,1] i, float[3,2] t, bool[3,8] b)
    { s = Softmax(x) i = ArgMax<axis=1>(x) k = Constant<value=int64[1]{2}>() t, j = TopK(x, k) b = Less(s, x) }"""
    ours, host = (tilewright.compile(model(text), target=t, session=session) for t in ("board", "host"))
    x = X[:, :8].copy()
    for found, expected in zip(ours(x), host(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sizes_states_and_errors_are_the_executors_matter(session: Session) -> None:
    made = tilewright.compile(model(UNKNOWN["product"]), target="board", session=session)
    for n in (1, 0, 4):
        x, w = np.resize(X, (n, 5)), np.resize(X, (5, 3))
        np.testing.assert_allclose(made(x, w)[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
    graph, states, inputs, _ = CASES["swapped"]
    ours, host = (
        tilewright.compile(source(graph), target=t, states=states, session=session) for t in ("board", "host")
    )
    for given in (inputs(1), inputs(2)):
        for found, expected in zip(ours(*given), host(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
    divided = tilewright.compile(
        model("g (int32[n] a, int32[n] b) => (int32[n] y) { y = Div(a, b) }"), target="board", session=session
    )
    a = np.arange(9, dtype=np.int32)
    with pytest.raises(tilewright.ExecutionError, match="division by zero"):
        divided(a, a)
    np.testing.assert_array_equal(divided(a, a + 1)[0], 0)


def test_what_a_device_raises_is_named_and_the_next_call_begins_anew(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tilewright.compile(model("g (float[4] x) => (float[4] y) { y = Exp(x) }"), target="board", session=session)
    x = X[0, :4]
    (expected,) = made(x)
    with monkeypatch.context() as patch, pytest.raises(tilewright.DeviceError, match="the board failed: it is off"):

        def launch(self: object) -> None:
            raise OSError("it is off")

        patch.setattr(board().BoardMemory, "launch", launch)
        made(x)
    np.testing.assert_array_equal(made(x)[0], expected)
