"""Errors in the form of OpenAI: a status, and an object that says what is wrong with which parameter."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tilewright.ir.diag import UnsupportedError
from tilewright.llm.serving.requests import BusyError, PromptSizeError, StoppedError
from tilewright.runtime.errors import InputError, OptionError, TilewrightError, short_name

_WRONG = "invalid_request_error"


class RefusedError(Exception):
    """A request that gets an error as its answer. `kind` is what OpenAI calls its type."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = _WRONG,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.param, self.code = message, status, kind, param, code
        self.headers = headers or {}

    def record(self) -> dict[str, Any]:
        """What the client is sent."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def refused(error: BaseException, param: str | None = None) -> RefusedError:
    """What a client is told of an error; of a defect nothing but that it is one."""
    if isinstance(error, RefusedError):
        return error
    text = _line(error)
    match error:
        case BusyError():
            return RefusedError(
                text, status=429, kind="rate_limit_error", code="queue_full", headers={"Retry-After": "1"}
            )
        case StoppedError():
            return RefusedError(text, status=503, kind="server_error", code="stopped")
        case UnsupportedError():
            return RefusedError(text, status=501, code="unsupported", param=param)
        case PromptSizeError():
            return RefusedError(text, code="context_length_exceeded", param=param)
        case MemoryError():
            return RefusedError(
                "there is no memory for this request now", status=503, kind="server_error", code="no_memory"
            )
        case InputError() | OptionError():
            return RefusedError(text, param=param)
        case TilewrightError():
            return RefusedError(text, status=500, kind="server_error")
    return RefusedError("internal error: this is a defect of the server", status=500, kind="server_error")


def wrong_fields(error: ValidationError) -> RefusedError:
    """What is wrong with the fields of a request: of the first one, all that is."""
    first, *others = error.errors(include_url=False, include_input=False)
    place = first["loc"]
    name = str(place[0]) if place else None
    if first["type"] == "extra_forbidden":
        path = ".".join(map(str, place))
        return RefusedError(
            f"Unrecognized request argument supplied: {short_name(path)}",
            param=short_name(path),
            code="unknown_parameter",
        )
    if first["type"] == "missing":
        path = ".".join(map(str, place))
        return RefusedError(
            f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
        )
    told = [one["msg"] for one in (first, *others) if one["loc"][:1] == place[:1]]
    return RefusedError(
        f"Invalid value for '{name}': {'; or '.join(dict.fromkeys(told))}", param=name, code="invalid_value"
    )


def _line(error: BaseException) -> str:
    """What and how to go on; places are those of the server's files."""
    if isinstance(error, TilewrightError):
        return error.what + (f" ({error.hint})" if error.hint else "")
    return str(error)
