"""The same names as in onnxruntime_pybind11_state."""

from __future__ import annotations

from tilewright.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
