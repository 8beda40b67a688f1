"""`--constant` and `--shape` in every command that compiles, and `constants=` of Python numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import tilewright
from tests import models
from tilewright.cli.app import commands
from tilewright.ir.diag import ModelError
from tilewright.runtime.errors import OptionError


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x * float(rate) + offset, with three dims of offset that the input fixes."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["rate"], ["factor"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "factor"], ["product"]),
            helper.make_node("Add", ["product", "a=b"], ["y"]),
        ],
        "rated",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("rate", TensorProto.INT64, []),
            helper.make_tensor_value_info("a=b", TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    return models.written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path, "rated"
    )


FIXED = ("--constant", "rate=16000", "--constant", "a=b=1,2.5,-3")


def test_compile_and_run(model: Path, tmp_path: Path) -> None:
    assert call("compile", model, "-o", tmp_path / "m.tw", *FIXED).exit_code == 0
    loaded = tilewright.load(tmp_path / "m.tw")
    assert [str(info) for info in loaded.inputs] == ["x: float32[n, 3]"]
    (y,) = loaded(np.ones((1, 3), np.float32))
    assert y.tolist() == [[16001, 16002.5, 15997]]


@pytest.mark.parametrize("command", [["run", "--input", "random"], ["show"], ["show", "--level", "loops"],
                                     ["show", "--level", "import"], ["explain"]])  # fmt: skip
def test_the_other_commands(model: Path, command: list[str]) -> None:
    result = call(command[0], model, *command[1:], *FIXED, "--shape", "x=2,3", "--numerics", "strict")
    assert result.exit_code == 0, result.output
    if command[0] == "show":
        assert "(x: f32[2, 3])" in result.output or "x[i0, 2] * 16000.0" in result.output


def test_bench_gives_peers_what_is_constant(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = call("bench", model, *FIXED, "--vs", "onnxruntime", "--rounds", 1, "--turn", 0, "--threads", 1)
    assert result.exit_code == 0, result.output
    (row,) = [line.split() for line in result.output.splitlines() if line.split()[-1:] == ["0.0e+00"]]
    assert "onnxruntime" in " ".join(row).lower().replace(" ", "")


def test_a_file(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "offset.npy", np.arange(3, dtype=np.float32))
    arguments = ("--constant", f"a=b={tmp_path / 'offset.npy'}", "--constant", "rate=1", "--input", "x=zeros")
    assert call("run", model, *arguments, "--output", tmp_path / "out").exit_code == 0
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("code", "value", "words"),
    [
        (1, "sr=3", "constants= names 'sr', which is no input of the model"),
        (1, "rate=1.5", "constants= gives float64[] for an input of type i64[]"),
        (1, "rate=1,2", "constants= gives int64[2] for an input of type i64[]"),
        (1, "rate=true", "constants= gives bool[] for an input of type i64[]"),
        (1, "a=b=1", "constants= gives float32[] for an input of type f32[3]"),
        (1, "rate=absent.npy", "cannot read absent.npy: No such file or directory where: --constant rate"),
        (1, "rate=f32.npy", "constants= gives float32[] for an input of type i64[]"),
        (1, "rate=text.npy", "text.npy is not a .npy file"),
        (2, "rate", "--constant rate: write NAME=VALUE"),
        (2, "=3", "--constant =3: write NAME=VALUE"),
        (2, "rate=", "--constant rate=: the value is no number"),
        (2, "rate=fast", "the value is no number"),
        (2, "rate=[1,[2]]", "the value is no number"),
        (2, 'rate={"a": 1}', "the value is no number"),
        (2, 'rate="x"', "the value is no number"),
        (2, "rate=null", "the value is no number"),
        (2, "rate=" + "[" * 100_000, "the value is no number"),
        (2, "rate=" + "9" * 30, "the value is no number"),
    ],
)
def test_mistakes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, value: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("f32.npy", np.float32(2))
    Path("text.npy").write_text("no array")
    result = call("show", model, "--level", "import", "--constant", value)
    assert result.exit_code == code, result.output
    assert words in " ".join(result.output.split())


def test_a_constant_given_twice(model: Path) -> None:
    result = call("show", model, "--constant", "rate=1", "--constant", "rate=2")
    assert result.exit_code == 2 and "--constant is given twice for rate" in result.output
    result = call("show", model, "--shape", "x=1,3", "--shape", "x=2,3")
    assert result.exit_code == 2 and "--shape is given twice for x" in result.output


def one_input(kind: int, shape: list[int]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", kind, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.parametrize(
    ("kind", "value", "dtype"),
    [
        (TensorProto.FLOAT, 0.1, np.float32),
        (TensorProto.FLOAT16, 3, np.float16),
        (TensorProto.INT8, -5, np.int8),
        (TensorProto.BOOL, True, np.bool_),
        (TensorProto.DOUBLE, float("inf"), np.float64),
        (TensorProto.FLOAT, np.asarray(0.1), np.float32),
        (TensorProto.INT32, np.asarray(16000), np.int32),
    ],
)
def test_numbers_as_python_has_them_take_the_dtype_of_their_input(kind: int, value: Any, dtype: type) -> None:
    (found,) = tilewright.compile(one_input(kind, []), constants={"x": value})()
    assert found.dtype == dtype and found == dtype(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TensorProto.INT8, 200),
        (TensorProto.INT64, 0.5),
        (TensorProto.BOOL, 1),
        (TensorProto.FLOAT16, 1e6),
        (TensorProto.FLOAT, 2**24 + 1),
        (TensorProto.FLOAT, np.float16(0.5)),
        (TensorProto.FLOAT, "text"),
        (TensorProto.INT64, np.zeros((), np.int32)),
    ],
)
def test_numbers_that_do_not_fit_and_arrays_of_other_types_are_refused(kind: int, value: Any) -> None:
    with pytest.raises(ModelError, match="constants= gives"):
        tilewright.compile(one_input(kind, []), constants={"x": value}, cache=False)


@pytest.mark.parametrize("value", [b"text", None, object(), ["text", 1, None], [[1], [2, 3]], 10**30])
def test_what_is_no_array_of_numbers_or_strings_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"constants=\{'x': .* is not allowed"):
        tilewright.compile(one_input(TensorProto.FLOAT, []), constants={"x": value})


def test_lists_are_constants_too() -> None:
    (found,) = tilewright.compile(one_input(TensorProto.FLOAT, [2]), constants={"x": [1, 2.5]})()
    assert found.dtype == np.float32 and found.tolist() == [1, 2.5]
