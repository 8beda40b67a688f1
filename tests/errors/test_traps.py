"""Values that machine code would trap at, read beyond memory for, or never end with: a clear error, and the model goes
on working."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of
from tilewright.runtime.errors import ExecutionError, InputError

I64 = TensorProto.INT64
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]


def compiled(op: str, arrays: Sequence[np.ndarray], attrs: dict[str, Any] | None = None, **options: Any) -> Any:
    """A model of one node, all of whose operands are inputs with dims that are not known."""
    names = [f"x{k}" for k in range(len(arrays))]
    outputs = options.pop("outputs", ["y"])
    infos = [
        info(n, [f"{n}_{k}" if d > 1 else d for k, d in enumerate(a.shape)], helper.np_dtype_to_tensor_dtype(a.dtype))
        for n, a in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(op, names, outputs, name="here", **attrs or {})
    return tilewright.compile(model_of([node], infos, outputs, opset=22), cache=False, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division(op: str, dtype: np.dtype) -> None:
    a, b = np.array([7, 9, 5], dtype), np.array([2, 4, 5], dtype)
    model = compiled(op, [a, b])
    wanted = a // b if op == "Div" else a % b
    for place in range(3):
        zeros = b.copy()
        zeros[place] = 0
        with pytest.raises(ExecutionError, match=r"zero[\s\S]*here"):
            model(a, zeros)
        assert np.array_equal(model(a, b)[0], wanted)
    if dtype.kind == "i":
        least = np.full(3, np.iinfo(dtype).min, dtype)
        (found,) = model(least, np.array([-1, -1, 1], dtype))
        # as two's complement has it, since the quotient does not fit
        assert found.tolist() == ([int(least[0])] * 3 if op == "Div" else [0, 0, 0])


@pytest.mark.parametrize("dtype", INTEGERS[:4], ids=str)
def test_division_of_constants(dtype: np.dtype) -> None:
    """What is known is computed when compiling, which must not end the process either."""
    values = {"a": np.array([np.iinfo(dtype).min], dtype), "b": np.array([-1], dtype), "zero": np.zeros(1, dtype)}
    nodes = [helper.make_node("Div", ["a", "b"], ["y"]), helper.make_node("Mod", ["a", "b"], ["z"])]
    y, z = tilewright.compile(model_of(nodes, [], ["y", "z"], values), cache=False)()
    assert (y.tolist(), z.tolist()) == (values["a"].tolist(), [0])
    with pytest.raises(tilewright.TilewrightError):
        tilewright.compile(model_of([helper.make_node("Div", ["a", "zero"], ["y"])], [], ["y"], values), cache=False)()


def named(value: Any) -> str | None:
    return value if isinstance(value, str) else None


X = np.arange(12, dtype=np.float32).reshape(3, 4)
INDEXED = [
    ("Gather", [X, np.array([1, 2])], {"axis": 0}, 1, 3),
    ("Gather", [X, np.array([1, 2])], {"axis": 1}, 1, 4),
    ("GatherElements", [X, np.array([[1, 2], [0, 0]])], {"axis": 0}, 1, 3),
    ("GatherND", [X, np.array([[1, 2], [0, 0]])], {}, 1, 4),
    ("ScatterElements", [X, np.array([[1, 2], [0, 0]]), np.ones((2, 2), np.float32)], {"axis": 1}, 1, 4),
    ("ScatterND", [X, np.array([[1, 2], [0, 0]]), np.ones(2, np.float32)], {}, 1, 4),
    ("ReverseSequence", [X, np.array([1, 2, 1, 3])], {"time_axis": 0, "batch_axis": 1}, 1, 4),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "k", "bound"), INDEXED, ids=named)
def test_indices(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], k: int, bound: int) -> None:
    options = {"shapes": {"x1": [2, 2]}} if op.endswith("ND") else {}
    model = compiled(op, arrays, attrs, **options)
    wanted = model(*arrays)[0].copy()
    below = () if op == "ReverseSequence" else (-bound - 1, -(2**63))  # lengths below 1 reverse nothing
    for wrong in (bound, bound + 1, 2**31, 2**62, *below):
        given = [a.copy() for a in arrays]
        given[k].flat[-1] = wrong
        with pytest.raises((ExecutionError, InputError), match="here"):
            model(*given)
        assert np.array_equal(model(*arrays)[0], wanted)


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


SIZED = [
    ("Reshape", [X, int64(4, 3)], {}, 1, [int64(-2, 3), int64(5, 3), int64(-1, -1), int64(-1, 5), int64(2**40, 2**40)]),
    ("Expand", [X, int64(3, 4)], {}, 1, [int64(-1, 4), int64(2, 4), int64(2**40, 4)]),
    ("Tile", [X, int64(2, 2)], {}, 1, [int64(-1, 2), int64(2**40, 2**40)]),
    ("Pad", [X, int64(0, 1, 0, 1)], {}, 1, [int64(0, 1, -9, 1), int64(2**40, 0, 2**40, 0)]),
    ("ConstantOfShape", [int64(2, 3)], {}, 0, [int64(-1, 3), int64(2**40, 2**40)]),
    ("TopK", [X, int64(2)], {}, 1, [int64(5), int64(-1), int64(2**62)]),
    ("Range", [int64(0), int64(9), int64(2)], {}, 2, [int64(0)]),
    ("Slice", [X, int64(0), int64(2), int64(0), int64(1)], {}, 4, [int64(0)]),
    ("Split", [X, int64(1, 3)], {"axis": 1}, 1, [int64(-1, 5), int64(1, 4)]),
    ("OneHot", [int64(0, 1), int64(3), np.float32([0, 1])], {}, 1, [int64(-1), int64(2**50)]),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "k", "wrongs"), SIZED, ids=named)
def test_sizes(
    op: str, arrays: list[np.ndarray], attrs: dict[str, Any], k: int, wrongs: list[np.ndarray]
) -> None:
    if op == "Range":
        arrays, wrongs = ([a.reshape(()) for a in part] for part in (arrays, wrongs))
    outputs = {"TopK": ["y", "z"], "Split": ["y", "z"]}.get(op, ["y"])
    names = [f"x{j}" for j in range(len(arrays))]
    infos = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in zip(names, arrays, strict=True)]
    node = helper.make_node(op, names, outputs, name="here", **attrs)
    model = tilewright.compile(model_of([node], infos, outputs, opset=22), cache=False)
    wanted = [a.copy() for a in model(*arrays)]
    for wrong in wrongs:
        given = [wrong if j == k else a for j, a in enumerate(arrays)]
        with pytest.raises((ExecutionError, InputError)):
            model(*given)
        assert all(map(np.array_equal, model(*arrays), wanted))


def looped() -> tilewright.Model:
    """A loop that ends when its state has no element above 0: never for others."""
    boolean = TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Sub", ["v", "step"], ["w"]),
            helper.make_node("ReduceMax", ["w"], ["most"], keepdims=0),
            helper.make_node("Greater", ["most", "zero"], ["next"]),
        ],
        "body",
        [info("i", [], I64), info("go", [], boolean), info("v", ["n"])],
        [info("next", [], boolean), info("w", ["n"])],
    )
    node = helper.make_node("Loop", ["", "go", "x"], ["y"], name="here", body=body)
    inputs = [info("x", ["n"]), info("step", ["n"])]
    constants = {"zero": np.float32(0), "go": np.array(True)}
    return tilewright.compile(model_of([node], inputs, ["y"], constants), cache=False)


ONE = np.ones(3, np.float32)


def test_a_loop_without_an_end_is_ended_by_max_seconds() -> None:
    model = looped()
    model.max_seconds = 0.2
    with pytest.raises(ExecutionError, match=r"max_seconds=0\.2[\s\S]*here"):
        model(ONE, 0 * ONE)
    model.max_seconds = 60
    assert model(ONE, ONE)[0].tolist() == [0, 0, 0]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_a_loop_and_the_model_goes_on() -> None:
    model = looped()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # whenever it comes
        timer.start()
        model(ONE, 0 * ONE)
    timer.join()
    assert model(ONE, ONE)[0].tolist() == [0, 0, 0]


def test_a_loop_ends_when_nobody_answers_whether_it_shall_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an interrupt ended what answers: Python drops what is raised between native code and it."""
    model = looped()
    model(ONE, ONE)
    (native,) = model._loaded.native
    (frame,) = native._frames
    frame.answers.close()
    dropped: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: dropped.append(raised.exc_type))
    with pytest.raises(KeyboardInterrupt):
        model(ONE, 0 * ONE)
    assert dropped == [StopIteration] and not native._frames
    model.max_seconds = 0.2
    with pytest.raises(ExecutionError, match="max_seconds"):
        model(ONE, 0 * ONE)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_during_native_code_comes_when_it_returns() -> None:
    """Of a command the process ends at once (tests/cli/test_interrupt.py); a program of somebody else's lives on."""
    side = 1200
    model = compiled("MatMul", [np.zeros((2, 2), np.float32)] * 2, threads=1)
    a = np.ones((side, side), np.float32)
    done = threading.Event()

    def interrupt() -> None:
        while not done.wait(0.002):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return

    with pytest.raises(KeyboardInterrupt):
        thread = threading.Thread(target=interrupt)
        thread.start()
        for _ in range(10_000):
            model(a, a)
    done.set()
    thread.join()
    assert np.array_equal(model(a, a)[0], np.full((side, side), side, np.float32))
