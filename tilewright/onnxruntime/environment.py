"""What clients ask of the package itself."""

from __future__ import annotations

from tilewright.onnxruntime.inference_session import PROVIDER
from tilewright.onnxruntime.session_options import check_severity

API_VERSION = "1.20.0"
"""The version of ONNX Runtime whose interface this is."""


MISSING = {
    "quantization": "quantise with tilewright.quantize, or in a process with ONNX Runtime itself; the models run here",
    "transformers": "optimise in a process with ONNX Runtime itself, or not at all: graphs are optimised when compiled",
    "tools": "they are made for ONNX Runtime itself",
    "training": "models are only run here",
}
"""Packages of ONNX Runtime that are not here, and what to do instead."""


def get_available_providers() -> list[str]:
    return [PROVIDER]


get_all_providers = get_available_providers


def get_device() -> str:
    return "CPU"


def get_version_string() -> str:
    return API_VERSION


def get_build_info() -> str:
    return f"tilewright, with the interface of ONNX Runtime {API_VERSION}"


def set_default_logger_severity(severity: int) -> None:
    """Without a meaning here: nothing is logged. RuntimeError for what is no severity."""
    check_severity(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Without a meaning here."""


def set_seed(seed: int) -> None:
    """Without a meaning here: models with random operators carry their seeds."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Without a meaning here."""


def enable_telemetry_events() -> None:
    """Without a meaning here: nothing is sent."""


def disable_telemetry_events() -> None:
    """Without a meaning here: nothing is sent."""
