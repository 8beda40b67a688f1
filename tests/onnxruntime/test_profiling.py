"""`enable_profiling` writes the file that ONNX Runtime's tools read, and unknown attributes name the nearest one."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright.onnxruntime as ours
from tests.onnxruntime.test_sessions import MODEL, RESHAPE, X, real, session


def profiling(ort: Any, folder: Path, prefix: str = "profile") -> Any:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / prefix)
    return options


def events(path: str) -> list[dict[str, Any]]:
    return json.loads(Path(path).read_text())


def test_the_file_has_the_form_of_onnx_runtimes(tmp_path: Path) -> None:
    found = []
    for ort in (real, ours):
        opened = session(ort, sess_options=profiling(ort, tmp_path))
        for _ in range(2):
            opened.run(None, {"x": X})
        path = opened.end_profiling()
        assert Path(path).parent == tmp_path and Path(path).match("profile_????-??-??_??-??-??_*.json")
        assert opened.end_profiling() == "", "it is written once"
        opened.run(None, {"x": X})  # and goes on
        found.append(events(path))
    for trace in found:
        assert all({"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"} == event.keys() for event in trace)
        assert all(event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 for event in trace)
        assert [e["name"] for e in trace if e["cat"] == "Session"].count("model_run") == 2
        nodes = [e for e in trace if e["cat"] == "Node"]
        assert nodes and all(e["name"].endswith("_kernel_time") and e["args"]["op_name"] for e in nodes)
        assert all(e["args"]["provider"] == "CPUExecutionProvider" for e in nodes)


def test_kernels_lie_within_their_run(tmp_path: Path) -> None:
    opened = ours.InferenceSession(MODEL, profiling(ours, tmp_path))
    (y, z) = opened.run(None, {"x": X})
    assert np.array_equal(y, X + 1) and np.array_equal(z, -y)
    opened.run(["z"], {"x": X[:1]})
    trace = events(opened.end_profiling())
    runs = [e for e in trace if e["name"] == "model_run"]
    kernels = [e for e in trace if e["cat"] == "Node"]
    assert sum(e["dur"] for e in kernels) > 0
    for kernel in kernels:
        ends = kernel["ts"] + kernel["dur"]
        assert any(r["ts"] <= kernel["ts"] and ends <= r["ts"] + r["dur"] + 0.01 for r in runs)


def test_models_that_are_compiled_for_a_feed_are_profiled(tmp_path: Path) -> None:
    opened = ours.InferenceSession(RESHAPE, profiling(ours, tmp_path))
    for shape in ([2, 3], [3, 2]):
        (y,) = opened.run(None, {"x": np.zeros(6, np.float32), "shape": np.array(shape)})
        assert list(y.shape) == shape
    assert [e["name"] for e in events(opened.end_profiling())].count("model_run") == 2


@pytest.mark.usefixtures("own_garbage")
def test_a_session_that_is_gone_has_written_its_profile(tmp_path: Path) -> None:
    ours.InferenceSession(MODEL, profiling(ours, tmp_path)).run(None, {"x": X})
    gc.collect()
    (path,) = tmp_path.glob("profile_*.json")
    assert any(e["name"] == "model_run" for e in events(str(path)))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    opened = ours.InferenceSession(MODEL, profiling(ours, tmp_path, "missing/profile"))
    with pytest.raises(ours.onnxruntime_pybind11_state.Fail, match=r"cannot be written to .*missing.*\n.*_prefix"):
        opened.end_profiling()


def test_nothing_is_profiled_unless_asked_for() -> None:
    assert ours.InferenceSession(MODEL).end_profiling() == ""


def test_attributes_that_do_not_exist_name_the_nearest() -> None:
    options = ours.SessionOptions()
    with pytest.raises(AttributeError, match="no attribute 'intra_op_num_thread'; did you mean 'intra_op_num_threads'"):
        options.intra_op_num_thread = 2
    for thing, name, meant in (
        (options, "enable_profilling", "enable_profiling"),
        (ours.RunOptions(), "log_severity", "log_severity_level"),
        (ours.InferenceSession(MODEL), "get_input", "get_inputs"),
        (ours.InferenceSession(MODEL).io_binding(), "bind_inputs", "bind_input"),
        (ours.OrtValue.ortvalue_from_numpy(X), "shapes", "shape"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean '{meant}'"):
            getattr(thing, name)
        assert not hasattr(thing, "__array_interface__")
