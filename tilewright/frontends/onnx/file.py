"""Reading an ONNX file: the only thing trusted is its length."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from tilewright.frontends.files import read_file
from tilewright.frontends.weights.foreign import foreign_format
from tilewright.ir.diag import ModelError
from tilewright.runtime.errors import OptionError

Source = str | os.PathLike[str] | bytes | onnx.ModelProto

MAX_FILE_BYTES = 2**31 - 1
"""The longest message that protobuf can hold."""
_TOO_LONG = "store the weights as external data"


def read_model(source: Source) -> tuple[onnx.ModelProto, Path | None]:
    """The model, and the folder that its external data must lie in (None when it did not come from a file).

    ModelError when the file is missing, not a regular file, too big, truncated or not ONNX; OptionError for
    what is no source at all.
    """
    given = Path(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(given, onnx.ModelProto) and (foreign := foreign_format(given)) is not None:
        raise foreign.error(given)
    folder, where = None, "the given ModelProto"
    if isinstance(source, onnx.ModelProto):
        model = source
    elif isinstance(source, bytes):
        where = "the given bytes"
        model = _parse(source, where)
    elif not isinstance(source, str | os.PathLike):
        raise OptionError(
            f"{source!r:.80} is no model: it is of type {type(source).__name__}",
            hint="give the path of an ONNX file, its bytes, or an onnx.ModelProto",
        )
    else:
        path, where = Path(source), str(source)
        model, folder = _parse(read_file(path, MAX_FILE_BYTES, _TOO_LONG), where), path.parent
    _check_header(model, where)
    return model, folder


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelError("the model file is empty", where=where, hint="was the download complete?")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as e:
        raise ModelError(
            "not an ONNX model: the protobuf message cannot be decoded",
            where=where,
            hint="the file is truncated, damaged, or of another format",
        ) from e
    return model


def _check_header(model: onnx.ModelProto, where: str) -> None:
    for is_wrong, problem in (
        (not model.HasField("graph"), "the model has no graph"),
        (not 1 <= model.ir_version < 1000, f"ir_version {model.ir_version} does not exist"),
        (not model.opset_import, "the model imports no operator set"),
    ):
        if is_wrong:
            raise ModelError(problem, where=where, hint="is this an ONNX model, and is the file complete?")
    for part in (*model.opset_import, model.graph, *model.functions):
        _check_names(part, where)


def _check_names(message: Message, where: str) -> None:
    """ModelError for a name that is not UTF-8, which protobuf hands out as bytes instead of text.

    Descriptions may hold anything. Of tensors only the name is looked at, as listing their fields copies them.
    """
    if isinstance(message, onnx.TensorProto):
        _check_text(message.name, "name", where)
        return
    for field, value in message.ListFields():
        if field.name in _FREE_TEXTS or field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in (value,) if isinstance(value, str | bytes | Message) else value:
            if field.type == field.TYPE_MESSAGE:
                _check_names(item, where)
            else:
                _check_text(item, field.name, where)


_FREE_TEXTS = ("doc_string", "metadata_props")


def _check_text(text: str | bytes, field: str, where: str) -> None:
    if isinstance(text, bytes):
        raise ModelError(
            f"a text of the model is not UTF-8: {field} {text[:40]!r}",
            where=where,
            hint="the file is damaged, or was not written by an ONNX exporter",
        )
