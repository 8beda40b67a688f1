"""ONNX Runtime's exceptions, and which of them stands for an error of ours."""

from __future__ import annotations

from typing import ClassVar

from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.runtime.errors import InputError, OptionError, TilewrightError


class OnnxRuntimeError(Exception):
    """What the exceptions have in common: a number and a name, which the message of one that is raised here begins
    with, as ONNX Runtime's does."""

    status: ClassVar[tuple[int, str]]

    @classmethod
    def of(cls, message: object) -> OnnxRuntimeError:
        """One with a message in ONNX Runtime's form."""
        number, name = cls.status
        return cls(f"[ONNXRuntimeError] : {number} : {name} : {message}")


class Fail(OnnxRuntimeError):
    """A model contradicts itself, or fails while it runs."""

    status = 1, "FAIL"


class InvalidArgument(OnnxRuntimeError):
    """A feed, an output name or an option does not fit."""

    status = 2, "INVALID_ARGUMENT"


class NoSuchFile(OnnxRuntimeError):
    """There is no file at the path of a model."""

    status = 3, "NO_SUCHFILE"


class NoModel(OnnxRuntimeError):
    """For clients that name it; never raised here, as those below without another text."""

    status = 4, "NO_MODEL"


class EngineError(OnnxRuntimeError):
    """See NoModel."""

    status = 5, "ENGINE_ERROR"


class RuntimeException(OnnxRuntimeError):
    """See NoModel."""

    status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OnnxRuntimeError):
    """A file or bytes are no ONNX model."""

    status = 7, "INVALID_PROTOBUF"


class ModelLoaded(OnnxRuntimeError):
    """See NoModel."""

    status = 8, "MODEL_LOADED"


class NotImplemented(OnnxRuntimeError):
    """A model or a client asks for something that tilewright does not have."""

    status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OnnxRuntimeError):
    """The graph of a model is none of ONNX's."""

    status = 10, "INVALID_GRAPH"


class EPFail(OnnxRuntimeError):
    """See NoModel."""

    status = 11, "EP_FAIL"


class ModelLoadCanceled(OnnxRuntimeError):
    """See NoModel."""

    status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(OnnxRuntimeError):
    """See NoModel."""

    status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(OnnxRuntimeError):
    """See NoModel."""

    status = 14, "NOT_FOUND"


def as_onnxruntime(error: TilewrightError) -> OnnxRuntimeError:
    """The exception that ONNX Runtime's clients expect in the place of `error`, with the message of ours."""
    if isinstance(error, InputError | OptionError):
        return InvalidArgument.of(error)
    if isinstance(error, UnsupportedError):
        return NotImplemented.of(error)
    if isinstance(error, ModelError):
        return InvalidGraph.of(error)
    return Fail.of(error)
