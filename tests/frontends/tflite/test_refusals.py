"""Bad files, and models that ask for what is not supported, get one clear error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.frontends.tflite.models import Graph, Node, Tensor, constant, node_model, written
from tests.frontends.tflite.test_models import network
from tests.frontends.tflite.test_quantised import convolution
from tilewright.frontends.tflite.load import load_tflite
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError

X = np.zeros((2, 3), np.float32)


def test_all_operators_that_are_not_supported_are_listed() -> None:
    tensors = [Tensor(name, (2,)) for name in "xabcd"]
    nodes = [
        Node("SKIP_GRAM", ["x"], ["a"]), Node("CUSTOM(Mine)", ["a"], ["b"]), Node("NEG", ["b"], ["c"]),
        Node("LSH_PROJECTION", ["c"], ["d"]),
    ]  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        load_tflite(written(Graph(tensors, nodes, ["x"], ["d"])))
    assert [p.operator for p in caught.value.problems] == ["SKIP_GRAM", "CUSTOM(Mine)", "LSH_PROJECTION"]
    assert "operator 1 'b' (CUSTOM(Mine))" in str(caught.value)


def _named(kind: str, *arrays: np.ndarray, known: tuple[int, ...] = (), **options: object) -> Callable[[], bytes]:
    return lambda: node_model(kind, list(arrays), options=options, known=known)


def _truncated() -> bytes:
    return network(False)[0][:2000]


def _missing() -> bytes:
    return written(Graph([Tensor("x", (2,)), Tensor("y", (2,)), Tensor("z", (2,))],
                         [Node("ADD", ["x", "z"], ["y"])], ["x"], ["y"]))  # fmt: skip


def _short() -> bytes:
    return node_model("ADD", [X, Tensor("w", (7, 9), np.float32, np.zeros(3, np.float32))])


SMALL = np.zeros((1, 4, 4, 2), np.float32)
FILTERS = np.zeros((2, 3, 3, 2), np.float32)
REFUSED: dict[str, tuple[Callable[[], bytes], type[TilewrightError], str]] = {
    "nothing": (lambda: b"", ModelError, "the file is empty"),
    "another format": (lambda: b"\x08\x07\x12\x0bbackend", ModelError, "not a TFLite model: it does not begin as one"),
    "a truncated file": (_truncated, ModelError, "not a TFLite model: it refers to"),
    "a tensor without a value": (_missing, ModelError, "'z' is read, but no operator before gives it"),
    "a constant that is too short": (_short, ModelError, "'w' has 12 bytes, not 252"),
    "strings": (
        lambda: node_model("RANK", [Tensor("x", (2,), type_number=5)], np.int32), UnsupportedError,
        "tensors of STRING are not supported",
    ),
    "a type that does not exist": (
        lambda: node_model("RANK", [Tensor("x", (2,), type_number=99)], np.int32), ModelError, "element type 99",
    ),
    "no such type of result": (
        lambda: node_model("NEG", [X], np.int8), ModelError, "declared as i8, but the operator gives f32[2, 3]",
    ),
    "operands that do not fit": (_named("ADD", X, np.zeros((4,), np.float32)), TilewrightError, "ADD"),
    "too few operands": (_named("ADD", X), ModelError, "ADD needs an operand 1"),
    "an activation that does not exist": (_named("ADD", X, X, activation=77), ModelError, "activation 77"),
    "an activation of bits": (_named("ADD", X, X, activation=5), UnsupportedError, "SIGN_BIT"),
    "a stride of nothing": (
        _named("CONV_2D", SMALL, FILTERS, known=(1,), stride_h=0, stride_w=1), ModelError, "stride_h 0",
    ),
    "channels that do not fit": (
        _named("CONV_2D", SMALL[..., :1], FILTERS, known=(1,), stride_h=1, stride_w=1), ModelError, "1 channels",
    ),
    "filters of too few axes": (_named("CONV_2D", SMALL, X, known=(1,)), ModelError, "must have 4 axes"),
    "a target that holds too little": (
        _named("RESHAPE", X, np.array([4], np.int32), known=(1,)), TilewrightError, "RESHAPE",
    ),
    "an axis that is not there": (_named("CONCATENATION", X, X, axis=5), ModelError, "axis 5 is out of range"),
    "shuffled weights": (_named("FULLY_CONNECTED", X, X, weights_format=1), UnsupportedError, "shuffled weights"),
    "a target that is computed": (
        _named("RANGE", np.float32(0), np.float32(3), np.float32(1)), UnsupportedError,
        "needs the value of its operand",
    ),
    "a zero point that is no byte": (
        lambda: node_model("NEG", [Tensor("x", (2,), np.int8, None, 0.1, 300)], np.float32), ModelError, "zero point",
    ),
    "scales for another axis": (
        lambda: node_model("NEG", [Tensor("x", (2,), np.int8, None, [0.1, 0.2, 0.3])], np.float32), ModelError,
        "has 3 scales for axis 0",
    ),
    "a subgraph that is not there": (_named("CALL", X, subgraph=7), ModelError, "no subgraph 7"),
    "coupled gates": (
        lambda: node_model("UNIDIRECTIONAL_SEQUENCE_LSTM", [np.zeros((1, 2, 3), np.float32), None]), UnsupportedError,
        "coupled gates",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_model_is_refused(case: str) -> None:
    make, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        load_tflite(make())
    assert words in str(caught.value)


def test_options_of_another_operator_are_refused() -> None:
    data = node_model("SOFTMAX", [X], options={"beta": 1.0})
    refused = 0
    for k in np.flatnonzero(np.frombuffer(data, np.uint8) == 9):  # one of these bytes is the number of the options
        try:
            load_tflite(data[:k] + b"\x11" + data[k + 1 :])
        except TilewrightError as error:
            refused += "has the options of another operator" in str(error)
    assert refused == 1


@pytest.mark.fresh_seeds(8)
def test_damaged_files_never_crash(fresh_seed: int) -> None:
    """Bytes that are changed at random give a model or an error of ours, in a bounded time."""
    rng = np.random.default_rng(fresh_seed)
    whole = [network(True)[0], convolution()[0], node_model("STRIDED_SLICE", [
        constant("x", X), *[constant(n, np.array([0, 1], np.int32)) for n in "abc"]])][fresh_seed % 3]  # fmt: skip
    for _ in range(12):
        data = np.frombuffer(whole, np.uint8).copy()
        count = int(rng.integers(1, 9))
        where = rng.integers(0, len(data), count)
        data[where] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))], count)
        cut = len(data) if rng.random() < 0.8 else int(rng.integers(8, len(data)))
        try:
            load_tflite(data[:cut].tobytes())
        except TilewrightError as error:
            assert "please report" not in str(error), error
