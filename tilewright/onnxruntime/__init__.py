"""A stand-in for ONNX Runtime: the names that its clients import, on models that tilewright compiles.

`import tilewright.onnxruntime as ort`, or unchanged clients by `python -m tilewright.onnxruntime`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NoReturn

from tilewright.onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_pybind11_state
from tilewright.onnxruntime.devices import (
    OrtAllocatorType,
    OrtArenaCfg,
    OrtDevice,
    OrtMemoryInfo,
    OrtMemType,
    create_and_register_allocator,
)
from tilewright.onnxruntime.environment import (
    API_VERSION,
    MISSING,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from tilewright.onnxruntime.inference_session import InferenceSession
from tilewright.onnxruntime.io_binding import IOBinding
from tilewright.onnxruntime.model_file import ModelMetadata
from tilewright.onnxruntime.ort_value import OrtValue
from tilewright.onnxruntime.session_options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from tilewright.runtime.values.node_arg import NodeArg

__version__ = API_VERSION

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtArenaCfg",
    "OrtDevice",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "create_and_register_allocator",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name: str) -> NoReturn:
    close = get_close_matches(name, __all__, 1)
    said = f" (did you mean '{close[0]}'?)" if close else ""
    way = f": {MISSING[name]}" if name in MISSING else ""
    raise AttributeError(
        f"tilewright's stand-in for onnxruntime has no '{name}'{said}{way}; docs/onnxruntime.md says what it has",
        name=name,
    )
