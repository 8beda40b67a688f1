"""Paths of what is no regular file: each reader refuses it at once, and waits for nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.api import compile_artifact
from tilewright.frontends.files import file_mentions, first_bytes, open_regular
from tilewright.frontends.onnx.load import load_onnx
from tilewright.frontends.weights.safetensors import read_safetensors
from tilewright.ir.diag import TilewrightError
from tilewright.onnxruntime.model_file import open_wire
from tilewright.options import Options
from tilewright.quantization.data import read_npz
from tilewright.runtime.values.recorded import load_array

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


def uncached(path: Path) -> object:
    return compile_artifact(path, options=Options(cache=False))


READERS: list[tuple[str, Callable[[Path], object]]] = [
    *((suffix, uncached) for suffix in (".onnx", ".tflite", ".pt2", ".mlir", ".bin", "")),
    *((suffix, lambda path: tilewright.compile(path)) for suffix in (".onnx", ".mlir")),
    (".onnx", tilewright.check),
    (".tw", tilewright.load),
    (".safetensors", read_safetensors),
    (".npy", lambda path: load_array(path, "input 'x'")),
    (".npz", read_npz),
    ("", open_wire),
    ("", lambda path: file_mentions(path, b"x")),
    ("", lambda path: open_regular(path).__enter__()),
]


def in_time(action: Callable[[], object]) -> BaseException | None:
    """What `action` raises; TimeoutError where it does not end within some seconds."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    return raised[0] if raised else TimeoutError()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize(("suffix", "reader"), READERS)
def test_what_is_no_regular_file_is_refused_at_once(
    suffix: str, reader: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    error = in_time(lambda: reader(path))
    assert isinstance(error, TilewrightError | OSError), f"{error!r}"
    assert first_bytes(path, 8) == b""


def test_weights_of_a_model(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    onnx.external_data_helper.set_external_data(weight, "weights", offset=0, length=16)
    weight.ClearField("raw_data")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    os.mkfifo(tmp_path / "weights")
    error = in_time(lambda: load_onnx(tmp_path / "m.onnx"))
    assert isinstance(error, TilewrightError) and "is not a regular file" in str(error)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("command", [["run"], ["bench"], ["explain"]])
def test_commands(command: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.tw")
    arguments = [sys.executable, "-m", "tilewright", *command, str(tmp_path / "model.tw")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "regular file" in done.stderr and "Traceback" not in done.stderr
