"""The ONNX front end. This module imports neither onnx nor the translation, which a model that the cache has does not
need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.exported import ExportedDecoder
from tilewright.frontends.files import digest_of_file, file_mentions, first_bytes
from tilewright.frontends.front_end import Remember

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

_INSIDE, _OUTSIDE = b"inside", b"outside"
_LOCATION = b"location"
"""What ONNX calls the name of a file that holds a tensor's data."""

_IR_VERSION, _NEXT_FIELDS = 0x08, b"\x12\x1a\x22\x28\x32\x3a\x42"
"""Tags of protobuf: the first field of a model, the version (a small number), and those that may come after it."""


class OnnxFrontEnd:
    """Files of any suffix that begin as ONNX's do, their bytes, ModelProto objects, and decoders in these forms."""

    name = "onnx"
    formats = "ONNX (.onnx files, their bytes, onnx.ModelProto)"

    def accepts(self, source: Any) -> bool:
        if isinstance(source, ExportedDecoder):
            return self.accepts(source.source)
        if (isinstance(source, Path) and source.suffix == ".onnx") or type(source).__name__ == "ModelProto":
            return True
        begins = first_bytes(source, 3)
        return (
            len(begins) == 3
            and begins[0] == _IR_VERSION
            and 0 < begins[1] < 128
            and begins[2] in _NEXT_FIELDS
        )

    def digest(self, source: Any, remember: Remember) -> bytes:
        """Of a file with data outside also sizes and times of the files beside it."""
        if isinstance(source, bytes):
            return source
        if isinstance(source, ExportedDecoder):
            return self.digest(source.source, remember) + b"decoder"
        if not isinstance(source, Path):
            return bytes(source.SerializeToString())
        found = remember(source, _digest_of_model)
        if found.endswith(_OUTSIDE):
            for other in sorted(source.parent.iterdir()):
                if other.is_file() and other != source:
                    stat = other.stat()
                    found += f"{other.name}:{stat.st_size}:{stat.st_mtime_ns}".encode()
        return found

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        from tilewright.frontends.onnx.load import load_onnx

        if not isinstance(source, ExportedDecoder):
            return load_onnx(source, constants=constants, shapes=shapes)
        from tilewright.frontends.exported.one_sequence import settled

        return settled(
            lambda known: load_onnx(
                source.source, constants=constants, shapes={**shapes, **known}, is_decoder=True
            )
        )


def _digest_of_model(path: Path) -> bytes:
    """Of the file's bytes, and whether other files may belong to it."""
    return digest_of_file(path) + (_OUTSIDE if file_mentions(path, _LOCATION) else _INSIDE)
