"""Engines to measure beside: each loads a model and gives a function that runs it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.errors import InputError, OptionError

Arrays = Sequence[np.ndarray]
Run = Callable[[int], Arrays]
"""Runs the feed of a number."""


Feeds = Mapping[str, Any]
"""Arrays by the names of inputs; plain numbers and lists take the type of their input."""


def onnxruntime(path: Path, feeds: Sequence[Feeds], threads: int) -> Run:
    """ONNX Runtime on its CPU provider with all of its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    types = {given.name: _ORT_TYPES.get(given.type) for given in session.get_inputs()}
    made = [{name: _array(value, types.get(name)) for name, value in feed.items()} for feed in feeds]
    return lambda number: session.run(None, made[number])


_ORT_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {
    f"tensor({name})": name
    for name in ("bool", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


def _array(value: Any, dtype: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype)


def openvino(path: Path, feeds: Sequence[Feeds], threads: int) -> Run:
    """OpenVINO's CPU plugin, told to compute in float32 as the model says (its default may be bfloat16)."""
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()
    names = {port: next(n for n in port.names if n in feeds[0]) for port in compiled.inputs}
    made = [
        {port: _array(feed[name], port.element_type.to_dtype()) for port, name in names.items()} for feed in feeds
    ]

    def run(number: int) -> Arrays:
        results = request.infer(made[number], share_inputs=True, share_outputs=True)
        return [results[port] for port in compiled.outputs]

    return run


PEERS: dict[str, Callable[[Path, Sequence[Feeds], int], Run]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def load_peer(name: str, path: Path, feeds: Sequence[Feeds], threads: int) -> Run:
    """The function that runs `name` on one of the feeds; OptionError when it is not installed, refuses the model, or
    cannot run it."""
    hint = f"leave {name} out of --vs"
    try:
        run = PEERS[name](path, feeds, threads)
    except ModuleNotFoundError as error:
        raise OptionError(f"{name} is not installed ({error})", hint=f"pip install {name}, or {hint}") from error
    except Exception as error:
        raise OptionError(f"{name} cannot load {path}: {error}", hint=hint) from error

    def guarded(number: int) -> Arrays:
        try:
            return run(number)
        except Exception as error:  # its own refusal of an input, say, which is no defect of ours
            raise InputError(f"{name} failed on the model: {error}", where=str(path), hint=hint) from error

    return guarded
