"""The classes whose Python part is here in ONNX Runtime."""

from __future__ import annotations

from tilewright.onnxruntime.devices import OrtDevice as OrtDevice
from tilewright.onnxruntime.inference_session import InferenceSession as InferenceSession
from tilewright.onnxruntime.io_binding import IOBinding as IOBinding
from tilewright.onnxruntime.ort_value import OrtValue as OrtValue

Session = InferenceSession
