"""The exceptions and classes that clients import from here."""

from __future__ import annotations

from tilewright.onnxruntime.devices import OrtAllocatorType as OrtAllocatorType
from tilewright.onnxruntime.devices import OrtDevice as OrtDevice
from tilewright.onnxruntime.devices import OrtMemoryInfo as OrtMemoryInfo
from tilewright.onnxruntime.devices import OrtMemType as OrtMemType
from tilewright.onnxruntime.environment import get_available_providers as get_available_providers
from tilewright.onnxruntime.environment import get_device as get_device
from tilewright.onnxruntime.errors import EngineError as EngineError
from tilewright.onnxruntime.errors import EPFail as EPFail
from tilewright.onnxruntime.errors import Fail as Fail
from tilewright.onnxruntime.errors import InvalidArgument as InvalidArgument
from tilewright.onnxruntime.errors import InvalidGraph as InvalidGraph
from tilewright.onnxruntime.errors import InvalidProtobuf as InvalidProtobuf
from tilewright.onnxruntime.errors import ModelLoadCanceled as ModelLoadCanceled
from tilewright.onnxruntime.errors import ModelLoaded as ModelLoaded
from tilewright.onnxruntime.errors import ModelRequiresCompilation as ModelRequiresCompilation
from tilewright.onnxruntime.errors import NoModel as NoModel
from tilewright.onnxruntime.errors import NoSuchFile as NoSuchFile
from tilewright.onnxruntime.errors import NotFound as NotFound
from tilewright.onnxruntime.errors import NotImplemented as NotImplemented
from tilewright.onnxruntime.errors import RuntimeException as RuntimeException
from tilewright.onnxruntime.inference_session import InferenceSession as InferenceSession
from tilewright.onnxruntime.model_file import ModelMetadata as ModelMetadata
from tilewright.onnxruntime.ort_value import OrtValue as OrtValue
from tilewright.onnxruntime.session_options import ExecutionMode as ExecutionMode
from tilewright.onnxruntime.session_options import ExecutionOrder as ExecutionOrder
from tilewright.onnxruntime.session_options import GraphOptimizationLevel as GraphOptimizationLevel
from tilewright.onnxruntime.session_options import RunOptions as RunOptions
from tilewright.onnxruntime.session_options import SessionOptions as SessionOptions
from tilewright.runtime.values.node_arg import NodeArg as NodeArg
