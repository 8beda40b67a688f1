"""Engines to measure beside: each loads a model and gives a function that runs it once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.errors import OptionError

Arrays = Sequence[np.ndarray]
Run = Callable[[], Arrays]


Feeds = Mapping[str, Any]
"""Arrays by the names of inputs; plain numbers and lists take the type of their input."""


def onnxruntime(path: Path, inputs: Feeds, threads: int) -> Run:
    """ONNX Runtime on its CPU provider with all of its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    types = {given.name: _ORT_TYPES.get(given.type) for given in session.get_inputs()}
    feeds = {name: _array(value, types.get(name)) for name, value in inputs.items()}
    return lambda: session.run(None, feeds)


_ORT_TYPES = {"tensor(float)": "float32", "tensor(double)": "float64"} | {
    f"tensor({name})": name
    for name in ("bool", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


def _array(value: Any, dtype: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype)


def openvino(path: Path, inputs: Feeds, threads: int) -> Run:
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
    names = {port: next(n for n in port.names if n in inputs) for port in compiled.inputs}
    feeds = {port: _array(inputs[name], port.element_type.to_dtype()) for port, name in names.items()}

    def run() -> Arrays:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [results[port] for port in compiled.outputs]

    return run


PEERS: dict[str, Callable[[Path, Feeds, int], Run]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def load_peer(name: str, path: Path, inputs: Feeds, threads: int) -> Run:
    """The function that runs `name` once; OptionError when it is not installed or refuses the model."""
    try:
        return PEERS[name](path, inputs, threads)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{name} is not installed ({error})",
            hint="pip install 'tilewright[bench]', or leave it out of --vs",
        ) from error
    except Exception as error:
        raise OptionError(f"{name} cannot load {path}: {error}", hint=f"leave {name} out of --vs") from error
