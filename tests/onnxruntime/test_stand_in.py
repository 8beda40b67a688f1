"""Unchanged clients: what they import as `onnxruntime` is the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright.onnxruntime as ours
from tests import models

CLIENT = """\
import importlib.metadata
import importlib.util
import sys

import numpy as np
import onnxruntime
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as state
import onnxruntime.capi._pybind_state as C
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

assert C.SessionOptions is SessionOptions and OrtValue is ort.OrtValue and state.NoSuchFile is NoSuchFile
assert onnxruntime.capi.onnxruntime_pybind11_state is state
assert importlib.util.find_spec("onnxruntime") is not None
assert importlib.metadata.version("onnxruntime") == ort.__version__
assert importlib.metadata.version("numpy") == np.__version__
try:
    InferenceSession("no.onnx")
except NoSuchFile:
    pass
(y,) = InferenceSession(sys.argv[1]).run(None, {"x": np.ones((1, 64), np.float32)})
print(__name__, sys.argv[1:], round(float(y.sum()), 4), "tilewright" in onnxruntime.__file__)
"""


def run(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright.onnxruntime", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "mlp.onnx").write_bytes(models.mlp().SerializeToString())
    return tmp_path


def test_a_script_and_a_module_run_unchanged(folder: Path) -> None:
    for start in (["client.py"], ["-m", "client"]):
        result = run(*start, "mlp.onnx", "--flag", folder=folder)
        assert result.returncode == 0, result.stderr
        assert result.stdout == "__main__ ['mlp.onnx', '--flag'] 1.0 True\n"


def test_a_call_without_a_client_is_refused(folder: Path) -> None:
    for wrong in ([], ["-m"], ["--what"]):
        result = run(*wrong, folder=folder)
        assert result.returncode == 2 and result.stderr.startswith("usage: python -m tilewright.onnxruntime")
    assert run("--help", folder=folder).stdout.startswith("usage: ")


def test_a_client_that_does_not_exist_is_named(folder: Path) -> None:
    assert "there is no module nobody" in run("-m", "nobody", folder=folder).stderr
    assert "there is no file nobody.py" in run("nobody.py", folder=folder).stderr


def test_a_process_that_has_the_real_one_keeps_it(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    (folder / "late.py").write_text(
        "import onnxruntime\nfrom tilewright.onnxruntime.stand_in import replace_onnxruntime\n"
        "try:\n    replace_onnxruntime()\nexcept ImportError as error:\n    print(error)\n"
    )
    result = subprocess.run([sys.executable, "late.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.stdout.startswith("onnxruntime is imported already: "), result.stderr


def test_devices_and_allocators_are_those_of_the_cpu() -> None:
    device = ours.OrtDevice.make("CPU", 0)
    assert (device.device_type(), device.device_id()) == ("cpu", 0)
    with pytest.raises(RuntimeError, match="not on the device 'cuda'"):
        ours.OrtDevice.make("cuda", 0)
    memory = ours.OrtMemoryInfo("Cpu", ours.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ours.OrtMemType.DEFAULT)
    ours.create_and_register_allocator(memory, ours.OrtArenaCfg(0, -1, -1, -1))
    assert memory.name == "Cpu" and memory.mem_type == 0


def test_what_is_missing_says_what_to_do() -> None:
    with pytest.raises(AttributeError, match=r"tilewright\.quantize"):
        ours.quantization  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean 'InferenceSession'\?"):
        ours.InferenceSesion  # noqa: B018
    program = (
        "from tilewright.onnxruntime.stand_in import replace_onnxruntime; replace_onnxruntime()\n"
        "try:\n    from onnxruntime.quantization import quantize_static\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "no package 'onnxruntime.quantization': quantise with tilewright.quantize" in done.stdout
